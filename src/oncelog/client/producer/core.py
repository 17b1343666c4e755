"""The core that the blocking producer and the one for asyncio share: the parts of a producer, and its transactions."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from sys import is_finalizing
from typing import Any
from weakref import WeakSet

from oncelog import errors
from oncelog.client.calls import Calls, ends_when_closed
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.guards import Guard, GuardedCondition
from oncelog.client.metrics.results import ProducerMetrics
from oncelog.client.metrics.sends import Sends
from oncelog.client.options import cluster_options
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.batch import all_done
from oncelog.client.producer.buffer import RecordBuffer
from oncelog.client.producer.completion import Completion
from oncelog.client.producer.coordinator_driver import CoordinatorDriver
from oncelog.client.producer.delivery import Delivery, Failures
from oncelog.client.producer.outcomes import require_cluster, settled_outcome
from oncelog.client.producer.partitioner import make_partitioner
from oncelog.client.producer.prepared import PreparedTransaction, TransactionOutcome
from oncelog.client.producer.routes import Routes
from oncelog.client.producer.sender import Sender
from oncelog.client.producer.sender_loop import SenderLoop
from oncelog.client.producer.transaction_manager import TransactionEnd, TransactionManager
from oncelog.client.producer.transaction_states import ManagerState
from oncelog.client.serialization.functions import Serializers
from oncelog.client.statistics import start_statistics
from oncelog.client.troubles import Troubles
from oncelog.protocol.topics import TopicPartition

log = logging.getLogger("oncelog.client.producer")


def _make_accumulator(options: Mapping[str, Any], failures: Failures, loop: asyncio.AbstractEventLoop) -> Accumulator:
    guard = GuardedCondition()
    return Accumulator(
        batch_size=options["batch_size"],
        linger_ms=options["linger_ms"],
        buffer_memory=options["buffer_memory"],
        delivery_timeout_ms=options["delivery_timeout_ms"],
        max_request_size=options["max_request_size"],
        codec=options["compression_type"],
        level=options["compression_level"],
        new_delivery=lambda tp: Delivery(tp, guard, failures.add, loop),
    )


_AT_WORK: WeakSet[ProducerCore] = WeakSet()
"""Producers that may have unsent records. A producer sends them even if its user holds no reference to it any more."""


class ProducerCore:
    """A producer on the event loop `loop`. Any thread may create it.

    `clock` (monotonic ms, callable from any thread that adds records) times lingering and expiry. Records go to
    `buffer`.
    """

    _watched = False
    """Whether to log a warning about records without an outcome when the producer or the process ends."""

    def __init__(
        self,
        options: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        cluster: ClusterClient | None = None,
    ) -> None:
        self.options = options
        self.serializers = Serializers.of(options)
        self.cluster = cluster or ClusterClient(
            options["bootstrap_servers"], what="producer", **cluster_options(options)
        )
        self.lock = Guard()
        """Guards `manager` and `accumulator`."""
        self.manager = (
            TransactionManager(
                options["transactional_id"],
                options["transaction_timeout_ms"],
                two_phase=options["transaction_two_phase_commit_enable"],
                keep=options["keep_prepared_transaction"],
            )
            if options["enable_idempotence"]
            else None
        )
        self._failures = Failures()
        self._troubles = self.cluster.troubles(log)
        self._full_buffer = Troubles(log, time.monotonic)
        self.accumulator = _make_accumulator(options, self._failures, loop)
        self._sender_loop = SenderLoop(loop, clock)
        self.sends = Sends(self.cluster.requests)
        self._routes = Routes(
            self.cluster, options, self.accumulator, self.lock, self._sender_loop, self.sends, self._troubles
        )
        self.counts = self._routes.counts
        self.learn_topic = self._routes.learn_topic
        self._coordinator = None if self.manager is None else self._make_coordinator(self.manager)
        self.buffer = RecordBuffer(
            self.accumulator,
            self.manager,
            Completion(options, self.accumulator, self.manager, self._troubles, self.cluster.backoff, self.sends),
            self.lock,
            self._sender_loop,
            partitioner=make_partitioner(options, random.randrange, self._routes.weights),
            counts=self.counts,
        )
        self.sender = Sender(
            self.cluster,
            options,
            self.buffer,
            self.accumulator,
            self.manager,
            self._sender_loop,
            routes=self._routes,
            coordinator=self._coordinator,
            sends=self.sends,
            troubles=self._troubles,
        )
        self._watched = True
        _AT_WORK.add(self)
        self._ending = 0
        """How many calls wait for the end of a transaction."""
        start_statistics(options, loop, lambda: self.closed, self.metrics)

    def __del__(self) -> None:
        """Log a warning if records are lost: no event loop refers to this producer any more, so nothing sends them."""
        if self._watched and (count := self._unacknowledged()):
            log.warning(
                "the event loop ended before %d records were acknowledged, so they may be lost; await close() on the "
                "producer, or use `async with`",
                count,
            )

    def _unacknowledged(self) -> int:
        """Return how many records have no outcome. Later calls return 0, so that they are reported once."""
        self._watched = False
        if self.closed or self.cluster.calls.forked or is_finalizing():
            return 0
        return sum(batch.count for batch in self.accumulator.incomplete())

    def _make_coordinator(self, manager: TransactionManager) -> CoordinatorDriver:
        return CoordinatorDriver(
            self.cluster,
            manager,
            self.lock,
            self._sender_loop,
            all_settled=self._all_settled,
            troubles=self._troubles,
        )

    def _all_settled(self) -> bool:
        """Return whether a transaction may end, because every batch has its outcome.

        Before transaction.version 2, every request must have its response, too. The batches of a request may be expired
        or purged, and EndTxn has another connection. If EndTxn overtook the request, a leader that does not verify
        transactions would append the records after the marker, to the next transaction (KIP-890).
        """
        may_overtake = self.manager is not None and self.manager.implicit
        return self.accumulator.empty and (may_overtake or not self.sender.waits_for_responses)

    @property
    def _calls(self) -> Calls:
        return self.cluster.calls

    @property
    def closing(self) -> bool:
        """Whether `close` has begun."""
        return self.buffer.closing

    @property
    def closed(self) -> bool:
        """Whether `close` has ended: nothing is sent any more."""
        return self._sender_loop.closed

    def note_full_buffer(self, *, freed: bool) -> None:
        """Log if `send` waits long for memory (any thread)."""
        if freed:
            self._full_buffer.over("buffer")
            return
        why = self._troubles.why() or "the brokers acknowledge records more slowly than the program sends them"
        size = self.options["buffer_memory"]
        self._full_buffer.waiting("buffer", f"send() waits, because buffer_memory = {size} is used up: {why}")

    async def _wait_until(self, condition: Callable[[], bool], timeout_ms: float, what: str) -> None:
        """Wait for a condition. Raises TimedOutError that names `what`."""
        self._sender_loop.wake()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not condition():
                    await self._sender_loop.next_change()
        except TimeoutError:
            why = self._troubles.why()
            raise errors.TimedOutError(
                f"{what} did not complete within {timeout_ms:.0f} ms{why and f': {why}'}"
            ) from self._troubles.cause()

    def _timeout_ms(self, timeout_ms: float | None) -> float:
        """Return a call's timeout, by default max.block.ms."""
        limit: float = self.options["max_block_ms"] if timeout_ms is None else timeout_ms
        return limit

    def metrics(self) -> ProducerMetrics:
        """Return the metrics (any thread)."""
        limit = self.options["buffer_memory"]
        with self.lock.lock:  # code that interrupts another call may read metrics
            used, batches = self.accumulator.used, self.accumulator.incomplete()
        return self.sends.metrics(
            self.cluster.metrics(),
            buffer_total_bytes=limit,
            buffer_available_bytes=max(0, limit - used),
            buffered_records=sum(batch.count for batch in batches),
            waiting_threads=self.buffer.memory_waiters,
        )

    # -- transactions ---------------------------------------------------------------------------------------------

    def _transactional(self) -> TransactionManager:
        if self.manager is None or not self.manager.transactional:
            raise errors.UsageError("transactions need the option transactional_id, which the producer does not have")
        return self.manager

    @ends_when_closed
    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Get producer id and epoch. Abort the open transaction of the former producer, or keep it (KIP-939)."""
        manager = self._transactional()
        with self.lock:
            manager.initialize()
        initialized = self._timeout_ms(timeout_ms)
        await self._wait_until(lambda: manager.state is not ManagerState.INITIALIZING, initialized, "init_transactions")
        manager.require_no_error()

    def begin(self) -> None:
        """Begin a transaction (any thread)."""
        manager = self._transactional()
        self.buffer.check_open()
        with self.lock:
            manager.begin()

    def add_offsets(self, group: GroupMetadata, offsets: Mapping[TopicPartition, tuple[int, int, str]]) -> None:
        """Commit offsets of a group with the transaction (any thread)."""
        self.buffer.check_open()
        with self.lock:
            self._transactional().add_offsets(group, offsets)
        self._sender_loop.wake()

    @ends_when_closed
    async def commit(self, timeout_ms: float | None = None) -> None:
        """Commit. After TimedOutError, the outcome is not known: commit again."""
        manager = self._transactional()
        with self.lock:
            end = manager.begin_commit()
        await self._wait_for(end, manager, timeout_ms)

    @ends_when_closed
    async def abort(self, timeout_ms: float | None = None) -> None:
        """Abort: drop the batches that were not sent, and wait for the responses to the others."""
        await self._abort(timeout_ms)

    async def _abort(self, timeout_ms: float | None) -> None:
        manager = self._transactional()
        with self.buffer.settling() as completion:
            end = manager.begin_abort()
            completion.drop_undrained(errors.AbortableError("the transaction was aborted"))
        await self._wait_for(end, manager, timeout_ms)

    def fail_transaction(self, why: str) -> None:
        """Make the transaction in progress abortable, so that a commit fails (any thread)."""
        with self.lock:
            self._transactional().fail_with(errors.AbortableError(why))
        self._sender_loop.wake()

    async def _wait_for(self, end: TransactionEnd, manager: TransactionManager, timeout_ms: float | None) -> None:
        self.accumulator.flushing += 1
        self._ending += 1
        try:
            await self._wait_until(lambda: end.done, self._timeout_ms(timeout_ms), "commit" if end.commit else "abort")
            if manager.end is end:
                manager.end = None
        finally:
            self._ending -= 1
            self.accumulator.flushing -= 1
            self._sender_loop.changed()  # `close` may wait for this
        if end.error is not None:
            raise end.error.with_traceback(None)

    @ends_when_closed
    async def prepare(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Wait until the whole transaction is acknowledged. Return the handle that ends it. May be called again."""
        manager = self._transactional()
        with self.lock:
            manager.begin_prepare()
            self.accumulator.flushing += 1
        try:
            await self._wait_until(
                lambda: manager.state is not ManagerState.PREPARED or (self.accumulator.empty and manager.joined),
                self._timeout_ms(timeout_ms),
                "prepare",
            )
        finally:
            self.accumulator.flushing -= 1
        manager.require_no_error()
        return manager.prepared(self.cluster.topology.cluster_id)

    @ends_when_closed
    async def complete(self, handle: PreparedTransaction | str | None, timeout_ms: float | None = None) -> bool:
        """Commit the prepared or kept transaction if it is that of the handle, otherwise abort it.

        Return whether the transaction of the handle is committed.
        """
        manager = self._transactional()
        wanted = None if handle is None else PreparedTransaction.of(handle)
        if wanted is not None:
            await require_cluster(self.cluster, wanted)
        with self.lock:
            decision = manager.decision_for(wanted)
        if decision is not None:
            await (self.commit if decision else self.abort)(timeout_ms)
            return decision
        if wanted is None:
            return False
        found = await settled_outcome(self.cluster, wanted, 0)
        if found is TransactionOutcome.ABORTED:
            raise errors.TransactionAbortedError(
                f"the prepared transaction of {wanted.transactional_id!r} is not committed: its timeout, an "
                "administrator, another process with the handle, or a producer without keep_prepared_transaction has "
                "aborted it"
            )
        return found is TransactionOutcome.COMMITTED

    # -- ends -----------------------------------------------------------------------------------------------------

    @ends_when_closed
    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send all records now, and wait for the responses. Errors are in the records' futures."""
        await self._flush(timeout_ms)

    async def _flush(self, timeout_ms: float | None) -> None:
        with self.lock:
            batches = deque(self.accumulator.incomplete())
            self.accumulator.flushing += 1
        try:
            timeout = float("inf") if timeout_ms is None else timeout_ms
            await self._wait_until(lambda: all_done(batches), min(timeout, 2**31), "flush")
        finally:
            self.accumulator.flushing -= 1

    def purge(self, *, in_queue: bool, in_flight: bool) -> int:
        """Drop the records that wait, those in flight, or both. Return their number."""
        self.buffer.check_open()
        return self.sender.purge(in_queue=in_queue, in_flight=in_flight)

    async def close(self, timeout_ms: float | None = None, *, detach: bool = False) -> None:
        """Send the remaining records, abort an open transaction (unless `detach`, or it is prepared), close the
        connections.

        A commit or abort that another task or thread waits for may complete first. If that commit fails, close()
        aborts the transaction in the time that is left. Every other call in progress ends with ClientClosedError.
        Without transactions, raise the first failure that no caller has retrieved.
        """
        if self.closed:
            return
        self.buffer.close()
        timeout = self.options["delivery_timeout_ms"] if timeout_ms is None else timeout_ms
        manager = self.manager
        transactional = manager is not None and manager.transactional
        until = self._sender_loop.now_ms() + timeout
        try:
            if self._ending:
                with contextlib.suppress(errors.TimedOutError):  # the call in progress raises the error
                    await self._wait_until(lambda: not self._ending, timeout, "close")
                timeout = max(0, until - self._sender_loop.now_ms())
            if manager is None or not transactional:
                with contextlib.suppress(errors.TimedOutError):  # the remaining records fail, and close() raises that
                    await self._flush(timeout)
            elif self._ending:
                pass  # the timeout has expired before the abort
            elif detach:
                await self._flush(timeout)
            elif manager.producer_id < 0:
                pass  # `init_transactions` has failed, so there is no transaction
            elif manager.state in (ManagerState.IN_TRANSACTION, ManagerState.ABORTABLE_ERROR):
                await self._abort(timeout)
        finally:
            await self.sender.close()
        failure = None if transactional else self._failures.first_unseen()
        if failure is not None:
            raise failure


def _warn_of_unsent() -> None:
    """At the end of the process, log a warning if records are not acknowledged."""
    count = sum(core._unacknowledged() for core in _AT_WORK)
    if count:
        log.warning(
            "the process ends before %d records are acknowledged, so they may be lost; call close() on the producer",
            count,
        )


os.register_at_fork(after_in_child=_AT_WORK.clear)
atexit.register(_warn_of_unsent)
