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
from oncelog.client.consumer.completed_fetch import ConsumerRecord
from oncelog.client.consumer.rebalance import Listener
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.records import ms
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format

__all__ = ["Consumer", "ConsumerRecord", "GroupMetadata", "OffsetAndMetadata"]

T = TypeVar("T")

_CALLS: ContextVar[SimpleQueue[Callable[[], object] | None]] = ContextVar("calls")
"""On the loop: the queue of functions for the thread that waits for this task. Other threads may close the consumer."""


class Consumer(ConsumerBase, Blocking[Awaited]):
    """Read records as a member of a group (`subscribe`) or without one (`assign`). One thread at a time may use it.

    `Consumer("localhost:9092", group_id="etl", isolation_level="read_committed")`: options have Kafka's names with `_`
    for `.`; `config` takes a mapping with the dotted names. A partition is a pair (topic, partition). Committed offsets
    and positions are those of the next record. Heartbeats are sent in the background. Use it as a context manager, or
    `close` it. Timeouts are in seconds; errors are in `oncelog.errors`.
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
        """Run a coroutine that may call the user's listeners, which run in this thread and may use the consumer.

        An interrupt (Ctrl-C, an exit by a signal's handler) may arrive after the coroutine has returned. Its result
        then reaches no caller, so `give_back` gets it.
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
            raise errors.ClientClosedError("the consumer was closed while this call waited") from None
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
                    raise errors.UsageError("a listener that is a coroutine function: use oncelog.aio.Consumer")
            except Exception as error:  # noqa: BLE001 - comes out of poll
                failure = error
            loop.call_soon_threadsafe(finish, failure)

        _CALLS.get().put(call)
        await done

    def close(self, timeout: float = 30.0) -> None:
        """Commit if enable_auto_commit, call `on_revoked`, leave the group, and disconnect, within `timeout`."""
        self._serve(self._core.close(ms(timeout), threading.get_ident()))

    # -- what to read ---------------------------------------------------------------------------------------------

    subscribe = on_loop(Awaited.subscribe)
    assign = on_loop(Awaited.assign)

    def unsubscribe(self) -> None:
        """Leave the group, and read nothing."""
        self._serve(self._core.unsubscribe())

    # -- reading --------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are some, at most max_poll_records; an empty list after `timeout` seconds.

        `timeout` None: wait for ever. The returned records are consumed: `commit`, `position` and auto-commit are
        after them.
        """
        core = self._core
        return self._serve(core.poll(ms(timeout), max_records), lambda found: core.iterate(found).stop())

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records without end.

        The position follows the current record, so a later loop returns the records that this one has not reached. A
        seek, pause or unassignment inside the loop applies from the next record on. `close` inside the loop ends it. If
        another thread closes the consumer, the loop raises ClientClosedError.
        """
        self._core.polls.check()
        while self._core.loop_continues(threading.get_ident()):
            records = self.poll(1.0)
            if not records:
                continue
            iteration = self._core.iterate(records)
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
        """Yield tables of records: key, value, topic, partition, offset, timestamp, timestampType (, headers).

        A table has all records that were fetched by then, of one or more partitions, at most 128 MiB and a batch. No
        Python object is created for a row. The position is after the current table. The iterator ends when no record
        arrives for `timeout` seconds (None: never).

        `key` and `value`: their formats, see `oncelog.formats`. If a format cannot read a value, the records before it
        come first, then BadRecordError.
        """
        from oncelog.client.consumer.tables import decode

        core, subscription = self._core, self._core.subscription
        core.polls.check()
        while core.loop_continues(threading.get_ident()):
            fetches = self._serve(core.poll_fetches(ms(timeout)), lambda taken: subscription.give_back(reversed(taken)))
            if not fetches:
                return
            table = decode(
                subscription,
                fetches,
                check_crcs=self.options["check_crcs"],
                include_headers=headers,
                key=key,
                value=value,
            )
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
        """Commit in the background the offsets that are consumed now, or these; the future has the outcome.

        Later commits follow this one, and `close` waits for it.
        """
        commits = self._core.commits
        return self._thread.start(commits.run(commits.prepare(offsets)))

    # -- topics and offsets ---------------------------------------------------------------------------------------

    end_offsets = blocking(Awaited.end_offsets)
    beginning_offsets = blocking(Awaited.beginning_offsets)
    offsets_for_times = blocking(Awaited.offsets_for_times)
    lag = blocking(Awaited.lag)
    list_topics = blocking(Awaited.list_topics)
    partitions_for = blocking(Awaited.partitions_for)
