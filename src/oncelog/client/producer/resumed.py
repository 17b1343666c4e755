"""End a prepared transaction from any process. Send EndTxn with its handle, and if it is rejected, find out why.

If EndTxn succeeds, that is final. If the coordinator no longer knows the transaction (a timeout, a newer producer or
another holder of the handle has ended it), the markers after the records show how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

from oncelog import errors
from oncelog.client.blocking import Blocking, blocking
from oncelog.client.calls import Calls, ends_when_closed
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.reasons import without_leader
from oncelog.client.options import cluster_options, read_options
from oncelog.client.producer.options import PRODUCER
from oncelog.client.producer.outcomes import require_cluster, settled_outcome
from oncelog.client.producer.prepared import PreparedTransaction, TransactionOutcome
from oncelog.client.records import ms
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS, InitProducerIdRequest

END_TXN_OLD, END_TXN_NEW = 4, 5
"""Versions of EndTxn that keep the epoch, or raise it (KIP-890)."""

FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

ENDED_ALREADY = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors of EndTxn that mean that the transaction has already ended, or that the coordinator is ending it."""


class AsyncResumedTransaction:
    """A prepared transaction that `oncelog.aio.Transaction.resume` has opened. See `ResumedTransaction`."""

    def __init__(
        self,
        handle: PreparedTransaction | str,
        bootstrap_servers: str | Sequence[str] | None,
        config: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.handle = PreparedTransaction.of(handle)
        self.options, _ = read_options(PRODUCER, config, {**options, "bootstrap_servers": bootstrap_servers})
        ours = self.handle.transactional_id
        if self.options["transactional_id"] not in (None, ours):
            raise errors.ConfigError(
                f"transactional_id = {self.options['transactional_id']!r}, but the handle belongs to {ours!r}; omit it"
            )
        servers, settings = self.options["bootstrap_servers"], cluster_options(self.options)
        self._cluster = ClusterClient(servers, what="resumed transaction", **settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The transaction does not change."""
        await self._cluster.close()

    @property
    def _calls(self) -> Calls:
        return self._cluster.calls

    @ends_when_closed
    async def commit(self, timeout: float | None = None) -> None:
        """Commit the transaction within `timeout` seconds (default: default_api_timeout_ms, 60 s).

        Succeed if it is already committed. Raises TransactionAbortedError if its timeout, a newer producer or another
        process has aborted it. Then none of its records is visible. Raises OutcomeUnknownError if neither coordinator
        nor log shows how it ended. After a RetriableError, call `commit` again.
        """
        await self._end(True, timeout)

    @ends_when_closed
    async def abort(self, timeout: float | None = None) -> None:
        """Abort the transaction within `timeout` seconds (default: default_api_timeout_ms, 60 s).

        Succeed if it is already aborted. Raises TransactionCommittedError if it is already committed. The other errors
        are those of `commit`.
        """
        await self._end(False, timeout)

    @ends_when_closed
    async def outcome(self) -> TransactionOutcome:
        """Return how the transaction ended: `open` (not yet), `committed`, `aborted` or `unknown`. Change nothing."""
        return await self._find_outcome(0)

    async def _end(self, commit: bool, timeout: float | None) -> None:
        """Send EndTxn. If it is rejected, find out how the transaction ended."""
        wanted = TransactionOutcome.COMMITTED if commit else TransactionOutcome.ABORTED
        if self.handle.empty:
            return
        given_ms = ms(timeout)
        limit_ms = self.options["default_api_timeout_ms"] if given_ms is None else given_ms
        until = asyncio.get_running_loop().time() + limit_ms / 1000
        await self._await_leaders(until)
        code = await self._end_open(commit, until)
        if code is ErrorCode.NONE:
            return
        what = f"{'commit' if commit else 'abort'} of the prepared transaction of {self.handle.transactional_id!r}"
        if code not in ENDED_ALREADY:
            raise errors.error_for(code, f"{what}: {code.text}")
        found = await self._find_outcome(_left_ms(until))
        if found is wanted:
            return
        if found is TransactionOutcome.COMMITTED:
            raise errors.TransactionCommittedError(f"{what}: it is already committed")
        if found is TransactionOutcome.ABORTED:
            raise errors.TransactionAbortedError(
                f"{what}: it is already aborted, by {self._timeout}a newer producer, or another process with the handle"
            )
        raise errors.OutcomeUnknownError(
            f"{what} was rejected ({code.name}), and its outcome is unknown: the coordinator knows only later "
            "transactions, and the log has no marker of it"
        )

    async def _end_open(self, commit: bool, until: float) -> ErrorCode:
        """Send EndTxn, also if a later producer has kept the transaction. Return the error of the last response."""
        now = asyncio.get_running_loop().time
        producer = self.handle.producer_id, self.handle.producer_epoch
        backoff = self._cluster.backoff()
        while True:
            code = await self._end_txn(producer, commit, until)
            if code not in FENCED or await self._by_coordinator() is not TransactionOutcome.OPEN:
                return code
            if now() > until:
                raise errors.TimedOutError(
                    f"the prepared transaction of {self.handle.transactional_id!r} is still open: other producers have "
                    "kept it repeatedly until the timeout; retry"
                )
            kept = await self._keep(until)
            if kept is None:
                await asyncio.sleep(backoff.next_s())
            else:
                producer = kept

    async def _keep(self, until: float) -> tuple[int, int] | None:
        """Start a session that keeps this transaction (KIP-939), and no other. Return its producer, None if it failed.

        The session's timeout does not shorten the transaction's.
        """
        request = InitProducerIdRequest(
            transactional_id=self.handle.transactional_id,
            transaction_timeout_ms=1,
            producer_id=self.handle.producer_id,
            producer_epoch=self.handle.producer_epoch,
            keep_prepared_txn=True,
        )
        response = await self._cluster.call_coordinator(
            "transaction", self.handle.transactional_id, request, 6, timeout_ms=_left_ms(until)
        )
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE and code not in ENDED_ALREADY:
            raise errors.error_for(code, f"InitProducerId of {self.handle.transactional_id!r}: {code.text}")
        return None if code is not ErrorCode.NONE else (response.producer_id, response.producer_epoch)

    async def _end_txn(self, producer: tuple[int, int], commit: bool, until: float) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.handle.transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        version = END_TXN_NEW if self.handle.transaction_version >= 2 else END_TXN_OLD
        response = await self._cluster.call_coordinator(
            "transaction", self.handle.transactional_id, request, version, timeout_ms=_left_ms(until)
        )
        return ErrorCode.of(response.error_code)

    @property
    def _timeout(self) -> str:
        limit = self.handle.timeout_ms
        return "" if limit == NO_TIMEOUT_MS else f"its timeout ({limit} ms), "

    async def _await_leaders(self, until: float) -> None:
        """Wait until each partition has a leader: Apache Kafka 4.3.1 drops the marker of a partition without one."""
        topics = sorted({span[0] for span in self.handle.spans})
        topology, waits = self._cluster.topology, self._cluster.retries.waits
        backoff = self._cluster.backoff()
        try:
            async with asyncio.timeout_at(until) as scope:
                await require_cluster(self._cluster, self.handle)
                while topics:
                    await self._cluster.refresh(topics, patient=True)
                    known = [(t, p) for t, p, _, _ in self.handle.spans if t in topology.topics]
                    if all(topology.leader(*tp) >= 0 for tp in known):
                        waits.over(self)
                        return
                    waits.waiting(self, f"the end of the prepared transaction waits: {self._without_leader()}")
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            if not scope.expired():
                raise
            why = self._cluster.unreachable or self._without_leader()
            raise errors.TimedOutError(
                f"the prepared transaction of {self.handle.transactional_id!r} could not be ended in time: {why}"
            ) from None

    def _without_leader(self) -> str:
        topology = self._cluster.topology
        spans = sorted((topic, partition) for topic, partition, _, _ in self.handle.spans if topic in topology.topics)
        without = [tp for tp in spans if topology.leader(*tp) < 0]
        topic = without[0][0] if without else ""
        return without_leader(topic, [each for name, each in without if name == topic])

    async def _find_outcome(self, wait_ms: float) -> TransactionOutcome:
        """Return how it ended: search for markers, then query the coordinator, then wait for a marker."""
        if self.handle.empty:
            return TransactionOutcome.ABORTED
        await require_cluster(self._cluster, self.handle)
        found = await settled_outcome(self._cluster, self.handle, 0)
        if found is TransactionOutcome.UNKNOWN:
            found = await self._by_coordinator() or found
        if found in (TransactionOutcome.UNKNOWN, TransactionOutcome.OPEN) and wait_ms > 0:
            found = await settled_outcome(self._cluster, self.handle, wait_ms)
        return found

    async def _by_coordinator(self) -> TransactionOutcome | None:
        request = DescribeTransactionsRequest(transactional_ids=[self.handle.transactional_id])
        response = await self._cluster.call_coordinator("transaction", self.handle.transactional_id, request)
        state = response.transaction_states[0]
        if state.error_code:
            return None
        return self.handle.ended_in(state.transaction_state, state.producer_id, state.producer_epoch)


def _left_ms(until: float) -> float:
    return max(1.0, (until - asyncio.get_running_loop().time()) * 1000)


class ResumedTransaction(Blocking[AsyncResumedTransaction]):
    """A prepared transaction that `Transaction.resume` has opened. Use as a context manager, or call `close`.

    Several processes may call it, and each call can be repeated. The first commit or abort is final. Later calls that
    agree with it succeed, and others raise an error. Leaving the `with` block only closes the connections.
    """

    def __init__(self, awaited: AsyncResumedTransaction) -> None:
        super().__init__(awaited)
        self.handle = awaited.handle
        self.options = awaited.options

    commit = blocking(AsyncResumedTransaction.commit)
    abort = blocking(AsyncResumedTransaction.abort)
    outcome = blocking(AsyncResumedTransaction.outcome)
    close = blocking(AsyncResumedTransaction.close)
