"""The driver under both producers: turns the accumulator's batches into requests and answers into outcomes.

Runs on one event loop; records may be added from any thread. A turn of the sender: expire what is too old, settle
sequences in doubt, drain, send. Beside them run the talk with coordinators (`coordinator_driver`) and the search for
leaders and connections (`routes`). Turns are callbacks, not a task: one runs when a batch fills, an answer comes, or a
time is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from operator import index as index_of
from typing import Any

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.options import cluster_options
from oncelog.client.producer import produce_requests as produce
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.completion import Completion
from oncelog.client.producer.coordinator_driver import CoordinatorDriver
from oncelog.client.producer.delivery import Delivery, Failures, RecordFuture
from oncelog.client.producer.partitioner import make_partitioner
from oncelog.client.producer.routes import Routes
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.records import LAST_TIMESTAMP, TIMESTAMPS
from oncelog.client.types import Headers, TopicPartition
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode


class NotAddedError(Exception):
    """A record could not be added as it is; `partition` was chosen for it, and stays so: who chooses is asked once."""

    def __init__(self, partition: int) -> None:
        self.partition = partition


class NoRoomError(NotAddedError):
    """Memory is used up, as of so many `releases`."""

    def __init__(self, partition: int, releases: int) -> None:
        super().__init__(partition)
        self.releases = releases


class SendLoop:
    """What turns records into requests. `loop` is where it runs; made on any thread.

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
        self.cluster = cluster or ClusterClient(
            options["bootstrap_servers"], what="producer", **cluster_options(options)
        )
        self.lock = threading.Lock()
        self._guard = threading.Condition()
        self._memory = threading.Condition(self.lock)
        self._memory_waiters = 0
        self._releases = 0
        """How often memory was freed: who found none sees under the lock whether there is some since."""
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
            new_delivery=lambda tp: Delivery(tp, self._guard, self.failures.add),
        )
        self.failures = Failures()
        self.completion = Completion(options, self.accumulator, self.manager, self.why, random.random)
        self.routes = Routes(self)
        self.partitioner = make_partitioner(options, random.randrange, self.routes.weights)
        self.counts = self.routes.counts
        self.learn_topic = self.routes.learn_topic
        self._coordinator = None if self.manager is None else CoordinatorDriver(self, self.manager)
        self._acks: int = options["acks"]
        self._max_in_flight: int = options["max_in_flight_requests_per_connection"]
        self._in_flight: dict[int, int] = {}
        self._on_wire: dict[Batch, None] = {}
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.closing = self.closed = False
        """`closing`: nothing is added any more; `closed`: nothing is sent any more."""
        self._ending = 0
        """How many calls wait for the end of a transaction."""

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
        """Add a record. Return None if the metadata does not contain its topic or partition yet.

        Raises KafkaError and UsageError. Raises NoRoomError, or NotAddedError if no batch takes a part of the record as
        it is.
        """
        count = self.counts.get(topic)
        if count is None or self.closing:
            self.check_open()
            return None
        if partition is None:
            partition = self.partitioner(topic, key, value, count)
            if not 0 <= partition < count:
                raise errors.UsageError(f"the partitioner chose {partition} of {count} partitions of topic {topic!r}")
        elif not 0 <= (partition := index_of(partition)) < count:
            if partition < 0:
                raise errors.UsageError(f"partition = {partition}: it must not be negative")
            return None
        tp = (topic, partition)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif not 0 <= index_of(timestamp) <= LAST_TIMESTAMP:
            raise errors.UsageError(f"timestamp = {timestamp}: {TIMESTAMPS}")
        with self.lock:
            self.check_open()  # again: `close` fails the records already there, and would miss this one
            if self.manager is not None:
                self.manager.may_append(tp)
            try:
                added = self.accumulator.append(tp, key, value, timestamp, headers, self.now_ms())
            except (AttributeError, TypeError, ValueError) as error:
                raise NotAddedError(partition) from error
            releases = self._releases
        if added is None:
            self.wake()
            raise NoRoomError(partition, releases)
        batch, index, wake = added
        if wake:
            self.wake()
        return RecordFuture(batch.delivery, index, timestamp)

    def append_encoded(self, tp: TopicPartition, data: bytes | bytearray) -> Batch:
        """Add a batch that is encoded already; NoRoomError."""
        with self.lock:
            self.check_open()
            if self.manager is not None:
                self.manager.may_append(tp)
            batch = self.accumulator.add_encoded(tp, data, self.now_ms())
            releases = self._releases
        self.wake()
        if batch is None:
            raise NoRoomError(tp[1], releases)
        return batch

    def check_open(self) -> None:
        """Raise ClientClosedError after `close` has begun. Any thread may call this."""
        if self.closing:
            raise errors.ClientClosedError("the producer is closed")

    def wait_for_memory(self, timeout: float, releases: int) -> bool:
        """Block (not the loop's own thread) until memory is freed behind so many releases; False when time is up."""
        with self.lock:
            self._memory_waiters += 1
            try:
                return self._memory.wait_for(lambda: self._releases != releases, timeout)
            finally:
                self._memory_waiters -= 1

    async def memory_freed(self, timeout: float) -> bool:
        """The same on the loop, where nothing is freed between a refusal and this."""
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
        manager = self.manager
        with self._settling() as settlement:
            settlement.expire(now, self._on_wire)
            settlement.resolve()
            drained = self.accumulator.drain(
                now,
                self.cluster.topology.leader,
                self._may_send,
                (lambda batch: False) if manager is None else manager.holds_back,
                _unnumbered if manager is None else manager.assign,
                mute=self._max_in_flight == 1,
            )
            more = bool(drained.by_node) and self.accumulator.waiting
        for node, batches in drained.by_node.items():
            self._send(node, batches)
        if more:
            self.wake()  # at most one batch a partition went: more may be under way at once
        for topic in drained.unknown:
            self.routes.find_leaders(topic)
        if self._coordinator is not None:
            self._coordinator.go_on()
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

    # -- sending --------------------------------------------------------------------------------------------------

    def _may_send(self, node: int) -> bool:
        connection = None
        if self._in_flight.get(node, 0) < self._max_in_flight:
            connection = self.routes.to(node)
        ready = connection is not None and not connection.congested
        if connection is not None and not ready:
            connection.on_writable(self.wake)
        self.routes.note(node, ready=ready)
        return ready

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
        with self._settling() as settlement:
            stale = settlement.answers(self.now_ms(), answers)
        for topic in stale:
            self.cluster.topology.forget(topic)
        self.wake()

    @contextlib.contextmanager
    def _settling(self) -> Iterator[Completion]:
        """The settlement, under the lock; those who wait for outcomes or memory are told when the lock is free."""
        with self.lock:
            yield self.completion
            outcomes = self.completion.take()
            if outcomes:
                self._releases += 1
                if self._memory_waiters:
                    self._memory.notify_all()
        for outcome in outcomes:
            outcome()
        if outcomes:
            self.changed()

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

    def why(self) -> str:
        """What is known of a broker that is wanted and cannot be reached; empty if there is no such."""
        talk = "" if self._coordinator is None else self._coordinator.trouble
        return self.cluster.unreachable or talk or next(iter(self.routes.trouble.values()), "")

    async def until(self, condition: Callable[[], bool], timeout_ms: float, what: str) -> None:
        """Wait for a condition; TimedOutError naming `what`."""
        self.wake()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not condition():
                    await self._waiter()
        except TimeoutError:
            why = self.why()
            raise errors.TimedOutError(f"{what} is not done in {timeout_ms:.0f} ms{why and f': {why}'}") from None

    def _begin_closing(self) -> None:
        """Reject new records from now on, and wake up the sends that wait for memory."""
        with self.lock:
            self.closing = True
            self._releases += 1
            self._memory.notify_all()
        self.changed()

    async def _hang_up(self) -> None:
        with self.lock:
            self.closing = self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        on_wire = dict(self._on_wire)  # closing the connections answers what is under way
        await self.cluster.close()
        with self._settling() as settlement:
            settlement.drop_all(on_wire)
        self.changed()


def _unnumbered(batch: Batch) -> None:
    """Idempotence is off: a drained batch gets no sequence."""
    batch.in_retry = False
