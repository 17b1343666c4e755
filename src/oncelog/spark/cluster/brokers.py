"""The protocol's operations, carried out on a cluster (ours or Apache Kafka) through the blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.connections.versions import ByVersion
from oncelog.client.response_errors import error_codes, raise_for_error
from oncelog.net.connection import ClientConnection, ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import describe_transactions as dt
from oncelog.protocol.messages import init_producer_id as ip
from oncelog.protocol.messages import list_transactions as lt
from oncelog.protocol.messages import write_txn_markers as wm
from oncelog.spark import faults
from oncelog.spark.cluster import batched_lookups as questions
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.permissions import needed
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError, NotPermittedError, NotVerifiedError
from oncelog.spark.commit.names import TopicPartition, is_task_id
from oncelog.spark.commit.record import Owner, Part
from oncelog.spark.commit.steps import Steps

T = TypeVar("T")

FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
STATES = {
    "Empty": op.TxnState.EMPTY,
    "Ongoing": op.TxnState.ONGOING,
    "PrepareCommit": op.TxnState.ENDING,
    "PrepareAbort": op.TxnState.ENDING,
    "PrepareEpochFence": op.TxnState.ENDING,
    "CompleteCommit": op.TxnState.COMPLETE,
    "CompleteAbort": op.TxnState.COMPLETE,
    "Dead": op.TxnState.EMPTY,
}
END_TXN_OLD = 4
"""The newest version of EndTxn that does not move the epoch (KIP-890)."""
INIT_VERSION = 4
"""Of InitProducerId: known to every broker since 2.7, and the newer ones bring nothing that is used here."""
LIST_BY_PATTERN = 2
"""The version of ListTransactions that takes a pattern for the ids."""
NO_PRODUCER_HAS_IT = 2**63 - 1
POLL_SECONDS, MOST_POLL_SECONDS = 0.02, 0.5
MOST_NAMED = 10
"""Transactional ids in a message."""


def run(program: Steps[T], brokers: Brokers) -> T:
    """Run a program of the protocol to its end."""
    try:
        operation = next(program)
        while True:
            faults.reach(type(operation).__name__)
            operation = program.send(brokers.answer(operation))
    except StopIteration as stop:
        value: T = stop.value
        return value


class TaskRows(Protocol):
    """A task's rows."""

    def peek(self) -> bool:
        """Return whether there are any. This computes the first rows."""

    def __call__(self, owner: Owner) -> op.Rows:
        """Write them in the owner's transaction, or only count them if the owner has no producer id."""


