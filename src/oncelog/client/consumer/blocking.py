"""The blocking consumer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog import errors
from oncelog.client import offsets as offset_calls
from oncelog.client.blocking import LoopThread
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.consumer.face import ConsumerFace, Queries
from oncelog.client.consumer.fetcher import ConsumerRecord
from oncelog.client.consumer.iteration import Iteration
from oncelog.client.consumer.reader import Reader
from oncelog.client.consumer.subscription import Listener, Listeners
from oncelog.client.durations import ms
from oncelog.client.group_metadata import GroupMetadata
from oncelog.client.offsets import Listed
from oncelog.client.options import consumer_options
from oncelog.client.topology import Partition
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format

__all__ = ["Consumer", "ConsumerRecord", "GroupMetadata", "OffsetAndMetadata"]

T = TypeVar("T")


class Consumer(ConsumerFace):
    """Reads records, as a member of a group (`subscribe`) or by itself (`assign`). Not for several threads at once.

    `Consumer("localhost:9092", group_id="etl", isolation_level="read_committed")`: options carry Kafka's names with
    `_` for `.`; a mapping with the dotted names may be given as `config`. Partitions are (topic, partition) pairs,
    offsets that are committed or returned as positions those of the next record. Heartbeats go out in the background.
    Use as a context manager, or `close` it. Time-outs are in seconds; errors: `oncelog.errors`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if bootstrap_servers is not None:
            options["bootstrap_servers"] = bootstrap_servers
        self.options = consumer_options(config, options)
        self._thread = LoopThread.shared()
        self._made = Reader(self.options, self._thread.loop)
        self._made.tell = self._tell
        self._queries = Queries(self._made)
        self._calls: SimpleQueue[Callable[[], object] | None] | None = None

    @property
    def _reader(self) -> Reader:
        return self._made

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what may call the user's listeners: they run here, in the caller's thread, and may use the consumer."""
        if self._thread.process_id != os.getpid():
            return self._thread.run(work)  # which says that a fork is between
        calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        before, self._calls = self._calls, calls

        async def run() -> T:
            try:
                return await work
            finally:
                calls.put(None)

        runner = asyncio.run_coroutine_threadsafe(run(), self._thread.loop)
        try:
            while (call := calls.get()) is not None:
                call()
            return runner.result()
        except concurrent.futures.CancelledError:
            raise errors.UsageError("the client was closed while this call waited") from None
        except BaseException:
            runner.cancel()
            raise
        finally:
            self._calls = before

    async def _tell(self, listener: Listener, partitions: list[TopicPartition]) -> None:
        """Have a listener called by the thread that waits for this."""
        assert self._calls is not None
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

        self._calls.put(call)
        await done

    def close(self, timeout: float = 30.0) -> None:
        """Commit if enable_auto_commit, tell `on_revoked`, leave the group, hang up; not later than `timeout`."""
        self._serve(self._reader.close(timeout * 1000))

    # -- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read topics as a member of the group, or (a text that begins with ^, or a compiled one) those whose names a
        pattern matches.

        The listeners are called inside `poll`, `unsubscribe` and `close`, in the caller's thread, with partitions that
        come and go; they may call this consumer (`commit`, `seek`, `pause`, `position`, ...), but not `poll`.
        `on_revoked`: they are given away, and can still be committed. `on_lost`: the membership has ended (no poll or
        heartbeat in time), others may have them already, a commit would be refused; else `on_revoked` is told so.
        With `partition_assignment_strategy="cooperative-sticky"` or `group_protocol="consumer"` only what changes is
        told. What a listener raises comes out of `poll`.
        """
        self._run(_done(self._reader.subscription.begin, topics, Listeners(on_assigned, on_revoked, on_lost)))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's coordination."""
        self._run(_done(self._reader.assign, list(partitions)))

    def unsubscribe(self) -> None:
        """Leave the group, read nothing."""
        self._serve(self._reader.unsubscribe())

    # -- reading --------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records as soon as there are some, at most max_poll_records; an empty list after `timeout` seconds.

        What was returned counts as consumed: `commit`, `position` and auto-commit are behind it.
        """
        return self._serve(self._reader.poll(timeout * 1000, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record by record, without end; the position is behind the one at hand, what was not reached comes again."""
        while not self._reader.closed:
            records = self.poll(1.0)
            if not records:
                continue
            iteration = Iteration(self._reader, records)
            try:
                for record in records:
                    if not iteration.reached(record):
                        break
                    yield record
            finally:
                self._run(_done(iteration.stop))

    def tables(
        self,
        *,
        timeout: float | None = None,
        headers: bool = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> Iterator[pa.Table]:
        """Tables of what has arrived: key, value, topic, partition, offset, timestamp, timestampType (, headers).

        Each is all that was fetched by then, of one or more partitions (128 MiB and a batch at most); no Python object
        is made for a row. The position is behind the table at hand. Ends when nothing came for `timeout` seconds (None:
        never). `key` and `value`: formats that they are read in, see `oncelog.formats`; a value that its format cannot
        read is a BadRecordError, raised once all before it was given.
        """
        from oncelog.client.consumer.tables import decode

        while not self._reader.closed:
            raw = self._serve(self._reader.poll_raw(1e9 if timeout is None else timeout * 1000))
            if not raw:
                return
            table = decode(self._reader, raw, include_headers=headers, key=key, value=value)
            if table.num_rows:
                yield table

    # -- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read from an offset on."""
        self._run(_done(self._reader.state((topic, partition)).seek, offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the first offset on; default: all assigned partitions."""
        self._seek_to(partitions, offset_calls.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read what comes after the end (with read_committed: the last stable offset)."""
        self._seek_to(partitions, offset_calls.LATEST)

    def seek_to_committed(self) -> None:
        """Read on behind what the group has committed, in all assigned partitions: after an aborted transaction, its
        records come again.
        """
        self._run(_done(self._reader.seek_to_committed))

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the first record on whose timestamp (ms since the epoch) is not before this; the end if there is
        none.
        """
        self._seek_to(partitions, timestamp)

    def _seek_to(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        for tp in self.assignment() if partitions is None else partitions:
            self._run(_done(self._reader.state(tp).seek_to_time, timestamp))

    def position(self, topic: str, partition: int, timeout: float | None = None) -> int:
        """The offset behind what was consumed."""
        return self._run(self._reader.positions.position((topic, partition), ms(timeout)))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float | None = None) -> None:
        """Commit what was consumed, or these offsets, for the group; GroupError when the membership has ended.

        An offset may be an `OffsetAndMetadata`, whose metadata `committed` gives back.
        """
        self._run(self._reader.commits.commit(offsets, ms(timeout)))

    def commit_async(self, offsets: Mapping[TopicPartition, int] | None = None) -> concurrent.futures.Future[None]:
        """The same in the background; what was consumed by now, however far `poll` gets meanwhile. Later commits come
        after it, and `close` waits for it. The future has the error, if there is one.
        """
        commits = self._reader.commits
        return asyncio.run_coroutine_threadsafe(commits.started(commits.take(offsets)), self._thread.loop)

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, of some partitions or of all that it has any for; each is a number that has
        `metadata` and `leader_epoch`, too.
        """
        return self._run(self._queries.committed(partitions, ms(timeout)))

    # -- what there is --------------------------------------------------------------------------------------------

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Where reading ends now: the high watermark, or with read_committed the last stable offset."""
        return self._run(self._queries.ends(partitions, offset_calls.LATEST, ms(timeout)))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        return self._run(self._queries.ends(partitions, offset_calls.EARLIEST, ms(timeout)))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, Listed | None]:
        """The first record at or after a time (ms since the epoch) in each partition: (offset, timestamp,
        leader_epoch); None where there is none.
        """
        return self._run(self._queries.for_times(times, ms(timeout)))

    def lag(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Offsets between position and end of every assigned partition, asked for now (markers count as well)."""
        return self._run(self._queries.lag(ms(timeout)))

    def list_topics(self) -> dict[str, int]:
        """Number of partitions by name of every topic that is not internal."""
        return self._run(self._queries.topics())

    def partitions_for(self, topic: str, timeout: float | None = None) -> dict[int, Partition]:
        """A topic's partitions by number, with leader, replicas and those in sync; UnknownTopicError."""
        return self._run(self._queries.partitions_for(topic, ms(timeout)))


async def _done(function: Callable[..., T], *args: Any) -> T:
    """Run a plain function on the loop, where the reader's state belongs."""
    return function(*args)
