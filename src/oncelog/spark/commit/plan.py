"""Plan(b): what the driver does once per batch, before any task starts. Steps P0 to P4."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import AnotherDriverError, NotVerifiedError
from oncelog.spark.commit.names import is_task_id
from oncelog.spark.commit.ownership import NO_PERMISSION, Permission, admit, check_decisions, check_idle
from oncelog.spark.commit.record import NO_SOURCE, Owner, Part, Record, Source
from oncelog.spark.commit.steps import Phase, Sink, Steps, await_commit_marker, commit_all, verify_all, write_record


@dataclass(frozen=True, slots=True)
class Carried:
    """What the writer carries to the tasks: the driver's producer, and the record as the plan left it."""

    driver: Owner
    record: Record
    offset: int = 0
    """The offset of the record in the decision topic."""


@dataclass(frozen=True, slots=True)
class Planning:
    """The state between two phases of a plan."""

    sink: Sink
    applicant: Source = NO_SOURCE
    """The source that wants to write, if the plan knows it. NO_SOURCE: an operator, who writes nothing."""
    permission: Permission = NO_PERMISSION
    left: tuple[Owner, ...] = ()
    """Open task transactions of earlier drivers (P0)."""
    strays: tuple[op.OpenProducer, ...] = ()
    """Producers that are open in a partition, but not at the coordinator: their marker was lost (P0)."""
    driver: Owner | None = None
    record: Record | None = None
    offset: int = 0
    """The offset of the plan's own record."""

    def carried(self) -> Carried:
        """Return the plan's result."""
        if self.driver is None or self.record is None:
            raise ValueError("the plan has not run")
        return Carried(self.driver, self.record, self.offset)


def find_open(sink: Sink, *, patient: bool = True) -> Steps[tuple[tuple[Owner, ...], tuple[op.OpenProducer, ...]]]:
    """Find the task transactions of this prefix: (open at the coordinator, open in a partition only).

    Ask the partitions first: if they show a transaction open and the coordinator does not afterwards, the transaction
    has ended. For `patient`, see `ListTransactions`.
    """
    opened: tuple[op.OpenProducer, ...] = ()
    if sink.targets:
        opened = yield op.DescribeProducers(sink.targets)
    listed: tuple[op.Listed, ...] = yield op.ListTransactions(sink.prefix, ongoing=not opened, patient=patient)
    hanging = {producer.pid for producer in opened}
    ids = tuple(
        sorted(
            t.id
            for t in listed
            if is_task_id(sink.prefix, t.id) and (t.state is op.TxnState.ONGOING or t.pid in hanging)
        )
    )
    if not ids:
        return (), ()
    described: tuple[op.Described, ...] = yield op.DescribeTransactions(ids)
    left = tuple(Owner(d.id, d.pid, d.epoch) for d in described if d.state is op.TxnState.ONGOING)
    by_pid = {d.pid: d for d in described}
    strays = tuple(p for p in opened if p.pid in by_pid and _is_stray(p, by_pid[p.pid]))
    return left, strays


def _is_stray(producer: op.OpenProducer, known: op.Described) -> bool:
    if known.state is op.TxnState.ENDING:
        return False
    return known.state is not op.TxnState.ONGOING or known.epoch != producer.epoch


def look_for_open(state: Planning) -> Steps[Planning]:
    """P0: find what earlier drivers left open.

    This runs before the fence, so nothing that is found here belongs to a later driver.
    """
    left, strays = yield from find_open(state.sink)
    return replace(state, left=left, strays=strays)


def admit_applicant(state: Planning) -> Steps[Planning]:
    """P0: reject an applicant that is known not to own the prefix, before the fence stops the owner.

    K1 checks the rest. The record is read after the search for open transactions: if a first batch is no longer open,
    the record has it. An operator is admitted unless the topic holds another prefix's decisions. P2 would end that
    prefix's next decision.
    """
    window: op.Window = yield op.ReadDecisions(state.sink.decision)
    record = yield from read_record(state.sink, window)
    prefix, applicant = state.sink.prefix, state.applicant
    check_decisions(state.sink.decision.topic, prefix, record)
    if applicant != NO_SOURCE:
        admit(prefix, record, applicant, state.permission)
        check_idle(prefix, record, applicant, state.permission, left=bool(state.left))
    return state


def fence_drivers(state: Planning) -> Steps[Planning]:
    """P1: fence every earlier driver with InitProducerId of the prefix."""
    driver: Owner = yield op.InitProducerId(state.sink.prefix, state.sink.driver_timeout_ms)
    return replace(state, driver=driver)


def read_record(sink: Sink, window: op.Window) -> Steps[Record]:
    """Return the last committed record in or before this window of the decision topic, without its parts."""
    messages, width = window.messages, op.WINDOW
    while True:
        decided = last_decided(messages)
        if decided is not None:
            return decided
        if window.first:
            return Record()
        width = min(4 * width, op.WIDEST)
        window = yield op.ReadDecisions(sink.decision, window.start, width=width)
        messages = window.messages + messages


def read_parts(sink: Sink, record: Record) -> Steps[Record]:
    """Return the record with the transactions in its parts."""
    if not record.parts:
        return record
    parts: tuple[Part, ...] = yield op.ReadParts(sink.decision, record.parts)
    return record.join(parts)