class Brokers:
    """Execute operations. `rows` writes a task's rows (PeekRows, ProduceRows); the driver has none."""

    def __init__(
        self,
        cluster: BlockingCluster,
        *,
        rows: TaskRows | None = None,
        marker_wait_ms: int = 5_000,
        end_wait_ms: int = 30_000,
    ) -> None:
        self.cluster = cluster
        self.rows = rows
        self.marker_wait_ms = marker_wait_ms
        self.end_wait_ms = end_wait_ms
        self.begun: Owner | None = None
        """The task transaction that was begun here."""
        self._new: bool | None = None
        self._proposed: dict[str, float] = {}
        """When the first Produce of an owner's transaction was sent (monotonic seconds), by transactional id."""
        self._table: dict[type, Callable[[Any], Any]] = {
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
            op.PeekRows: self._peek,
            op.ProduceRows: self._rows,
        }

    def answer(self, operation: op.Operation) -> Any:
        """Carry one operation out."""
        try:
            return self._table[type(operation)](operation)
        except errors.AuthorizationError as error:
            raise NotPermittedError(f"{needed(operation)} ({error})") from error

    @property
    def new_protocol(self) -> bool:
        """Whether transactions are of version 2 (KIP-890)."""
        if self._new is None:
            self._new = self.cluster.features().get("transaction.version", 0) >= 2
        return self._new

    # Looking

    def _list(self, o: op.ListTransactions) -> tuple[op.Listed, ...]:
        found = []
        for response in self.cluster.call_brokers(lambda: _listing(o)).values():
            raise_for_error(response, "ListTransactions")
            for state in response.transaction_states:
                if is_task_id(o.prefix, state.transactional_id):
                    known = STATES.get(state.transaction_state, op.TxnState.ENDING)
                    found.append(op.Listed(state.transactional_id, state.producer_id, known))
        return tuple(found)

    def _describe(self, o: op.DescribeTransactions) -> tuple[op.Described, ...]:
        now_ms = int(time.time() * 1000)
        client = self.cluster.cluster
        (found,) = self.cluster.run_many([questions.describe_transactions(client, o.ids)])
        return tuple(_described(state, now_ms) for state in found.values() if state is not None)

    def _producers(self, o: op.DescribeProducers) -> tuple[op.OpenProducer, ...]:
        return tuple(sorted(found for found, _ in self._open_producers(o.partitions)))

    def _open_producers(self, wanted: Iterable[TopicPartition]) -> Iterable[tuple[op.OpenProducer, int]]:
        """(producer with a transaction open, its coordinator epoch there)."""
        client = self.cluster.cluster
        (found,) = self.cluster.run_many([questions.describe_producers(client, wanted)])
        for at, active in found.items():
            for p in active:
                start = p.current_txn_start_offset
                yield op.OpenProducer(at, p.producer_id, p.producer_epoch, start), p.coordinator_epoch

    # The coordinator

    def _init(self, o: op.InitProducerId) -> Owner | None:
        request = ip.InitProducerIdRequest(
            transactional_id=o.id, transaction_timeout_ms=o.timeout_ms, enable2_pc=False, keep_prepared_txn=False
        )
        if o.once:
            response = self.cluster.run_many([self._init_once(o.id, request)])[0]
            if response is None:
                return None
            _check_timeout(response, o.timeout_ms)
        else:
            response = self.cluster.call_coordinator("transaction", o.id, request, INIT_VERSION)
            if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise MisuseError(
                    f"the broker's transaction.max.timeout.ms is below the {o.timeout_ms} ms that {o.id} needs to "
                    "decide: raise it"
                )
        raise_for_error(response, f"InitProducerId of {o.id}")
        owner = Owner(o.id, response.producer_id, response.producer_epoch)
        if o.once:
            self.begun = owner
        return owner

    def check_timeout(self, name: str, timeout_ms: int) -> None:
        """MisuseError if no transaction may take so long.

        An InitProducerId of a producer that this id never had: the coordinator looks at the time-out before it looks at
        the producer, whom it then fences, and changes nothing (TransactionCoordinator.handleInitProducerId). An id that
        nobody had before is begun by it, as the plan will do in a moment.
        """
        request = ip.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=NO_PRODUCER_HAS_IT,
            producer_epoch=0,
            enable2_pc=False,
            keep_prepared_txn=False,
        )
        try:
            response = self.cluster.call_coordinator("transaction", name, request, INIT_VERSION)
        except errors.AuthorizationError:
            return  # the plan's own request names the permission
        _check_timeout(response, timeout_ms)

    async def _init_once(self, name: str, request: ip.InitProducerIdRequest) -> ip.InitProducerIdResponse | None:
        """Return the response, or None if the connection ended before one came: see `commit.task.begin_transaction`."""
        cluster = self.cluster.cluster
        until = time.monotonic() + cluster.api_timeout_ms / 1000
        while True:
            connection = await self._coordinator(name, until)
            try:
                response: ip.InitProducerIdResponse = await connection.call(request, INIT_VERSION)
            except ConnectionLostError:
                return None
            code = ErrorCode.of(response.error_code)
            if not code.retriable or time.monotonic() > until:
                return response
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                cluster.forget_coordinator("transaction", name)
            await _pause()

    async def _coordinator(self, name: str, until: float) -> ClientConnection:
        """Return a connection to the id's coordinator; wait for a broker that restarts."""
        cluster = self.cluster.cluster
        while True:
            try:
                return await cluster.connection(await cluster.coordinator("transaction", name))
            except errors.RetriableError:
                if time.monotonic() > until:
                    raise
            cluster.forget_coordinator("transaction", name)
            await _pause()

    def _end(self, o: op.EndTxn) -> op.Ended:
        proposed = self._proposed.pop(o.owner.id, None)
        left = None
        if o.within_ms is not None and proposed is not None:
            left = proposed + o.within_ms / 1000 - time.monotonic()
        try:
            return self._ended(o.owner, *self._end_many((o.owner,), o.commit, left))
        except TimeoutError:
            raise errors.TimedOutError(
                f"the coordinator of {o.owner.id} has not answered EndTxn within the {o.within_ms} ms that its "
                "transaction may take; start the query again, and the next plan finds out how the transaction ended"
            ) from None

    def _end_all(self, o: op.EndAll) -> tuple[op.RequestOutcome, ...]:
        responses = self._end_many(o.owners, o.commit)
        return tuple(self._ended(owner, r).outcome for owner, r in zip(o.owners, responses, strict=True))

    def _end_many(self, owners: tuple[Owner, ...], commit: bool, within_s: float | None = None) -> list[Any]:
        """Send EndTxn for each -> the responses. Raises TimeoutError, without a request if no time is left."""
        import asyncio

        version = None if self.new_protocol else END_TXN_OLD
        if within_s is not None and within_s <= 0:
            raise TimeoutError
        ending = questions.end_all(self.cluster.cluster, owners, commit, version)
        (responses,) = self.cluster.run_many([asyncio.wait_for(ending, within_s)])
        return responses

    def _ended(self, owner: Owner, response: Any) -> op.Ended:
        outcome = outcome_of(response, f"EndTxn of {owner.id}")
        if outcome is op.RequestOutcome.DONE and response.producer_id >= 0:
            after = Owner(owner.id, response.producer_id, response.producer_epoch)
            if after[:3] != owner[:3]:
                return op.Ended(outcome, after)
        return op.Ended(outcome, owner)

    def _await_ended(self, o: op.AwaitEnded) -> None:
        ids = tuple(owner.id for owner in o.owners)
        pids = {owner.pid for owner in o.owners}
        delay, until = POLL_SECONDS, time.monotonic() + self.end_wait_ms / 1000
        while True:
            ending = tuple(d.id for d in self._describe(op.DescribeTransactions(ids)) if _is_ending(d, pids))
            if not ending:
                return
            if len(ending) < len(ids):  # many transactions with many partitions take long
                until = time.monotonic() + self.end_wait_ms / 1000
            if time.monotonic() > until:
                raise NotVerifiedError(
                    f"{len(ending)} transactions are still being ended, and none has ended in {self.end_wait_ms} ms: "
                    + ", ".join(ending[:MOST_NAMED])
                )
            ids = ending
            time.sleep(delay)
            delay = min(2 * delay, MOST_POLL_SECONDS)

    # Partitions

    def _read(self, o: op.ReadDecisions) -> op.Window:
        return partitions.read_window(self.cluster, o)

    def _read_parts(self, o: op.ReadParts) -> tuple[Part, ...]:
        return partitions.read_parts(self.cluster, o)

    def _produce(self, o: op.Produce) -> op.Produced:
        self._proposed.setdefault(o.owner.id, time.monotonic())
        batch = partitions.decision_batch(o.owner, o.record, int(time.time() * 1000))
        response = partitions.produce(self.cluster, o.owner, o.at, batch, new_protocol=self.new_protocol)
        if any(code in TOO_LARGE for code, _ in error_codes(response)):
            return op.Produced(op.RequestOutcome.TOO_LARGE)
        outcome = outcome_of(response, f"Produce into {o.at.topic}-{o.at.partition}")
        if outcome is not op.RequestOutcome.DONE:
            return op.Produced(op.RequestOutcome.FENCED)
        return op.Produced(outcome, response.responses[0].partition_responses[0].base_offset)

    def _find_ends(self, o: op.FindEnds) -> tuple[op.End, ...]:
        return partitions.find_ends(self.cluster, o.partitions)

    def _find_markers(self, o: op.FindMarkers) -> tuple[op.Marker, ...]:
        return partitions.find_markers(self.cluster, o.places, self.marker_wait_ms)

    def _write_markers(self, o: op.WriteTxnMarkers) -> op.RequestOutcome:
        coordinator_epoch = max((epoch for p, epoch in self._open_producers([o.at]) if p.pid == o.pid), default=0)
        marker = wm.WritableTxnMarker(
            producer_id=o.pid,
            producer_epoch=o.epoch,
            transaction_result=o.commit,
            topics=[wm.WritableTxnMarkerTopic(name=o.at.topic, partition_indexes=[o.at.partition])],
            coordinator_epoch=max(coordinator_epoch, 0),
            transaction_version=0,
        )
        # Version 1: checked as of the old protocol, for the epoch of the rows is that of the marker.
        response = self.cluster.call_leader(*o.at, wm.WriteTxnMarkersRequest(markers=[marker]), 1)
        return outcome_of(response, f"WriteTxnMarkers into {o.at.topic}-{o.at.partition}")

    def _peek(self, o: op.PeekRows) -> bool:
        if self.rows is None:
            raise ValueError("only a task writes rows")
        return self.rows.peek()

    def _rows(self, o: op.ProduceRows) -> op.Rows:
        if self.rows is None:
            raise ValueError("only a task writes rows")
        return self.rows(o.owner)


