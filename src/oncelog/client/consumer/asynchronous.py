"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from oncelog import errors
from oncelog.client import offsets as offset_calls
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.consumer.face import ConsumerFace, Queries
from oncelog.client.consumer.fetcher import ConsumerRecord
from oncelog.client.consumer.iteration import Iteration
from oncelog.client.consumer.reader import Reader
from oncelog.client.consumer.subscription import Listener, Listeners
from oncelog.client.durations import ms
from oncelog.client.offsets import Listed
from oncelog.client.options import consumer_options
from oncelog.client.topology import Partition
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format


class Consumer(ConsumerFace):
    """Reads records. `async with`, or `await start()` and `await close()`. See `oncelog.Consumer`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if bootstrap_servers is not None:
            options["bootstrap_servers"] = bootstrap_servers
        self.options = consumer_options(config, options)
        self._started: Reader | None = None

    @property
    def _reader(self) -> Reader:
        if self._started is None:
            raise errors.UsageError("start() the consumer first, or use it as `async with`")
        return self._started

    @property
    def _queries(self) -> Queries:
        return Queries(self._reader)

    async def start(self) -> None:
        """Take the running loop."""
        self._started = Reader(self.options, asyncio.get_running_loop())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, timeout: float = 30.0) -> None:
        """Commit if enable_auto_commit, tell `on_revoked`, leave the group, hang up."""
        await self._reader.close(timeout * 1000)

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """As `oncelog.Consumer.subscribe`; listeners may be coroutine functions, which then may await this consumer."""
        self._reader.subscription.begin(topics, Listeners(on_assigned, on_revoked, on_lost))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions."""
        self._reader.assign(partitions)

    async def unsubscribe(self) -> None:
        """Leave the group, read nothing."""
        await self._reader.unsubscribe()

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records as soon as there are some, an empty list after `timeout` seconds."""
        return await self._reader.poll(timeout * 1000, max_records)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Record by record, without end; the position is behind the record at hand."""
        while not self._reader.closed:
            records = await self.poll(1.0)
            iteration = Iteration(self._reader, records)
            try:
                for record in records:
                    if not iteration.reached(record):
                        break
                    yield record
            finally:
                iteration.stop()

    async def tables(
        self,
        *,
        timeout: float | None = None,
        headers: bool = False,
        key: Format | None = None,
        value: Format | None = None,
    ) -> AsyncIterator[pa.Table]:
        """As `oncelog.Consumer.tables`."""
        from oncelog.client.consumer.tables import decode

        while not self._reader.closed:
            raw = await self._reader.poll_raw(1e9 if timeout is None else timeout * 1000)
            if not raw:
                return
            table = decode(self._reader, raw, include_headers=headers, key=key, value=value)
            if table.num_rows:
                yield table

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read from an offset on."""
        self._reader.state((topic, partition)).seek(offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the first offset on."""
        self.seek_to_time(offset_calls.EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read what comes after the end."""
        self.seek_to_time(offset_calls.LATEST, partitions)

    def seek_to_committed(self) -> None:
        """Read on behind what the group has committed, in all assigned partitions, as after an aborted transaction."""
        self._reader.seek_to_committed()

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the first record on whose timestamp is not before this (ms since the epoch)."""
        for tp in self.assignment() if partitions is None else partitions:
            self._reader.state(tp).seek_to_time(timestamp)

    async def position(self, topic: str, partition: int, timeout: float | None = None) -> int:
        """The offset behind what was consumed."""
        return await self._reader.positions.position((topic, partition), ms(timeout))

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float | None = None) -> None:
        """Commit what was consumed, or these offsets."""
        await self._reader.commits.commit(offsets, ms(timeout))

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets."""
        return await self._queries.committed(partitions, ms(timeout))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Where reading ends now."""
        return await self._queries.ends(partitions, offset_calls.LATEST, ms(timeout))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        return await self._queries.ends(partitions, offset_calls.EARLIEST, ms(timeout))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, Listed | None]:
        """The first record at or after a time in each partition; None where there is none."""
        return await self._queries.for_times(times, ms(timeout))

    async def lag(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Offsets between position and end of every assigned partition."""
        return await self._queries.lag(ms(timeout))

    async def list_topics(self) -> dict[str, int]:
        """Number of partitions by name of every topic that is not internal."""
        return await self._queries.topics()

    async def partitions_for(self, topic: str, timeout: float | None = None) -> dict[int, Partition]:
        """A topic's partitions by number; UnknownTopicError."""
        return await self._queries.partitions_for(topic, ms(timeout))
