"""Requests to the transaction coordinators, for the operations that name a transactional id."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.blocking import BlockingCluster
from oncelog.client.connections.versions import ByVersion
from oncelog.client.response_errors import error_codes, raise_for_error
from oncelog.net.connection import ClientConnection
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import describe_transactions as dt
from oncelog.protocol.messages import init_producer_id as ip
from oncelog.protocol.messages import list_transactions as lt
from oncelog.protocol.texts import first_named
from oncelog.spark.cluster import batched_lookups
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError, NotVerifiedError
from oncelog.spark.commit.names import is_task_id
from oncelog.spark.commit.record import Owner

FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
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
INIT_VERSION, TWO_PHASE_VERSION = 4, 6
"""The versions of InitProducerId. Apache Kafka serves version 4 since 2.7, and oncelog serves version 6 (KIP-939)."""
LIST_BY_PATTERN = 2
"""The version of ListTransactions that takes a pattern for the ids."""
NO_PRODUCER_HAS_IT = 2**63 - 1
POLL_MS, MOST_POLL_MS = 20, 500
"""The first and the longest pause between two checks of a transaction, which usually ends within milliseconds."""


class TransactionRequests:
    """Send requests to transaction coordinators.

    `end_wait_ms`: how long `await_ended` waits, after the last transaction has ended, for the next one to end.
    """

    def __init__(self, cluster: BlockingCluster, *, end_wait_ms: int) -> None:
        self.cluster = cluster
        self.end_wait_ms = end_wait_ms
        self.begun: Owner | None = None
        """The task transaction that was begun here."""
        self._new: bool | None = None
        self._proposed: dict[str, float] = {}
        """When the first Produce of an owner's transaction was sent (monotonic seconds), by transactional id."""

    @property
    def new_protocol(self) -> bool:
        """Whether transactions are of version 2 (KIP-890)."""
        if self._new is None:
            self._new = self.cluster.features().get("transaction.version", 0) >= 2
        return self._new

    def list_ids(self, o: op.ListTransactions) -> tuple[op.Listed, ...]:
        """Send ListTransactions to every broker."""
        found = []
        for response in self.cluster.call_brokers(lambda: _listing(o), unanswered=None if o.patient else {}).values():
            raise_for_error(response, "ListTransactions")
            for state in response.transaction_states:
                if is_task_id(o.prefix, state.transactional_id):
                    known = STATES.get(state.transaction_state, op.TxnState.ENDING)
                    found.append(op.Listed(state.transactional_id, state.producer_id, known))
        return tuple(found)

    def describe(self, o: op.DescribeTransactions) -> tuple[op.Described, ...]:
        """Send DescribeTransactions. Omit ids that their coordinator does not know."""
        now_ms = int(time.time() * 1000)
        client = self.cluster.cluster
        (found,) = self.cluster.run_many([batched_lookups.describe_transactions(client, o.ids)])
        return tuple(_described(state, now_ms) for state in found.values() if state is not None)

    def begin(self, o: op.InitProducerId) -> Owner | None:
        """Send InitProducerId. With `once`, return None if the connection ended before the response."""
        if o.once:
            (response,) = self.cluster.run_many([self._begin_once(o)])
            if response is None:
                return None
            _check_timeout(response, o.timeout_ms)
        else:
            response = self.cluster.call_coordinator("transaction", o.id, _beginning(o), INIT_VERSION)
            if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise MisuseError(
                    f"the broker's transaction.max.timeout.ms is below the {o.timeout_ms} ms that {o.id} needs for its "
                    "decision; increase it"
                )
        raise_for_error(response, f"InitProducerId of {o.id}")
        owner = Owner(o.id, response.producer_id, response.producer_epoch)
        if o.once:
            self.begun = owner
        return owner

    def check_timeout(self, transactional_id: str, timeout_ms: int) -> None:
        """Raise MisuseError if the broker allows no transaction to take so long.

        The coordinator checks the timeout before the producer.
        """
        request = _probe(transactional_id, transaction_timeout_ms=timeout_ms)
        try:
            response = self.cluster.call_coordinator("transaction", transactional_id, request, INIT_VERSION)
        except errors.AuthorizationError:
            return  # the plan's own request names the permission
        _check_timeout(response, timeout_ms)

    def permits_two_phase_commit(self, transactional_id: str) -> bool:
        """Return whether the coordinator permits transactions without a timeout (KIP-939)."""

        def make(version: int) -> ip.InitProducerIdRequest:
            if version < TWO_PHASE_VERSION:
                raise errors.UnsupportedError("the broker does not serve two-phase commit")
            return _probe(transactional_id, transaction_timeout_ms=1, enable2_pc=True)

        request = ByVersion(ip.InitProducerIdRequest, make, TWO_PHASE_VERSION)
        try:
            response = self.cluster.call_coordinator("transaction", transactional_id, request)
        except (errors.AuthorizationError, errors.UnsupportedError):
            return False
        return response.error_code in (ErrorCode.NONE, ErrorCode.PRODUCER_FENCED)

    async def _begin_once(self, o: op.InitProducerId) -> ip.InitProducerIdResponse | None:
        """Return the response, or None if the connection ended before one came: see `task.begin_transaction`.

        If this coordinator refuses two-phase commit, the transaction has a timeout.
        """
        two_phase = o.two_phase
        cluster = self.cluster.cluster
        until = time.monotonic() + cluster.api_timeout_ms / 1000
        backoff = _polls()
        while True:
            connection = await self._coordinator(o.id, until)
            unlimited = two_phase and connection.version_for(ip.InitProducerIdRequest) >= TWO_PHASE_VERSION
            version = TWO_PHASE_VERSION if unlimited else INIT_VERSION
            try:
                response: ip.InitProducerIdResponse = await connection.call(_beginning(o, unlimited), version)
            except ConnectionLostError:
                return None
            code = ErrorCode.of(response.error_code)
            if unlimited and code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                two_phase = False
                continue
            if not code.retriable or time.monotonic() > until:
                return response
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                cluster.forget_coordinator("transaction", o.id)
            await asyncio.sleep(backoff.next_s())

    async def _coordinator(self, transactional_id: str, until: float) -> ClientConnection:
        """Return a connection to the id's coordinator; wait for a broker that restarts."""
        cluster = self.cluster.cluster
        backoff = _polls()
        while True:
            try:
                return await cluster.connection(await cluster.coordinator("transaction", transactional_id))
            except errors.RetriableError:
                if time.monotonic() > until:
                    raise
            cluster.forget_coordinator("transaction", transactional_id)
            await asyncio.sleep(backoff.next_s())

    def note_produce(self, owner: Owner) -> None:
        """Record when the first Produce of this owner is sent: `EndTxn.within_ms` counts from then on."""
        self._proposed.setdefault(owner.id, time.monotonic())

    def end(self, o: op.EndTxn) -> op.Ended:
        """Send EndTxn. Raises TimedOutError if there is no response within `within_ms`."""
        proposed = self._proposed.pop(o.owner.id, None)
        left = None
        if o.within_ms is not None and proposed is not None:
            left = proposed + o.within_ms / 1000 - time.monotonic()
        try:
            return _ended(o.owner, *self._end_many((o.owner,), o.commit, left))
        except TimeoutError:
            raise errors.TimedOutError(
                f"the coordinator of {o.owner.id} has not answered EndTxn within its timeout of {o.within_ms} ms; "
                "start the query again, and the next plan finds out how the transaction ended"
            ) from None

    def end_all(self, o: op.EndAll) -> tuple[op.RequestOutcome, ...]:
        """Send EndTxn for each owner, in parallel."""
        responses = self._end_many(o.owners, o.commit)
        return tuple(_ended(owner, r).outcome for owner, r in zip(o.owners, responses, strict=True))

    def _end_many(self, owners: tuple[Owner, ...], commit: bool, within_s: float | None = None) -> list[Any]:
        """Send EndTxn for each -> the responses. Raises TimeoutError, without a request if no time is left."""
        version = None if self.new_protocol else END_TXN_OLD
        if within_s is not None and within_s <= 0:
            raise TimeoutError
        ending = batched_lookups.end_all(self.cluster.cluster, owners, commit, version)
        (responses,) = self.cluster.run_many([asyncio.wait_for(ending, within_s)])
        return responses

    def await_ended(self, o: op.AwaitEnded) -> None:
        """Wait until no coordinator is ending a transaction of these owners.

        Raises NotVerifiedError if no transaction has ended for `end_wait_ms`.
        """
        ids = tuple(owner.id for owner in o.owners)
        pids = {owner.pid for owner in o.owners}
        until = time.monotonic() + self.end_wait_ms / 1000
        backoff = _polls()
        while True:
            ending = tuple(d.id for d in self.describe(op.DescribeTransactions(ids)) if _is_ending(d, pids))
            if not ending:
                return
            if len(ending) < len(ids):  # many transactions with many partitions take long
                until = time.monotonic() + self.end_wait_ms / 1000
            if time.monotonic() > until:
                raise NotVerifiedError(
                    f"{len(ending)} transactions are still ending, and none has ended within {self.end_wait_ms} ms: "
                    + first_named(ending, len(ending))
                )
            ids = ending
            time.sleep(backoff.next_s())


