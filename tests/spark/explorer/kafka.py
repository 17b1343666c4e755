"""A small model of Kafka: one transaction coordinator, two output partitions, the decision partition.

States are immutable; every operation of the sink's protocol is a function from a state to all its outcomes. Both
transaction protocols are modelled: the old one (transaction.version 0/1) and the new one (2, EndTxn v5). The rules are
those of TransactionCoordinator.scala and ProducerAppendInfo.java, Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import SinkError
from oncelog.spark.commit.names import TopicPartition, is_task_id
from oncelog.spark.commit.record import Owner, Part, Record, Span

DECISION = 2
PARTITIONS = (TopicPartition("out", 0), TopicPartition("out", 1), TopicPartition("p-commits", 0))
INDEX = {partition: index for index, partition in enumerate(PARTITIONS)}

EMPTY, ONGOING = "E", "O"
PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = "PC", "PA", "CC", "CA"
_STATES = {
    EMPTY: op.TxnState.EMPTY,
    ONGOING: op.TxnState.ONGOING,
    PREPARE_COMMIT: op.TxnState.ENDING,
    PREPARE_ABORT: op.TxnState.ENDING,
    COMPLETE_COMMIT: op.TxnState.COMPLETE,
    COMPLETE_ABORT: op.TxnState.COMPLETE,
}
LONG = 10**9

DATA, COMMIT, ABORT, GAP = 0, 1, 2, 3


class Txn(NamedTuple):
    """The coordinator's state of one id.

    `parts`: the partitions of the transaction, later those without a marker. `whole`: then, the partitions in its log.
    `rotate`: it ends with a new producer id, because the epochs are exhausted.
    """

    pid: int
    epoch: int
    state: str = EMPTY
    parts: tuple[int, ...] = ()
    generation: int = 0
    whole: tuple[int, ...] = ()
    rotate: bool = False
    two_phase: bool = False
    """Whether it has no timeout."""


class Entry(NamedTuple):
    """One entry of a log: a row or record (payload), a marker, or GAP (removed by compaction)."""

    pid: int
    epoch: int
    kind: int
    payload: Any = None


class Kafka(NamedTuple):
    """The whole cluster."""

    txns: tuple[tuple[str, Txn], ...]
    logs: tuple[tuple[Entry, ...], ...]
    made: int = 1
    """How often the output topic was created; this number is also its topic id."""


class Step(NamedTuple):
    """One outcome of an operation. If `progress` is not None, the operation is only half done."""

    kafka: Kafka
    answer: Any = None
    progress: Any = None


NOTHING = Kafka((), ((), (), ()))
Ending = tuple[Kafka, op.RequestOutcome, int, int]


class Pids:
    """Producer ids that do not depend on the order of events: one for each (id, generation)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}

    def __call__(self, name: str, generation: int) -> int:
        return self._known.setdefault((name, generation), 1000 + len(self._known))


def _with(kafka: Kafka, name: str, txn: Txn) -> Kafka:
    txns = dict(kafka.txns)
    txns[name] = txn
    return kafka._replace(txns=tuple(sorted(txns.items())))


def _find(kafka: Kafka, name: str) -> Txn | None:
    return dict(kafka.txns).get(name)


def _append(kafka: Kafka, part: int, entry: Entry) -> Kafka:
    logs = list(kafka.logs)
    logs[part] = (*logs[part], entry)
    return kafka._replace(logs=tuple(logs))


def known_epoch(log: tuple[Entry, ...], pid: int) -> int:
    """Return the producer's epoch in the partition, or -1 if the partition does not know it."""
    return max((entry.epoch for entry in log if entry.pid == pid), default=-1)


def open_since(log: tuple[Entry, ...]) -> dict[int, int]:
    """Return the first offset of the open transaction by pid."""
    opened: dict[int, int] = {}
    for offset, entry in enumerate(log):
        if entry.kind == DATA:
            opened.setdefault(entry.pid, offset)
        elif entry.kind != GAP:
            opened.pop(entry.pid, None)
    return opened