def outcome_of(response: Any, what: str) -> op.RequestOutcome:
    """The outcome that a response's error code means; other errors are raised."""
    for code, _ in error_codes(response):
        if code in FENCED:
            return op.RequestOutcome.FENCED
        if code is ErrorCode.INVALID_TXN_STATE:
            return op.RequestOutcome.INVALID_STATE
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return op.RequestOutcome.DENIED
    raise_for_error(response, what)
    return op.RequestOutcome.DONE


def _described(state: dt.TransactionState, now_ms: int) -> op.Described:
    started = state.transaction_start_time_ms
    left_ms = state.transaction_timeout_ms if started < 0 else started + state.transaction_timeout_ms - now_ms
    known = STATES.get(state.transaction_state, op.TxnState.ENDING)
    return op.Described(state.transactional_id, state.producer_id, state.producer_epoch, known, left_ms)


def _is_ending(described: op.Described, pids: set[int]) -> bool:
    return described.pid in pids and described.state is op.TxnState.ENDING


def _listing(o: op.ListTransactions) -> ByVersion:
    """Filtered where the broker can (by name since KIP-1152): a cluster remembers the ids of a week."""

    def make(version: int) -> lt.ListTransactionsRequest:
        request = lt.ListTransactionsRequest(state_filters=["Ongoing"] if o.ongoing else [], producer_id_filters=[])
        if version >= LIST_BY_PATTERN:
            # RE2's syntax: of what a prefix may have, only the dot means something there.
            request.transactional_id_pattern = o.prefix.replace(".", r"\.") + "/.*"
        return request

    return ByVersion(lt.ListTransactionsRequest, make, LIST_BY_PATTERN)


async def _pause() -> None:
    import asyncio

    await asyncio.sleep(POLL_SECONDS)


def _check_timeout(response: ip.InitProducerIdResponse, timeout_ms: int) -> None:
    if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        raise MisuseError(
            f"option kafka.transaction.timeout.ms={timeout_ms} is above the broker's transaction.max.timeout.ms: "
            "lower the one or raise the other"
        )
