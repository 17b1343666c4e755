"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from oncelog.client.calls import ends_when_closed, require_loop
from oncelog.client.consumer._shared import ConsumerBase
from oncelog.client.consumer.core import ConsumerCore, call_in_task
from oncelog.client.consumer.options import consumer_options, isolation_level
from oncelog.client.consumer.rebalance import CallListener, Listener, Listeners
from oncelog.client.discovery.topology import Partition
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.records import (
    EPOCH,
    check_integer,
    check_offsets,
    check_partition,
    check_partitions,
    check_times,
    check_topic,
    ms,
)
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.requests.offsets import Listed
from oncelog.client.types import ConsumerRecord
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format


class Consumer(ConsumerBase):
    """Read records, as `oncelog.Consumer` does. Use `async with`, or `await start()` and `await close()`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = consumer_options(config, {**options, "bootstrap_servers": bootstrap_servers})
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the consumer on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._start(self._loop)

    def _start(self, loop: asyncio.AbstractEventLoop, call_listener: CallListener = call_in_task) -> ConsumerCore:
        self._started = ConsumerCore(self.options, loop, call_listener)
        return self._started

    @property
    def _core(self) -> ConsumerCore:
        core = super()._core
        require_loop(self._loop)
        return core

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, timeout: float = 30.0) -> None:
        """Leave the group and close the connections, as `oncelog.Consumer.close` does."""
        await self._core.close(ms(timeout), asyncio.current_task())

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read topics as a member of the group `group_id`. The group divides the partitions among its members.

        `topics` has names of topics. A string that begins with ^, or a compiled pattern, subscribes to all topics whose
        names match: in part, or with `group_protocol="consumer"` as a whole, in the broker, which reads RE2's syntax.
        Needs the option group_id. Raises UsageError. Partitions are assigned during `poll`.

        The listeners are called with a list of (topic, partition) pairs, as Kafka's ConsumerRebalanceListener. `poll`,
        `unsubscribe` and `close` call them in the caller's thread, and raise what they raise. A listener may call this
        consumer (`commit`, `seek`, `pause`, `position`), but not `poll`. In `oncelog.aio`, it may be a coroutine
        function.

        `on_assigned` is called with new partitions. `on_revoked` is called before partitions are revoked, while they
        can still be committed. `on_lost` is called if the membership has ended, because a poll or heartbeat was late.
        Then another member may own the partitions already, and a commit would be rejected. Without `on_lost`,
        `on_revoked` is called instead.

        With `partition_assignment_strategy="cooperative-sticky"` or `group_protocol="consumer"`, the listeners get only
        the partitions that change.
        """
        self._core.coordinator.subscribe(topics, Listeners(on_assigned, on_revoked, on_lost))

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these (topic, partition) pairs, without joining the group. This replaces an earlier assignment.

        With a mapping from (topic, partition) to an offset, the position of each partition is set to its offset, as by
        `seek`. Otherwise, partitions that were assigned before keep their positions. Other positions begin at the
        group's committed offsets if `group_id` is set, and as auto_offset_reset says if there is none.

        Raises UsageError for wrong arguments, or if the consumer is subscribed. The assignment is then unchanged.
        """
        offsets = check_offsets(partitions, "partitions") if isinstance(partitions, Mapping) else {}
        self._core.assign(list(offsets) or check_partitions(partitions))
        for tp, offset in offsets.items():
            self._core.subscription.seek(tp, offset)

    @ends_when_closed
    async def unsubscribe(self) -> None:
        """Leave the group, and remove all assigned partitions."""
        await self._core.unsubscribe()

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next records, as `oncelog.Consumer.poll` does.

        The deserializers run on the event loop. Those that send a request run in a thread, such as `AvroDeserializer`
        for the first record of each schema.
        """
        return self._core.count(await self._poll(timeout, max_records))

    async def _poll(self, timeout: float | None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next deserialized records, which are not counted yet."""
        core, deserializers = self._core, self._core.deserializers
        records = await core.poll(ms(timeout), max_records)
        if deserializers is None or not records:
            return records
        iteration = core.iterate(records)
        try:
            if deserializers.ready(records):
                return iteration.keep(*deserializers.deserialize(records))
            return iteration.keep(*await asyncio.to_thread(deserializers.deserialize, records))
        finally:
            iteration.stop()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over records, and wait for new ones without limit.

        The position is after the current record. So if the loop ends early, the next loop continues with the next
        record. A seek, pause or unassignment inside the loop applies to the next record. `close` inside the loop ends
        it. If another task closes the consumer, the loop raises ClientClosedError.
        """
        self._core.polls.check()
        while self._core.loop_continues(asyncio.current_task()):
            records = await self._poll(1.0)
            iteration = self._core.iterate(records, count=True)
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
        """Yield Arrow tables of records, as `oncelog.Consumer.tables` does."""
        from oncelog.client import table_kernels

        decode = self._table_decoder(headers, key, value)
        await table_kernels.load()
        while self._core.loop_continues(asyncio.current_task()):
            fetches = await self._core.poll_fetches(ms(timeout))
            if not fetches:
                return
            table = decode(fetches)
            if table.num_rows:
                yield table

    # -- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the position of a partition to `offset`. The next `poll` returns records from there.

        Raises UsageError if the partition is not assigned.
        """
        self._core.subscription.seek(_partition(topic, partition), check_integer(offset, "offset"))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the position to the first offset in these (topic, partition) pairs, default: in all assigned ones.

        The offset is looked up at the next `poll` or `position`. Raises UsageError if a partition is not assigned, or
        if none has been assigned yet.
        """
        self.seek_to_time(offset_calls.EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the position to the end in these (topic, partition) pairs, default: in all assigned ones.

        The end is the high watermark, or with read_committed the last stable offset. It is looked up at the next `poll`
        or `position`. Raises UsageError if a partition is not assigned, or if none has been assigned yet.
        """
        self.seek_to_time(offset_calls.LATEST, partitions)

    def seek_to_committed(self) -> None:
        """Set the positions of all assigned partitions to the group's committed offsets.

        Call this after an aborted transaction, before you continue. The abort discards the output, but the consumer has
        moved past the input. Without this call, the next transaction would skip that input.
        """
        self._core.seek_to_committed()

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the position to the first record at or after a time, or to the end if there is none.

        `timestamp` is in ms since the epoch. `partitions` are (topic, partition) pairs, default: all assigned ones.
        Raises UsageError if a partition is not assigned, or if none has been assigned yet.
        """
        time_ms = check_integer(timestamp, "timestamp", EPOCH)
        self._core.subscription.require_assignment()
        for tp in self._named(partitions):
            self._core.subscription.seek_to_time(tp, time_ms)

    @ends_when_closed
    async def position(self, topic: str, partition: int, timeout: float | None = None) -> int:
        """Return the position of an assigned partition: the offset of the next record to read.

        If it is not known yet, look it up within `timeout` seconds (default: default_api_timeout_ms). Raises UsageError
        if the partition is not assigned, and TimedOutError.
        """
        return await self._core.offsets.position(_partition(topic, partition), ms(timeout))

    @ends_when_closed
    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float | None = None) -> None:
        """Commit offsets for the group, and wait for the broker's response within `timeout` seconds.

        By default, commit the positions of all assigned partitions. `offsets` maps (topic, partition) to the next
        offset to read. A value may be an `OffsetAndMetadata`. `timeout` is by default default_api_timeout_ms (60 s).

        Raises GroupError if the membership has ended: the partitions may belong to another member. Raises UsageError
        without group_id.
        """
        await self._core.commits.commit(offsets, ms(timeout))

    @ends_when_closed
    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return (topic, partition) -> committed offset of the group. A partition without an offset is omitted.

        `partitions` are (topic, partition) pairs. The default is all partitions that the group has offsets of. Each
        offset is an `OffsetAndMetadata`. Raises UsageError without group_id.
        """
        group = self._core.group_metadata().group_id
        named = None if partitions is None else check_partitions(partitions)
        return await offset_calls.fetch_committed(self._core.cluster, group, named, timeout_ms=ms(timeout))

    # -- topics and offsets ---------------------------------------------------------------------------------------

    @ends_when_closed
    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> end: the high watermark, or with read_committed the last stable offset.

        The partitions need not be assigned. Raises UnknownTopicError, and TimedOutError after `timeout` seconds
        (default: default_api_timeout_ms).
        """
        found = await self._listed(dict.fromkeys(check_partitions(partitions), offset_calls.LATEST), timeout)
        return {tp: item.offset for tp, item in found.items()}

    @ends_when_closed
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> first offset in the log.

        The partitions need not be assigned. Raises UnknownTopicError, and TimedOutError after `timeout` seconds
        (default: default_api_timeout_ms).
        """
        found = await self._listed(dict.fromkeys(check_partitions(partitions), offset_calls.EARLIEST), timeout)
        return {tp: item.offset for tp, item in found.items()}

    @ends_when_closed
    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, Listed | None]:
        """Return the first record at or after a time, for each partition: (offset, timestamp, leader_epoch), or None.

        `times` maps (topic, partition) to a time in ms since the epoch. The partitions need not be assigned. Raises
        UnknownTopicError, and TimedOutError after `timeout` seconds (default: default_api_timeout_ms).
        """
        found = await self._listed(check_times(times), timeout)
        return {tp: item if item.offset >= 0 else None for tp, item in found.items()}

    @ends_when_closed
    async def lag(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> lag of all assigned partitions, from the brokers' current ends.

        The lag is the number of offsets from the position to the end. Transaction markers are counted, too. Raises
        TimedOutError after `timeout` seconds (default: default_api_timeout_ms).
        """
        topology = self._core.cluster.topology
        there = [tp for tp in self._core.subscription.partitions if not topology.lacks(*tp)]
        ends = await self.end_offsets(there, timeout)
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
        """Return topic -> number of partitions, without the internal topics."""
        found = await self._core.cluster.topics()
        return {name: len(found[name].partitions) for name in sorted(found)}

    @ends_when_closed
    async def topic_id(self, topic: str, timeout: float | None = None) -> UUID:
        """Return the id of a topic. A topic that is created again has another one. It is zero before Kafka 2.8.

        Raises UnknownTopicError.
        """
        check_topic(topic)
        return (await self._core.cluster.topic(topic, create=False, timeout_ms=ms(timeout))).topic_id

    @ends_when_closed
    async def partitions_for(self, topic: str, timeout: float | None = None) -> dict[int, Partition]:
        """Return partition number -> leader, leader epoch, replicas and in-sync replicas. Raises UnknownTopicError."""
        check_topic(topic)
        create = self.options["allow_auto_create_topics"]
        return (await self._core.cluster.topic(topic, create=create, timeout_ms=ms(timeout))).partitions


def _partition(topic: object, partition: object) -> TopicPartition:
    """Return the checked pair (topic, partition). Raises UsageError."""
    check_topic(topic)
    return check_partition((topic, partition), "(topic, partition)")