def committed(log: tuple[Entry, ...]) -> list[Any]:
    """Return the payloads that read_committed shows, or will show when all earlier transactions have ended."""
    rows: list[Any] = []
    pending: dict[int, list[Any]] = {}
    for entry in log:
        if entry.kind == DATA:
            pending.setdefault(entry.pid, []).append(entry.payload)
        elif entry.kind == COMMIT:
            rows += pending.pop(entry.pid, [])
        elif entry.kind == ABORT:
            pending.pop(entry.pid, None)
    return rows


def decided(log: tuple[Entry, ...]) -> list[Record]:
    """Return the committed records of the decision topic, without their parts."""
    return [payload for payload in committed(log) if not isinstance(payload, Part)]


def first_marker(log: tuple[Entry, ...], pid: int, after: int) -> int | None:
    """Return the kind of the first marker of this producer after an offset."""
    return next((e.kind for e in log[after + 1 :] if e.pid == pid and e.kind in (COMMIT, ABORT)), None)


class Cluster:
    """The operations, for one version of the transaction protocol.

    `max_epoch`: the last epoch that a client sees (Kafka: 32766); a task's id has already used all before
    `first_epoch`. `apart`: the brokers answer a request to several of them one after the other, and anything may happen
    between.
    """

    def __init__(self, *, new: bool, max_epoch: int = 1000, first_epoch: int = 0, apart: bool = False) -> None:
        self.new = new
        self.max_epoch = max_epoch
        self.first_epoch = first_epoch
        self.apart = apart
        self.pids = Pids()
        self._table: dict[type, Callable[[Kafka, Any, Any], list[Step]]] = {
            op.ListTransactions: self._list,
            op.DescribeTransactions: self._describe,
            op.DescribeProducers: self._producers,
            op.InitProducerId: self._init,
            op.EndTxn: self._end,
            op.EndAll: self._end_all,
            op.AwaitEnded: self._await_ended,
            op.ReadDecisions: self._read,
            op.ReadParts: self._read_parts,
            op.Produce: self._produce,
            op.FindEnds: self._find_ends,
            op.FindMarkers: self._find_markers,
            op.WriteTxnMarkers: self._write_markers,
        }

    def apply(self, kafka: Kafka, operation: op.Operation, progress: Any) -> list[Step]:
        """Return all outcomes, or none if the operation has to wait."""
        return self._table[type(operation)](kafka, operation, progress)

    # Reading

    def _one_by_one(self, kafka: Kafka, progress: Any, answers: Iterator[Any] | list[Any]) -> list[Step]:
        """Answer all parts at once, or each at its own time. `progress` contains the previous answers."""
        parts = list(answers)
        if not self.apart:
            return [Step(kafka, tuple(part for some in parts for part in some))]
        done = (*(progress or ()), parts[len(progress or ())]) if parts else ()
        if len(done) < len(parts):
            return [Step(kafka, None, done)]
        return [Step(kafka, tuple(part for some in done for part in some))]

    def listed(self, kafka: Kafka, prefix: str) -> tuple[op.Listed, ...]:
        """Return the result of ListTransactions when all coordinators answer."""
        return tuple(op.Listed(n, t.pid, _STATES[t.state]) for n, t in kafka.txns if is_task_id(prefix, n))

    def _list(self, kafka: Kafka, o: op.ListTransactions, progress: Any) -> list[Step]:
        found = self.listed(kafka, o.prefix)
        if not self.apart:
            return [Step(kafka, found)]
        # Two brokers, each of which coordinates the ids of one slot.
        halves = tuple(tuple(t for t in found if t.id.split("/")[1] == slot) for slot in "01")
        return [Step(kafka, None, halves[0])] if progress is None else [Step(kafka, (*progress, *halves[1]))]

    def _describe(self, kafka: Kafka, o: op.DescribeTransactions, progress: Any) -> list[Step]:
        known = dict(kafka.txns)
        answers = []
        for name in o.ids:
            txn = known.get(name)
            described = () if txn is None else (op.Described(name, txn.pid, txn.epoch, _STATES[txn.state], LONG),)
            answers.append(described)
        return self._one_by_one(kafka, progress, answers)

    def _producers(self, kafka: Kafka, o: op.DescribeProducers, progress: Any) -> list[Step]:
        answers = []
        for partition in o.partitions:
            log = kafka.logs[INDEX[partition]]
            opened = sorted(open_since(log).items())
            answers.append(tuple(op.OpenProducer(partition, p, known_epoch(log, p), start) for p, start in opened))
        return self._one_by_one(kafka, progress, answers)

    def _read(self, kafka: Kafka, o: op.ReadDecisions, _: Any) -> list[Step]:
        log = kafka.logs[DECISION]
        messages = tuple(
            op.Message(offset, e.pid, e.epoch, e.payload if e.kind == DATA else None, e.kind == COMMIT)
            for offset, e in enumerate(log)
            if not isinstance(e.payload, Part) and e.kind != GAP and offset >= (o.since or 0)
        )
        stable = min(open_since(log).values(), default=len(log))
        return [Step(kafka, op.Window(o.since or 0, len(log), stable, True, messages))]

    def _read_parts(self, kafka: Kafka, o: op.ReadParts, _: Any) -> list[Step]:
        log = kafka.logs[DECISION]
        if any(log[offset].kind == GAP for offset in o.offsets):
            return [Step(kafka, SinkError("compaction has removed a part of the last record"))]
        return [Step(kafka, tuple(log[offset].payload for offset in o.offsets))]

    def _find_ends(self, kafka: Kafka, o: op.FindEnds, progress: Any) -> list[Step]:
        made = str(kafka.made)
        answers = [(op.End(partition, len(kafka.logs[INDEX[partition]]), made),) for partition in o.partitions]
        return self._one_by_one(kafka, progress, answers)

    def _find_markers(self, kafka: Kafka, o: op.FindMarkers, progress: Any) -> list[Step]:
        names = {None: op.Marker.MISSING, COMMIT: op.Marker.COMMIT, ABORT: op.Marker.ABORT}
        answers = []
        for place in o.places:
            part = INDEX[place.at]
            kind = first_marker(kafka.logs[part], place.producer_id, place.after)
            waits = kind is None and self._coming(kafka, part, place.producer_id)
            answers.append(() if waits else (names[kind],))
        due = answers[len(progress or ()) :][:1] if self.apart else answers
        return [] if () in due else self._one_by_one(kafka, progress, answers)

    def _coming(self, kafka: Kafka, part: int, pid: int) -> bool:
        return any(
            t.pid == pid and t.state in (PREPARE_COMMIT, PREPARE_ABORT) and part in t.parts for _, t in kafka.txns
        )

    def _await_ended(self, kafka: Kafka, o: op.AwaitEnded, _: Any) -> list[Step]:
        for owner in o.owners:
            txn = _find(kafka, owner.id)
            if txn is not None and txn.pid == owner.pid and txn.state in (PREPARE_COMMIT, PREPARE_ABORT):
                return []
        return [Step(kafka)]

    # The coordinator

    def _init(self, kafka: Kafka, o: op.InitProducerId, _: Any) -> list[Step]:
        txn = _find(kafka, o.id)
        if txn is None:
            txn = Txn(self.pids(o.id, 0), self.first_epoch - 1 if "/" in o.id else -1)
        if txn.state in (PREPARE_COMMIT, PREPARE_ABORT):
            return []
        if txn.state == ONGOING:
            return [Step(self.abort(kafka, o.id), None, "fencing")]
        if txn.epoch >= self.max_epoch:
            generation = txn.generation + 1
            txn = Txn(self.pids(o.id, generation), 0, EMPTY, (), generation, two_phase=o.two_phase)
        else:
            txn = Txn(txn.pid, txn.epoch + 1, EMPTY, (), txn.generation, two_phase=o.two_phase)
        return [Step(_with(kafka, o.id, txn), Owner(o.id, txn.pid, txn.epoch))]

    def abort(self, kafka: Kafka, name: str) -> Kafka:
        """Abort as the coordinator (fence or timeout): both protocols bump the epoch."""
        txn = _find(kafka, name)
        assert txn is not None
        return _with(kafka, name, self._prepared(txn, PREPARE_ABORT, bump=True))

    def _prepared(self, txn: Txn, state: str, *, bump: bool) -> Txn:
        """Return the state in the coordinator's log. Only the new protocol changes the producer id at the end."""
        rotate = self.new and txn.epoch >= self.max_epoch
        return txn._replace(state=state, epoch=txn.epoch + bump, whole=txn.parts, rotate=rotate)

    def _completed(self, name: str, txn: Txn) -> Txn:
        state = COMPLETE_COMMIT if txn.state == PREPARE_COMMIT else COMPLETE_ABORT
        if not txn.rotate:
            return txn._replace(state=state, parts=(), whole=())
        generation = txn.generation + 1
        return Txn(self.pids(name, generation), 0, state, (), generation)

    def cut(self, kafka: Kafka, part: int) -> Kafka:
        """Remove the last entry of a partition, as a leader does that was elected without it."""
        logs = list(kafka.logs)
        logs[part] = logs[part][:-1]
        return kafka._replace(logs=tuple(logs))

    def compact(self, kafka: Kafka) -> Kafka:
        """Remove each message of the decision topic that a later committed one with the same key replaces.

        Like Kafka's LogCleaner, also remove aborted messages, and keep everything from the first open transaction on.
        """
        log = kafka.logs[DECISION]
        stable = min(open_since(log).values(), default=len(log))
        last: dict[Any, int] = {}
        for offset, entry in enumerate(log[:stable]):
            if entry.kind == DATA and first_marker(log, entry.pid, offset) == COMMIT:
                last[entry.payload.number if isinstance(entry.payload, Part) else "record"] = offset
        kept = set(last.values())
        compacted = (
            entry._replace(kind=GAP, payload=None)
            if entry.kind == DATA and offset < stable and offset not in kept
            else entry
            for offset, entry in enumerate(log)
        )
        return kafka._replace(logs=(*kafka.logs[:DECISION], tuple(compacted)))

    def remake(self, kafka: Kafka) -> Kafka:
        """Delete the output topic, and create it again."""
        return kafka._replace(logs=((), (), kafka.logs[DECISION]), made=kafka.made + 1)

    def move(self, kafka: Kafka) -> Kafka:
        """Load the coordinator's log on another broker: every prepared transaction gets all of its markers again."""
        txns = (
            (n, t._replace(parts=t.whole) if t.state in (PREPARE_COMMIT, PREPARE_ABORT) else t) for n, t in kafka.txns
        )
        return kafka._replace(txns=tuple(txns))

    def _end(self, kafka: Kafka, o: op.EndTxn, _: Any) -> list[Step]:
        result = self.end(kafka, o.owner, o.commit)
        if result is None:
            return []
        after, outcome, pid, epoch = result
        same = (pid, epoch) == (o.owner.pid, o.owner.epoch)
        owner = o.owner if same else o.owner._replace(pid=pid, epoch=epoch, sequence=0)
        return [Step(after, op.Ended(outcome, owner))]

    def _end_all(self, kafka: Kafka, o: op.EndAll, progress: Any) -> list[Step]:
        done = progress or (None,) * len(o.owners)
        steps = []
        for index, owner in enumerate(o.owners):
            result = self.end(kafka, owner, o.commit) if done[index] is None else None
            if result is not None:
                after = (*done[:index], result[1], *done[index + 1 :])
                complete = None not in after
                steps.append(Step(result[0], after if complete else None, None if complete else after))
        return steps

    def end(self, kafka: Kafka, owner: Owner, commit: bool) -> Ending | None:
        """EndTxn -> (state, outcome, producer id and epoch afterwards), or None: CONCURRENT_TRANSACTIONS."""
        txn = _find(kafka, owner.id)
        if txn is None:
            return kafka, op.RequestOutcome.FENCED, owner.pid, owner.epoch
        return (self._end_new if self.new else self._end_old)(kafka, owner, commit, txn)

    def _end_old(self, kafka: Kafka, owner: Owner, commit: bool, txn: Txn) -> Ending | None:
        same = (owner.pid, owner.epoch)
        if same != (txn.pid, txn.epoch):
            return kafka, op.RequestOutcome.FENCED, *same
        if txn.state == ONGOING:
            after = self._prepared(txn, PREPARE_COMMIT if commit else PREPARE_ABORT, bump=False)
            return _with(kafka, owner.id, after), op.RequestOutcome.DONE, *same
        if txn.state == (PREPARE_COMMIT if commit else PREPARE_ABORT):
            return None
        done = txn.state == (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
        return kafka, op.RequestOutcome.DONE if done else op.RequestOutcome.INVALID_STATE, *same

    def _end_new(self, kafka: Kafka, owner: Owner, commit: bool, txn: Txn) -> Ending | None:
        same = (owner.pid, owner.epoch)
        overflown = txn.generation > 0 and txn.epoch == 0 and self.pids(owner.id, txn.generation - 1) == owner.pid
        overflown = overflown and owner.epoch >= self.max_epoch and txn.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
        if txn.pid != owner.pid and not overflown:
            return kafka, op.RequestOutcome.FENCED, *same
        retry, current = overflown or txn.epoch == owner.epoch + 1, not overflown and txn.epoch == owner.epoch
        wanted = (PREPARE_COMMIT, COMPLETE_COMMIT) if commit else (PREPARE_ABORT, COMPLETE_ABORT)
        if txn.state == ONGOING and current:
            after = self._prepared(txn, wanted[0], bump=True)
            completed = self._completed(owner.id, after) if after.rotate else after
            return _with(kafka, owner.id, after), op.RequestOutcome.DONE, completed.pid, completed.epoch
        if txn.state in (PREPARE_COMMIT, PREPARE_ABORT) and retry:
            return None if txn.state == wanted[0] else (kafka, op.RequestOutcome.INVALID_STATE, *same)
        if txn.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and retry:
            done = txn.state == wanted[1]
            return (
                (kafka, op.RequestOutcome.DONE, txn.pid, txn.epoch)
                if done
                else (kafka, op.RequestOutcome.INVALID_STATE, *same)
            )
        if txn.state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT) and current:
            if commit:
                return kafka, op.RequestOutcome.INVALID_STATE, *same
            after = self._completed(owner.id, self._prepared(txn, PREPARE_ABORT, bump=True))
            return _with(kafka, owner.id, after), op.RequestOutcome.DONE, after.pid, after.epoch
        return kafka, op.RequestOutcome.FENCED, *same

    # Producing: the coordinator adds the partition, then the partition appends

    def _produce(self, kafka: Kafka, o: op.Produce, progress: Any) -> list[Step]:
        return self.produce(kafka, o.owner, DECISION, o.record, progress)

    def produce(self, kafka: Kafka, owner: Owner, part: int, payload: Any, progress: Any) -> list[Step]:
        """One row or record -> Produced, in two steps."""
        refused = op.Produced(op.RequestOutcome.FENCED)
        txn = _find(kafka, owner.id)
        if progress is None:
            if txn is None or (txn.pid, txn.epoch) != (owner.pid, owner.epoch):
                return [Step(kafka, refused)]
            if txn.state in (PREPARE_COMMIT, PREPARE_ABORT):
                return []
            added = txn.parts if txn.state == ONGOING else ()
            after = txn._replace(state=ONGOING, parts=tuple(sorted({*added, part})))
            return [Step(_with(kafka, owner.id, after), None, "added")]
        log = kafka.logs[part]
        hanging = owner.pid in open_since(log)
        verified = txn is not None and txn.state == ONGOING and txn.epoch == owner.epoch and part in txn.parts
        if known_epoch(log, owner.pid) > owner.epoch or not (hanging or verified):
            return [Step(kafka, refused)]
        return [
            Step(
                _append(kafka, part, Entry(owner.pid, owner.epoch, DATA, payload)),
                op.Produced(op.RequestOutcome.DONE, len(log)),
            )
        ]

    def rows(self, kafka: Kafka, owner: Owner, rows: tuple[tuple[int, Any], ...], progress: Any) -> list[Step]:
        """ProduceRows: each (partition, row), one after the other -> Rows."""
        done, half = progress or ((), None)
        if len(done) == len(rows):
            return [Step(kafka, op.Rows(op.RequestOutcome.DONE, len(rows), _spans(rows, done)))]
        part, payload = rows[len(done)]
        steps = []
        for step in self.produce(kafka, owner, part, payload, half):
            if step.progress is not None:
                steps.append(Step(step.kafka, None, (done, step.progress)))
            elif step.answer.outcome is not op.RequestOutcome.DONE:
                steps.append(Step(step.kafka, op.Rows(step.answer.outcome, 0, ())))
            elif len(done) + 1 == len(rows):
                spans = _spans(rows, (*done, step.answer.offset))
                steps.append(Step(step.kafka, op.Rows(op.RequestOutcome.DONE, len(rows), spans)))
            else:
                steps.append(Step(step.kafka, None, ((*done, step.answer.offset), None)))
        return steps

    # Markers

    def _write_markers(self, kafka: Kafka, o: op.WriteTxnMarkers, _: Any) -> list[Step]:
        after = self.marker(kafka, INDEX[o.at], o.pid, o.epoch, commit=o.commit)
        return [Step(after or kafka, op.RequestOutcome.FENCED if after is None else op.RequestOutcome.DONE)]

    def marker(
        self, kafka: Kafka, part: int, pid: int, epoch: int, *, commit: bool, strict: bool = False
    ) -> Kafka | None:
        """Append a marker (`strict`: of the new protocol's coordinator), or return None if its epoch is too old."""
        log = kafka.logs[part]
        known = known_epoch(log, pid)
        if epoch < known or (strict and epoch == known and pid in open_since(log)):
            return None
        return _append(kafka, part, Entry(pid, epoch, COMMIT if commit else ABORT))

    def pending_markers(self, kafka: Kafka) -> Iterator[tuple[str, Txn, int]]:
        """Yield (id, transaction, partition) of every marker that the coordinator still has to write."""
        for name, txn in kafka.txns:
            if txn.state in (PREPARE_COMMIT, PREPARE_ABORT):
                for part in txn.parts:
                    yield name, txn, part

    def deliver(self, kafka: Kafka, name: str, txn: Txn, part: int, *, lost: bool = False) -> Kafka:
        """Deliver the coordinator's marker, or skip a deleted partition. The last marker completes the transaction."""
        after = kafka
        if not lost:
            after = (
                self.marker(kafka, part, txn.pid, txn.epoch, commit=txn.state == PREPARE_COMMIT, strict=self.new)
                or kafka
            )
        left = tuple(p for p in txn.parts if p != part)
        return _with(after, name, txn._replace(parts=left) if left else self._completed(name, txn))


def _spans(rows: tuple[tuple[int, Any], ...], offsets: tuple[int, ...]) -> tuple[Span, ...]:
    spans: dict[int, Span] = {}
    for (part, _), offset in zip(rows, offsets, strict=True):
        first = spans[part].first if part in spans else offset
        spans[part] = Span(PARTITIONS[part], first, offset)
    return tuple(spans[part] for part in sorted(spans))
