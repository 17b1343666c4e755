"""The driver under both producers: turns the accumulator's batches into requests and answers into outcomes.

Runs on one event loop; records may be added from any thread. A turn of the sender: expire what is too old, settle
sequences in doubt, drain, send. Beside them run the talk with coordinators (`conversation`) and the search for leaders
and connections (`routes`). Turns are callbacks, not a task: one runs when a batch fills, an answer comes, or a time is
reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import index as index_of
from typing import Any

from oncelog import errors
from oncelog.client import produce
from oncelog.client.accumulator import Accumulator
from oncelog.client.backoff import Backoff
from oncelog.client.batch import Batch, Headers, TopicPartition, all_done
from oncelog.client.cluster import LEADER_MOVED, ClusterClient
from oncelog.client.conversation import Conversation
from oncelog.client.delivery import Delivery, RecordFuture
from oncelog.client.options import cluster_options
from oncelog.client.partitioner import make_partitioner
from oncelog.client.routes import Routes
from oncelog.client.transaction_manager import State, TransactionManager
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode


class Sender:
    """Everything of a producer but its face. `loop` is where it runs; made on any thread.

    `clock` (monotonic ms, callable from any thread that adds records) times lingering and expiry.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        cluster: ClusterClient | None = None,
    ) -> None:
        self.options = options
        self.loop = loop
        self.now_ms = clock
        self.cluster = cluster or ClusterClient(options["bootstrap_servers"], **cluster_options(options))
        self.lock = threading.Lock()
        self._guard = threading.Condition()
        self._memory = threading.Condition(self.lock)
        self._memory_waiters = 0
        self.manager = (
            TransactionManager(options["transactional_id"], options["transaction_timeout_ms"])
            if options["enable_idempotence"]
            else None
        )
        self.accumulator = Accumulator(
            batch_size=options["batch_size"],
            linger_ms=options["linger_ms"],
            buffer_memory=options["buffer_memory"],
            delivery_timeout_ms=options["delivery_timeout_ms"],
            max_request_size=options["max_request_size"],
            codec=options["compression_type"],
            level=options["compression_level"],
            new_delivery=lambda tp: Delivery(tp, self._guard),
        )
        self.partitioner = make_partitioner(options["partitioner"], options["batch_size"], random.randrange)
        self.routes = Routes(self)
        self.counts = self.routes.counts
        self.learn_topic = self.routes.learn_topic
        self._conversation = None if self.manager is None else Conversation(self, self.manager)
        self._acks: int = options["acks"]
        self._max_in_flight: int = options["max_in_flight_requests_per_connection"]
        self._backoff = (options["retry_backoff_ms"], options["retry_backoff_max_ms"])
        self._in_flight: dict[int, int] = {}
        self._on_wire: dict[Batch, None] = {}
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.closed = False

    # -- adding records (any thread) ------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
    ) -> RecordFuture | None:
        """Add a record; None if it has to wait, for metadata or memory. KafkaError, UsageError."""
        count = self.counts.get(topic)
        if count is None or self.closed:
            self._check_open()
            return None
        if partition is None:
            partition = self.partitioner(topic, key, value, count)
        if not 0 <= partition < count:
            raise errors.UnknownTopicError(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}")
        tp = (topic, partition)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif not 0 <= index_of(timestamp) < 1 << 62:
            raise errors.UsageError(f"timestamp = {timestamp}: it is in ms since the epoch, and not negative")
        with self.lock:
            self._check_open()  # again: closing fails what is there, and this would come behind it
            if self.manager is not None:
                self.manager.may_append(tp)
            added = self.accumulator.append(tp, key, value, timestamp, headers, self.now_ms())
        if added is None:
            self.wake()
            return None
        batch, index, wake = added
        if wake:
            self.wake()
        return RecordFuture(batch.delivery, index)

    def append_encoded(self, tp: TopicPartition, data: bytes | bytearray) -> Batch | None:
        """Add a batch that is encoded already; None while memory is used up."""
        with self.lock:
            self._check_open()
            if self.manager is not None:
                self.manager.may_append(tp)
            batch = self.accumulator.add_encoded(tp, data, self.now_ms())
        self.wake()
        return batch

    def _check_open(self) -> None:
        if self.closed:
            raise errors.UsageError("the producer is closed")

    def wait_for_memory(self, timeout: float) -> bool:
        """Block (not the loop's own thread) until some memory is freed; False when time is up."""
        with self.lock:
            self._memory_waiters += 1
            try:
                return self._memory.wait(timeout)
            finally:
                self._memory_waiters -= 1

    async def memory_freed(self, timeout: float) -> bool:
        """The same on the loop."""
        waiter = self._waiter()
        return bool((await asyncio.wait([waiter], timeout=timeout))[0])

    # -- turns ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have a turn run soon."""
        if self._scheduled:
            return
        self._scheduled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing can be sent any more
            self.loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.closed:
            return
        now = self.now_ms()
        outcomes: list[Callable[[], None]] = []
        with self.lock:
            self._expire(now, outcomes)
            if self.manager is not None:
                for batch in self.manager.resolve():
                    self._give_up(batch, outcomes)
                self._drop_for_error(outcomes)
            manager = self.manager
            drained = self.accumulator.drain(
                now,
                self.cluster.topology.leader,
                self._may_send,
                (lambda batch: False) if manager is None else manager.holds_back,
                _unnumbered if manager is None else manager.assign,
                mute=self._max_in_flight == 1,
            )
            more = bool(drained.by_node) and self.accumulator.waiting
        for outcome in outcomes:
            outcome()
        if outcomes:
            self.changed()
        for node, batches in drained.by_node.items():
            self._send(node, batches)
        if more:
            self.wake()  # at most one batch a partition went: more may be under way at once
        for topic in drained.unknown:
            self.routes.find_leaders(topic)
        if self._conversation is not None:
            self._conversation.go_on()
        expiry = self.accumulator.next_expiry_ms()
        times = [at for at in (drained.next_ms, expiry) if at is not None]
        if times:
            self._set_timer(max(min(times), now), now)

    def _set_timer(self, at: int, now: int) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later((at - now) / 1000, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._turn()

    def _expire(self, now: int, outcomes: list[Callable[[], None]]) -> None:
        for batch in self.accumulator.expire(now, self._on_wire):
            tp = batch.tp
            timeout = self.options["delivery_timeout_ms"]
            error: errors.TimedOutError
            if batch.in_doubt or batch in self._on_wire:
                error = errors.DeliveryTimeoutError(
                    f"{batch.count} records for {tp[0]}-{tp[1]} were sent but not acknowledged in {timeout} ms "
                    "(delivery_timeout_ms): they may or may not be in the log"
                )
            else:
                why = "were refused again and again" if batch.attempts else "were not sent"
                error = errors.TimedOutError(
                    f"{batch.count} records for {tp[0]}-{tp[1]} {why} in {timeout} ms (delivery_timeout_ms): "
                    f"they are not in the log{self.cluster.unreachable and f'; {self.cluster.unreachable}'}"
                )
            if self.manager is not None:
                self.manager.expired(batch, error)
            self._finish(batch, error, outcomes)

    def _give_up(self, batch: Batch, outcomes: list[Callable[[], None]]) -> None:
        """A batch whose numbers are void, and of which a copy may be in the log: with others it might be so twice."""
        self.accumulator.withdraw(batch)
        error = errors.DeliveryTimeoutError(
            f"{batch.count} records for {batch.tp[0]}-{batch.tp[1]} were sent, the answer was lost, and the sequence "
            "numbers cannot be used any further: they may or may not be in the log"
        )
        self._finish(batch, error, outcomes)

    def _drop_for_error(self, outcomes: list[Callable[[], None]]) -> None:
        """After an error, what was never sent is not sent any more."""
        manager = self.manager
        if manager is None or manager.error is None or not self.accumulator.waiting:
            return
        if manager.state in (State.FATAL_ERROR, State.ABORTABLE_ERROR):
            undrained_only = manager.state is State.ABORTABLE_ERROR
            for batch in self.accumulator.take_waiting(undrained_only=undrained_only):
                self._finish(batch, manager.error, outcomes)

    def _finish(
        self,
        batch: Batch,
        error: BaseException | None,
        outcomes: list[Callable[[], None]],
        offset: int = -1,
        at: int = -1,
    ) -> None:
        """Settle a batch: memory now, its futures when the lock is free again."""
        if batch.done:
            return
        self.accumulator.release(batch)
        if self._memory_waiters:
            self._memory.notify_all()
        delivery = batch.delivery
        outcomes.append((lambda: delivery.complete(offset, at)) if error is None else (lambda: delivery.fail(error)))

    # -- sending --------------------------------------------------------------------------------------------------

    def _may_send(self, node: int) -> bool:
        if self._in_flight.get(node, 0) >= self._max_in_flight:
            return False
        connection = self.routes.to(node)
        if connection is None:
            return False
        if connection.congested:
            connection.on_writable(self.wake)
            return False
        return True

    def _send(self, node: int, sent: list[Batch]) -> None:
        connection = self.cluster.open_connection(node, "produce")
        try:
            if connection is None:
                raise ConnectionLostError(f"broker {node} hung up")
            request, version = produce.build(
                [(batch, batch.wire()) for batch in sent], self.cluster.topology, connection, self.options, self.manager
            )
            if self._acks == 0:
                connection.send_unanswered(request, version)
                self._settle([(batch, ErrorCode.NONE, "", produce.UNANSWERED) for batch in sent])
                return
            future = connection.send(request, version)
        except ConnectionLostError as error:
            self._settle([(batch, ErrorCode.NETWORK_EXCEPTION, str(error), produce.UNANSWERED) for batch in sent])
            return
        except NoCommonVersionError as error:
            self._settle([(batch, ErrorCode.UNSUPPORTED_VERSION, str(error), produce.UNANSWERED) for batch in sent])
            return
        except Exception as error:  # noqa: BLE001 whatever it is: else their futures would never hear of an outcome
            self._settle([(batch, ErrorCode.UNKNOWN_SERVER_ERROR, repr(error), produce.UNANSWERED) for batch in sent])
            return
        self._in_flight[node] = self._in_flight.get(node, 0) + 1
        self._on_wire.update(dict.fromkeys(sent))
        future.add_done_callback(lambda done: self._answered(node, sent, done))

    def _answered(self, node: int, sent: list[Batch], future: asyncio.Future[Any]) -> None:
        self._in_flight[node] -= 1
        for batch in sent:
            self._on_wire.pop(batch, None)
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            answers = produce.match(sent, future.result(), self.cluster.topology)
        else:
            answers = [(batch, ErrorCode.NETWORK_EXCEPTION, str(error), produce.UNANSWERED) for batch in sent]
        for batch, code, _, _ in answers:
            batch.in_doubt |= code in produce.MAY_BE_APPENDED
        self._settle(answers)

    def _settle(self, answers: Iterable[produce.Answer]) -> None:
        """Work the answers of a request in; some batches are done, others go again."""
        now = self.now_ms()
        outcomes: list[Callable[[], None]] = []
        stale: set[str] = set()
        with self.lock:
            for batch, code, text, where in answers:
                self.accumulator.unmute(batch.tp)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    if self.manager is not None:
                        self.manager.delivered(batch, where.base_offset)
                    self._finish(batch, None, outcomes, where.base_offset, where.append_time)
                    continue
                if code in LEADER_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                    stale.add(batch.tp[0])
                if batch.done:
                    continue
                if self._can_retry(batch, code, where.log_start_offset):
                    delay = Backoff(*self._backoff)
                    delay.failures = batch.attempts
                    self.accumulator.requeue(batch, now + int(delay.next_ms(random.random())))
                    continue
                error = errors.error_for(code, f"{batch.tp[0]}-{batch.tp[1]}: {text or code.text}")
                if self.manager is not None:
                    self.manager.failed(batch, error)
                self._finish(batch, error, outcomes)
        for outcome in outcomes:
            outcome()
        for topic in stale:
            self.cluster.topology.forget(topic)
        if outcomes:
            self.changed()
        self.wake()

    def _can_retry(self, batch: Batch, code: ErrorCode, log_start_offset: int) -> bool:
        if batch.attempts >= self.options["retries"]:
            return False
        if self.manager is None:
            return code.retriable
        if self.manager.state is State.FATAL_ERROR:
            return False
        return self.manager.can_retry(batch, code, log_start_offset)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it is done or this is closed."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def changed(self) -> None:
        """Something that `until` may wait for has happened."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _waiter(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append(waiter)
        return waiter

    async def until(self, condition: Callable[[], bool], timeout_ms: float, what: str) -> None:
        """Wait for a condition; TimedOutError naming `what`."""
        self.wake()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not condition():
                    await self._waiter()
        except TimeoutError:
            why = self.cluster.unreachable
            raise errors.TimedOutError(f"{what} is not done in {timeout_ms:.0f} ms{why and f': {why}'}") from None

    # -- what the faces offer -------------------------------------------------------------------------------------

    def _transactional(self) -> TransactionManager:
        if self.manager is None or not self.manager.transactional:
            raise errors.UsageError("transactions need the option transactional_id")
        return self.manager

    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Get producer id and epoch, ending whatever a predecessor with this transactional id left open."""
        manager = self._transactional()
        with self.lock:
            manager.initialize()
        timeout = self.options["max_block_ms"] if timeout_ms is None else timeout_ms
        await self.until(lambda: manager.state is not State.INITIALIZING, timeout, "init_transactions")
        manager.require_no_error()

    def begin(self) -> None:
        """Begin a transaction (any thread)."""
        manager = self._transactional()
        with self.lock:
            manager.begin()

    async def commit(self, timeout_ms: float | None = None) -> None:
        """Commit. After TimedOutError the outcome is open: commit again."""
        manager = self._transactional()
        with self.lock:
            manager.begin_commit()
        await self._end(manager, State.COMMITTING, "commit", timeout_ms)

    async def abort(self, timeout_ms: float | None = None) -> None:
        """Abort: what waits is dropped, what is under way is waited for."""
        manager = self._transactional()
        outcomes: list[Callable[[], None]] = []
        with self.lock:
            manager.begin_abort()
            for batch in self.accumulator.take_waiting(undrained_only=True):
                self._finish(batch, errors.AbortableError("the transaction was aborted"), outcomes)
        for outcome in outcomes:
            outcome()
        await self._end(manager, State.ABORTING, "abort", timeout_ms)

    async def _end(self, manager: TransactionManager, ending: State, what: str, timeout_ms: float | None) -> None:
        timeout = self.options["max_block_ms"] if timeout_ms is None else timeout_ms
        self.accumulator.flushing += 1
        try:
            await self.until(lambda: manager.state not in (ending, State.INITIALIZING), timeout, what)
            manager.untold = None
        finally:
            self.accumulator.flushing -= 1
        manager.require_no_error()

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send everything now and wait for every answer; failures are in the records' futures."""
        with self.lock:
            batches = deque(self.accumulator.incomplete())
            self.accumulator.flushing += 1
        try:
            timeout = float("inf") if timeout_ms is None else timeout_ms
            await self.until(lambda: all_done(batches), min(timeout, 2**31), "flush")
        finally:
            self.accumulator.flushing -= 1

    async def close(self, timeout_ms: float | None = None, *, detach: bool = False) -> None:
        """Send what is left, abort an open transaction (unless `detach`), hang up."""
        if self.closed:
            return
        timeout = self.options["delivery_timeout_ms"] if timeout_ms is None else timeout_ms
        manager = self.manager
        try:
            if manager is not None and manager.transactional and not detach:
                if manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                    await self.abort(timeout)
            else:
                await self.flush(timeout)
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        with self.lock:
            self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await self.cluster.close()
        outcomes: list[Callable[[], None]] = []
        with self.lock:
            for batch in self.accumulator.incomplete():
                self._finish(batch, errors.ConnectionFailedError("the producer was closed before the answer"), outcomes)
        for outcome in outcomes:
            outcome()
        self.changed()


def _unnumbered(batch: Batch) -> None:
    """Idempotence is off: a drained batch gets no sequence."""
    batch.in_retry = False
