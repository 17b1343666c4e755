"""Committed offsets of a partition's groups: durable ones, and those of open transactions.

When a transaction commits, its pending offsets become the group's offsets. Later records of the same partitions replace
them. Source: Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.coordinator.groups.records import CommittedOffset, committed_offset
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from oncelog.protocol.schema import NO_UUID
from oncelog.protocol.topics import TopicPartition

Offsets = dict[TopicPartition, CommittedOffset]


class OffsetStore:
    """The offsets of all groups. Only `replay` and `end_transaction` change them."""

    def __init__(self) -> None:
        self._committed: dict[str, Offsets] = {}
        self._pending: dict[int, dict[str, Offsets]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        self._sequence = 0

    def __len__(self) -> int:
        """Return the number of committed offsets."""
        return sum(map(len, self._committed.values()))

    # -- reading ------------------------------------------------------------------------------------------------

    def committed(self, group_id: str) -> Offsets:
        """Return the group's offsets. Callers must not change them."""
        return self._committed.get(group_id, {})

    def pending(self, producer_id: int, group_id: str) -> Offsets:
        """Return the offsets of a group in a producer's open transaction."""
        return self._pending.get(producer_id, {}).get(group_id, {})

    def has(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether the group has an offset for the partition, committed or pending."""
        return partition in self.committed(group_id) or self.is_unstable(group_id, partition)

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether an open transaction has an offset for the partition."""
        return partition in self._open.get(group_id, ())

    def unstable(self, group_id: str) -> Iterator[TopicPartition]:
        """Yield the partitions for which open transactions have offsets."""
        yield from self._open.get(group_id, ())

    def open_transactions(self) -> dict[int, dict[str, Offsets]]:
        """Return all pending offsets, by producer id and group."""
        return self._pending

    def offsets_of(self, group_id: str, partition: TopicPartition) -> Iterator[CommittedOffset]:
        """Yield a group's offsets for a partition: the committed one, and those of open transactions."""
        committed = self.committed(group_id).get(partition)
        if committed is not None:
            yield committed
        for producer_id in self._open.get(group_id, {}).get(partition, ()):
            yield self._pending[producer_id][group_id][partition]

    @property
    def newest(self) -> int:
        """Return the sequence of the newest offset. Offsets that are committed later have larger ones."""
        return self._sequence

    def group_ids(self) -> set[str]:
        """Return the groups that have offsets, committed or pending."""
        return self._committed.keys() | self._open.keys()

    # -- OffsetFetch --------------------------------------------------------------------------------------------

    def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Return the requested offsets of a group, all of them if `topics` is None, and -1 where there is none."""
        offsets = self.committed(request.group_id)
        topics = self.topics(request.group_id) if request.topics is None else request.topics
        response = OffsetFetchResponseGroup(group_id=request.group_id)
        for topic in topics:
            answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answer)
            for index in topic.partition_indexes:
                partition = topic.name, index
                committed = offsets.get(partition)
                if require_stable and self.is_unstable(request.group_id, partition):
                    answer.partitions.append(no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                elif committed is None or _is_of_another_topic(committed, topic):
                    answer.partitions.append(no_offset(index))
                else:
                    answer.partitions.append(
                        OffsetFetchResponsePartitions(
                            partition_index=index,
                            committed_offset=committed.offset,
                            committed_leader_epoch=committed.leader_epoch,
                            metadata=committed.metadata,
                        )
                    )
        return response

    def topics(self, group_id: str) -> list[OffsetFetchRequestTopics]:
        """Return every partition with a committed offset of a group."""
        partitions: dict[str, list[int]] = {}
        for name, index in self.committed(group_id):
            partitions.setdefault(name, []).append(index)
        return [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in partitions.items()]

    # -- changing -----------------------------------------------------------------------------------------------

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None) -> None:
        """Apply a record. `producer_id` is given if the record is part of a transaction."""
        partition = key.topic, key.partition
        self._sequence += 1
        if value is None:
            self._forget(key.group, partition)
            return
        committed = committed_offset(value, self._sequence)
        if producer_id is None:
            self._committed.setdefault(key.group, {})[partition] = committed
        else:
            self._pending.setdefault(producer_id, {}).setdefault(key.group, {})[partition] = committed
            self._open.setdefault(key.group, {}).setdefault(partition, set()).add(producer_id)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Apply a control marker: commit the producer's pending offsets, or drop them."""
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            for partition, committed in offsets.items():
                self._close(group_id, partition, producer_id)
                if commit:
                    known = self.committed(group_id).get(partition)
                    if known is None or known.sequence < committed.sequence:
                        self._committed.setdefault(group_id, {})[partition] = committed

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        """Delete an offset. Delete pending ones, too, so that the marker does not restore them (KAFKA-14505)."""
        _discard(self._committed, group_id, partition)
        for producer_id in tuple(self._open.get(group_id, {}).get(partition, ())):
            groups = self._pending[producer_id]
            _discard(groups, group_id, partition)
            if not groups:
                del self._pending[producer_id]
            self._close(group_id, partition, producer_id)

    def _close(self, group_id: str, partition: TopicPartition, producer_id: int) -> None:
        producers = self._open[group_id][partition]
        producers.discard(producer_id)
        if not producers:
            del self._open[group_id][partition]
            if not self._open[group_id]:
                del self._open[group_id]


def no_offset(index: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    """Return the result for a partition without a committed offset, or with an error."""
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=error
    )


def _is_of_another_topic(committed: CommittedOffset, topic: OffsetFetchRequestTopics) -> bool:
    """Return whether the offset belongs to a deleted topic of the same name."""
    return NO_UUID not in (committed.topic_id, topic.topic_id) and committed.topic_id != topic.topic_id


def _discard(groups: dict[str, Offsets], group_id: str, partition: TopicPartition) -> None:
    offsets = groups.get(group_id)
    if offsets is not None:
        offsets.pop(partition, None)
        if not offsets:
            del groups[group_id]
