"""The blocking consumer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog import errors
from oncelog.client.blocking import Blocking, blocking, on_loop
from oncelog.client.consumer._shared import ConsumerBase
from oncelog.client.consumer.asynchronous import Consumer as Awaited
from oncelog.client.consumer.rebalance import Listener
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.records import ms
from oncelog.client.types import ConsumerRecord
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format

__all__ = ["Consumer", "ConsumerRecord", "GroupMetadata", "OffsetAndMetadata"]

T = TypeVar("T")

_CALLS: ContextVar[SimpleQueue[Callable[[], object] | None]] = ContextVar("calls")
"""The queue of functions that the loop passes to the thread that waits for the current task."""


class Consumer(ConsumerBase, Blocking[Awaited]):
    """Read records as a member of a group (`subscribe`) or without one (`assign`), as Kafka's KafkaConsumer does.

        with Consumer("localhost:9092", group_id="etl", isolation_level="read_committed") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.value)

    Use it as a context manager, or call `close`. `bootstrap_servers` is "HOST:PORT,..." or a list of such strings.
    Options have Kafka's names with `_` for `.`. `config` takes a mapping with the dotted names. Unlike Kafka's default,
    enable_auto_commit is False: call `commit`, or commit in a transaction with `Producer.send_offsets`.

    A partition is a pair (topic, number). Positions and committed offsets are those of the next record to read.
    Heartbeats are sent in the background. One thread at a time may use a consumer, except for `wakeup`. Timeouts are
    in seconds. Errors are in `oncelog.errors`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(Awaited(bootstrap_servers, config, **options))
        self.options = self._awaited.options
        self._started = self._awaited._start(self._thread.loop, self._call_listener)

    def _serve(self, work: Coroutine[Any, Any, T], give_back: Callable[[T], None] = lambda _: None) -> T:
        """Run a coroutine that may call the user's listeners. They run in this thread and may use the consumer.

        An interrupt (Ctrl-C, or an exit in a signal handler) may arrive after the coroutine has returned. The caller
        then does not get the result, so `give_back` gets it.
        """
        calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

        results: list[T] = []

        async def run() -> None:
            _CALLS.set(calls)
            try:
                results.append(await work)
            finally:
                calls.put(None)

        async def undo() -> None:
            await self._core.polls.ended()
            for result in results:
                give_back(result)

        self._thread.refuse_wait(work)
        try:
            runner = self._thread.start(run())
        except errors.UsageError:
            work.close()
            raise
        try:
            while (call := calls.get()) is not None:
                call()
        except BaseException:
            runner.cancel()
            self._thread.run(undo())
            raise
        try:
            runner.result()
        except concurrent.futures.CancelledError:
            raise errors.ClientClosedError("the consumer was closed during this call; create a new one") from None
        return results[0]

    async def _call_listener(self, listener: Listener, partitions: list[TopicPartition]) -> None:
        """Call a listener in the thread that waits for this task, and wait until it has returned."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def call() -> None:
            failure: Exception | None = None
            try:
                if isinstance(result := listener(partitions), Coroutine):
                    result.close()
                    raise errors.UsageError(
                        "a listener is a coroutine function; use oncelog.aio.Consumer, or a plain function"
                    )
            except Exception as error:  # noqa: BLE001 - `poll` raises it
                failure = error
            loop.call_soon_threadsafe(finish, failure)

        _CALLS.get().put(call)
        await done

    def close(self, timeout: float = 30.0) -> None:
        """Leave the group and close the connections, within `timeout` seconds.

        With enable_auto_commit, commit the consumed offsets first. Then call the listener `on_revoked`. A call that is
        in progress in another thread raises ClientClosedError.
        """
        self._serve(self._core.close(ms(timeout), threading.get_ident()))

    # -- what to read ---------------------------------------------------------------------------------------------

    subscribe = on_loop(Awaited.subscribe)
    assign = on_loop(Awaited.assign)

    def unsubscribe(self) -> None:
        """Leave the group, and remove all assigned partitions."""
        self._serve(self._core.unsubscribe())

    # -- reading --------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next records, as soon as there are any. Return an empty list after `timeout` seconds.

        With `timeout` None, wait without limit. `max_records` limits the number of records (default: max_poll_records,
        500). The returned records count as consumed: `position` is after them, and `commit` and auto-commit include
        them. Call `poll` at least every max_poll_interval_ms (5 minutes), or the consumer leaves its group.

        If a deserializer fails, return the records before that record. The next call raises SerializationError, again
        and again until you seek past the record. If the schema registry does not answer, it raises RegistryError.

        Raises UsageError without a subscription or assignment, and WakeupError after `wakeup`. Raises FencedMemberError
        if another consumer has the same group_instance_id. Raises OffsetOutOfRangeError if auto_offset_reset is "none"
        and a partition has no valid position. An error of a listener is raised unchanged.
        """
        return self._core.count(self._poll(timeout, max_records))

    def _poll(self, timeout: float | None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next deserialized records, which are not counted yet."""
        core, deserializers = self._core, self._core.deserializers
        records = self._serve(core.poll(ms(timeout), max_records), lambda found: core.iterate(found).stop())
        if deserializers is None or not records:
            return records
        iteration = core.iterate(records)
        try:
            return iteration.keep(*deserializers.deserialize(records))
        finally:
            self._thread.settle(iteration.stop)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records, and wait for new ones without limit.

        The position is after the current record. So if the loop ends early, the next loop continues with the next
        record. A seek, pause or unassignment inside the loop applies to the next record. `close` inside the loop ends
        it. If another thread closes the consumer, the loop raises ClientClosedError.
        """
        self._core.polls.check()
        while self._core.loop_continues(threading.get_ident()):
            records = self._poll(1.0)
            if not records:
                continue
            iteration = self._core.iterate(records, count=True)
            try:
                yield from iteration
            finally:
                self._thread.settle(iteration.stop)

    def tables(
        self,
        *,
        timeout: float | None = None,
        headers: bool = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> Iterator[pa.Table]:
        """Yield Arrow tables of records. Needs `oncelog[arrow]`.

        The columns are key, value, topic, partition, offset, timestamp and timestampType, and with `headers` the
        headers. A table has all records that have been fetched, of one or more partitions. Its size is at most 128 MiB
        plus one batch. No Python object is created for a row. The position is after the current table. The iterator
        ends if no record arrives for `timeout` seconds (default: never).

        `key` and `value` are formats of `oncelog.formats`, such as `Json(schema)`. They convert the bytes to typed
        columns. If a format cannot read a value, the iterator yields the records before it, then raises BadRecordError.
        """
        decode = self._table_decoder(headers, key, value)
        core, subscription = self._core, self._core.subscription
        while core.loop_continues(threading.get_ident()):
            mine = object()
            try:
                fetches = self._serve(
                    core.poll_fetches(ms(timeout), mine), lambda taken: subscription.give_back(reversed(taken))
                )
                if not fetches:
                    return
                table = decode(fetches)
            finally:
                if core.converting is mine:
                    core.converting = None
            if table.num_rows:
                yield table

    # -- positions ------------------------------------------------------------------------------------------------

    seek = on_loop(Awaited.seek)
    seek_to_beginning = on_loop(Awaited.seek_to_beginning)
    seek_to_end = on_loop(Awaited.seek_to_end)
    seek_to_committed = on_loop(Awaited.seek_to_committed)
    seek_to_time = on_loop(Awaited.seek_to_time)
    position = blocking(Awaited.position)
    commit = blocking(Awaited.commit)
    committed = blocking(Awaited.committed)

    def commit_async(self, offsets: Mapping[TopicPartition, int] | None = None) -> concurrent.futures.Future[None]:
        """Commit offsets for the group in the background. Return the future of the outcome.

        `offsets` is that of `commit`. The default is the offsets that are consumed now. Commits complete in the order
        in which they were started, and `close` waits for them.
        """
        commits = self._core.commits
        return self._thread.start(commits.run(commits.prepare(offsets)))

    # -- topics and offsets ---------------------------------------------------------------------------------------

    end_offsets = blocking(Awaited.end_offsets)
    beginning_offsets = blocking(Awaited.beginning_offsets)
    offsets_for_times = blocking(Awaited.offsets_for_times)
    lag = blocking(Awaited.lag)
    list_topics = blocking(Awaited.list_topics)
    topic_id = blocking(Awaited.topic_id)
    partitions_for = blocking(Awaited.partitions_for)