def last_decided(messages: tuple[op.Message, ...]) -> Record | None:
    """Return the last record whose producer's next marker is a COMMIT."""
    pending: dict[int, Record] = {}
    decided = None
    for message in messages:
        if message.record is not None:
            pending[message.pid] = message.record
        elif (record := pending.pop(message.pid, None)) is not None and message.commit:
            decided = record
    return decided


def read_decision(state: Planning) -> Steps[Planning]:
    """P2: read the decision record, after checking that the decision topic is stable to its end.

    A transaction that is open there has lost its marker. Abort it: no driver has passed C2v with it.
    """
    sink, driver = state.sink, state.driver
    window: op.Window = yield op.ReadDecisions(sink.decision)
    if window.stable < window.end:
        opened: tuple[op.OpenProducer, ...] = yield op.DescribeProducers((sink.decision,))
        for producer in opened:
            if driver is not None and producer.pid == driver.pid and producer.epoch >= driver.epoch:
                raise AnotherDriverError(
                    f"option transactionalIdPrefix={sink.prefix}: a newer driver has fenced this one"
                )
            outcome: op.RequestOutcome = yield op.WriteTxnMarkers(
                producer.at, producer.pid, producer.epoch, commit=False
            )
            if outcome is op.RequestOutcome.DENIED:
                raise NotVerifiedError(
                    f"sink {sink.prefix!r}: the marker of a decision was lost in {sink.decision.topic}, and writing it "
                    "needs the permission ClusterAction; ask an operator with this permission to run `oncelog sink "
                    f"settle {sink.prefix}`"
                )
        window = yield op.ReadDecisions(sink.decision)
        if window.stable < window.end:
            raise NotVerifiedError(
                f"sink {sink.prefix!r}: {sink.decision.topic} has an open transaction of another producer; only the "
                "sink may write to this topic"
            )
    record = yield from read_record(sink, window)
    check_decisions(sink.decision.topic, sink.prefix, record)
    return replace(state, record=(yield from read_parts(sink, record)))


def finish_decision(state: Planning) -> Steps[Planning]:
    """P3: commit the transactions of a decided batch, and verify their markers."""
    record = state.carried().record
    if not record.settled:
        yield from commit_all(record)
        yield from verify_all(state.sink, record)
    return state


def write_plan_record(state: Planning) -> Steps[Planning]:
    """P3: write this plan's record: settled, and with the next number.

    A fenced driver stops here. A task recognises its plan by the number.
    """
    driver, record = state.carried().driver, state.carried().record
    mine = replace(
        record,
        plan=record.plan + 1,
        settled=True,
        transactions=(),
        ends=(),
        planner=state.applicant,
        prefix=state.sink.prefix,
    )
    after, place = yield from write_record(state.sink, driver, mine)
    yield from await_commit_marker(state.sink, place)
    # P4 must not abort what was decided.
    decided = {(t.owner.pid, t.owner.epoch) for t in record.transactions}
    return replace(
        state,
        driver=after,
        record=mine,
        offset=place.after,
        left=tuple(owner for owner in state.left if (owner.pid, owner.epoch) not in decided),
        strays=tuple(stray for stray in state.strays if (stray.pid, stray.epoch) not in decided),
    )


def abort_leftovers(state: Planning) -> Steps[Planning]:
    """P4: abort what earlier drivers left open, and nothing else.

    If the sink may not end a transaction, the plan fails. The next commit of that producer id would commit its rows.
    """
    denied = yield from abort_left(state.sink, state.left)
    denied += yield from abort_hanging(state.strays)
    if denied:
        where = ", ".join(sorted({f"{producer.at.topic}-{producer.at.partition}" for producer in denied}))
        raise NotVerifiedError(
            f"sink {state.sink.prefix!r}: the marker of an aborted transaction was lost in {where}, and writing it "
            "needs the permission ClusterAction; ask an operator with this permission to run `oncelog sink settle "
            f"{state.sink.prefix}`"
        )
    return state


def abort_left(sink: Sink, left: tuple[Owner, ...]) -> Steps[tuple[op.OpenProducer, ...]]:
    """Send EndTxn(abort) for each, then find the partitions that have lost the ABORT marker, and write it there.

    Return the producers that the sink may not end (ClusterAction).
    """
    if not left:
        return ()
    yield op.EndAll(left, commit=False)
    if not sink.targets:
        return ()
    yield op.AwaitEnded(left)
    opened: tuple[op.OpenProducer, ...] = yield op.DescribeProducers(sink.targets)
    ended = {(owner.pid, owner.epoch) for owner in left}
    lost = tuple(producer for producer in opened if (producer.pid, producer.epoch) in ended)
    return (yield from abort_hanging(lost))


def abort_hanging(hanging: tuple[op.OpenProducer, ...]) -> Steps[tuple[op.OpenProducer, ...]]:
    """Write the ABORT markers that were lost. Return the producers that the sink may not end (ClusterAction)."""
    denied: tuple[op.OpenProducer, ...] = ()
    for producer in hanging:
        outcome: op.RequestOutcome = yield op.WriteTxnMarkers(producer.at, producer.pid, producer.epoch, commit=False)
        if outcome is op.RequestOutcome.DENIED:
            denied += (producer,)
    return denied


PLAN: tuple[Phase[Planning], ...] = (
    look_for_open,
    admit_applicant,
    fence_drivers,
    read_decision,
    finish_decision,
    write_plan_record,
    abort_leftovers,
)
"""Their order is the protocol: the explorer shows what goes wrong when two of them change places."""