def _polls() -> Backoff:
    return Backoff(POLL_MS, MOST_POLL_MS, random.random)


def outcome_of(response: Any, what: str) -> op.RequestOutcome:
    """Return the outcome for a response's error code. Raises the exception for any other error."""
    for code, _ in error_codes(response):
        if code in FENCED:
            return op.RequestOutcome.FENCED
        if code is ErrorCode.INVALID_TXN_STATE:
            return op.RequestOutcome.INVALID_STATE
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return op.RequestOutcome.DENIED
    raise_for_error(response, what)
    return op.RequestOutcome.DONE


def _ended(owner: Owner, response: Any) -> op.Ended:
    outcome = outcome_of(response, f"EndTxn of {owner.id}")
    if outcome is op.RequestOutcome.DONE and response.producer_id >= 0:
        after = Owner(owner.id, response.producer_id, response.producer_epoch)
        if after[:3] != owner[:3]:
            return op.Ended(outcome, after)
    return op.Ended(outcome, owner)


def _described(state: dt.TransactionState, now_ms: int) -> op.Described:
    started = state.transaction_start_time_ms
    left_ms = state.transaction_timeout_ms
    if started >= 0 and left_ms != ip.NO_TIMEOUT_MS:
        left_ms += started - now_ms
    known = STATES.get(state.transaction_state, op.TxnState.ENDING)
    return op.Described(state.transactional_id, state.producer_id, state.producer_epoch, known, left_ms)


