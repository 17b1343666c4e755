"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from oncelog.client.calls import ends_when_closed
from oncelog.client.consumer._shared import ConsumerBase
from oncelog.client.consumer.completed_fetch import ConsumerRecord
from oncelog.client.consumer.core import ConsumerCore, call_in_task
from oncelog.client.consumer.options import consumer_options, isolation_level
from oncelog.client.consumer.rebalance import CallListener, Listener, Listeners
from oncelog.client.discovery.topology import Partition
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.records import EPOCH, check_integer, check_partition, check_partitions, check_times, check_topic, ms
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.requests.offsets import Listed
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format


class Consumer(ConsumerBase):
    """Read records. Use `async with`, or `await start()` and `await close()`. See `oncelog.Consumer`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = consumer_options(config, {**options, "bootstrap_servers": bootstrap_servers})

    async def start(self) -> None:
        """Use the running loop."""
        self._start(asyncio.get_running_loop())

    def _start(self, loop: asyncio.AbstractEventLoop, call_listener: CallListener = call_in_task) -> ConsumerCore:
        self._started = ConsumerCore(self.options, loop, call_listener)
        return self._started

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, timeout: float = 30.0) -> None:
        """As `oncelog.Consumer.close`."""
        await self._core.close(ms(timeout), asyncio.current_task())

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read topics as a member of the group. A text that begins with ^, or a compiled pattern, selects them by name.

        `poll`, `unsubscribe` and `close` call the listeners in the caller's thread, with the partitions. A listener may
        call this consumer (`commit`, `seek`, `pause`, `position`, ...), but not `poll`. In `oncelog.aio` it may be a
        coroutine function. An error of a listener is raised by the call that called it.

        `on_assigned`: the partitions are new. `on_revoked`: they are taken away, but can still be committed.
        `on_lost`: the membership has ended because a poll or heartbeat was late. Another member may own the partitions,
        and a commit would be rejected. Without `on_lost`, `on_revoked` is called instead.

        With `partition_assignment_strategy="cooperative-sticky"` or `group_protocol="consumer"`, a listener is called
        only with the partitions that change.
        """
        self._core.coordinator.subscribe(topics, Listeners(on_assigned, on_revoked, on_lost))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whatever other members of the group read."""
        self._core.assign(check_partitions(partitions))

    @ends_when_closed
    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing."""
        await self._core.unsubscribe()

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `oncelog.Consumer.poll`."""
        return await self._core.poll(ms(timeout), max_records)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over records without end.

        The position follows the current record, so a later loop returns the records that this one has not reached. A
        seek, pause or unassignment inside the loop applies from the next record on. `close` inside the loop ends it. If
        another task closes the consumer, the loop raises ClientClosedError.
        """
        self._core.polls.check()
        while self._core.loop_continues(asyncio.current_task()):
            records = await self.poll(1.0)
            iteration = self._core.iterate(records)
            try:
                for record in iteration:
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
        from oncelog.client import table_kernels
        from oncelog.client.consumer.tables import decode

        self._core.polls.check()
        await table_kernels.load()
        while self._core.loop_continues(asyncio.current_task()):
            fetches = await self._core.poll_fetches(ms(timeout))
            if not fetches:
                return
            table = decode(
                self._core.subscription,
                fetches,
                check_crcs=self.options["check_crcs"],
                include_headers=headers,
                key=key,
                value=value,
            )
            if table.num_rows:
                yield table

    # -- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue a partition at an offset."""
        self._core.subscription.seek(_partition(topic, partition), check_integer(offset, "offset"))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first offset; default: of all assigned partitions."""
        self.seek_to_time(offset_calls.EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the end (with read_committed: the last stable offset); default: of all assigned partitions."""
        self.seek_to_time(offset_calls.LATEST, partitions)

    def seek_to_committed(self) -> None:
        """Continue at the group's committed offsets in all assigned partitions.

        Call this after an aborted transaction, to read its records again.
        """
        self._core.seek_to_committed()

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first record that is not older than a timestamp (ms since the epoch), else at the end."""
        time_ms = check_integer(timestamp, "timestamp", EPOCH)
        for tp in self._named(partitions):
            self._core.subscription.seek_to_time(tp, time_ms)

    @ends_when_closed
    async def position(self, topic: str, partition: int, timeout: float | None = None) -> int:
        """Return the offset after the last consumed record."""
        return await self._core.offsets.position(_partition(topic, partition), ms(timeout))

    @ends_when_closed
    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float | None = None) -> None:
        """Commit the consumed offsets, or these, for the group. Raises GroupError if the membership has ended.

        An offset may be an `OffsetAndMetadata`; `committed` returns its metadata.
        """
        await self._core.commits.commit(offsets, ms(timeout))

    @ends_when_closed
    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets of these partitions, default: of all that have one.

        Each is a number with the attributes `metadata` and `leader_epoch`.
        """
        group = self._core.group_metadata().group_id
        named = None if partitions is None else check_partitions(partitions)
        return await offset_calls.fetch_committed(self._core.cluster, group, named, timeout_ms=ms(timeout))

    # -- topics and offsets ---------------------------------------------------------------------------------------

    @ends_when_closed
    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the current ends: the high watermark, or with read_committed the last stable offset."""
        found = await self._listed(dict.fromkeys(check_partitions(partitions), offset_calls.LATEST), timeout)
        return {tp: item.offset for tp, item in found.items()}

    @ends_when_closed
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        found = await self._listed(dict.fromkeys(check_partitions(partitions), offset_calls.EARLIEST), timeout)
        return {tp: item.offset for tp, item in found.items()}

    @ends_when_closed
    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, Listed | None]:
        """Return, by partition, the first record that is not older than a timestamp (ms since the epoch).

        The record is (offset, timestamp, leader_epoch), or None if there is none.
        """
        found = await self._listed(check_times(times), timeout)
        return {tp: item if item.offset >= 0 else None for tp, item in found.items()}

    @ends_when_closed
    async def lag(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Request the ends; return the offsets between position and end by assigned partition, markers included."""
        ends = await self.end_offsets(list(self._core.subscription.partitions), timeout)
        return {tp: max(0, end - await self.position(*tp, timeout)) for tp, end in ends.items()}

    async def _listed(
        self, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, Listed]:
        isolation = isolation_level(self.options)
        return await offset_calls.list_offsets(
            self._core.cluster, wanted, isolation_level=isolation, timeout_ms=ms(timeout)
        )

    @ends_when_closed
    async def list_topics(self) -> dict[str, int]:
        """Return the number of partitions by topic, without internal topics."""
        found = await self._core.cluster.topics()
        return {name: len(found[name].partitions) for name in sorted(found)}

    @ends_when_closed
    async def partitions_for(self, topic: str, timeout: float | None = None) -> dict[int, Partition]:
        """Return a topic's partitions by number, with leader, replicas and ISR. Raises UnknownTopicError."""
        check_topic(topic)
        create = self.options["allow_auto_create_topics"]
        return (await self._core.cluster.topic(topic, create=create, timeout_ms=ms(timeout))).partitions


def _partition(topic: object, partition: object) -> TopicPartition:
    """Return a checked partition. Raises UsageError."""
    check_topic(topic)
    return check_partition((topic, partition), "(topic, partition)")