def _is_ending(described: op.Described, pids: set[int]) -> bool:
    return described.pid in pids and described.state is op.TxnState.ENDING


def _listing(o: op.ListTransactions) -> ByVersion:
    """Return ListTransactions. Filter by name if the broker can (KIP-1152), because it remembers ids for a week."""

    def make(version: int) -> lt.ListTransactionsRequest:
        request = lt.ListTransactionsRequest(state_filters=["Ongoing"] if o.ongoing else [], producer_id_filters=[])
        if version >= LIST_BY_PATTERN:
            # In RE2's syntax, the dot is the only special character that a prefix may have.
            request.transactional_id_pattern = o.prefix.replace(".", r"\.") + "/.*"
        return request

    return ByVersion(lt.ListTransactionsRequest, make, LIST_BY_PATTERN)


def _beginning(o: op.InitProducerId, two_phase: bool = False) -> ip.InitProducerIdRequest:
    return ip.InitProducerIdRequest(transactional_id=o.id, transaction_timeout_ms=o.timeout_ms, enable2_pc=two_phase)


def _probe(transactional_id: str, **fields: Any) -> ip.InitProducerIdRequest:
    """Return an InitProducerId with a producer id that the transactional id never had.

    The coordinator checks everything else first. It then rejects the producer as fenced, and changes nothing
    (TransactionCoordinator.handleInitProducerId). A new transactional id gets its first producer id, as the plan would
    give it a moment later.
    """
    return ip.InitProducerIdRequest(
        transactional_id=transactional_id, producer_id=NO_PRODUCER_HAS_IT, producer_epoch=0, **fields
    )


def _check_timeout(response: ip.InitProducerIdResponse, timeout_ms: int) -> None:
    if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        raise MisuseError(
            f"option kafka.transaction.timeout.ms={timeout_ms} is above the broker's transaction.max.timeout.ms; "
            "lower the option or increase the broker's setting"
        )
