"""Committed offsets of a partition's groups: durable ones, and those of open transactions.

After Kafka's `OffsetMetadataManager`. A pending offset becomes the group's when its transaction commits, unless a
record written after it got there first.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.coordinator.groups.records import CommittedOffset, committed_offset
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, CommittedOffset]


class OffsetStore:
    """Changes by `replay` and `end_transaction` only."""

    def __init__(self) -> None:
        self._committed: dict[str, Offsets] = {}
        self._pending: dict[int, dict[str, Offsets]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        self._sequence = 0

    # -- reading ------------------------------------------------------------------------------------------------

    def committed(self, group_id: str) -> Offsets:
        """The group's offsets; not to be changed."""
        return self._committed.get(group_id, {})

    def pending(self, producer_id: int, group_id: str) -> Offsets:
        """What a producer's open transaction would make the group's offsets."""
        return self._pending.get(producer_id, {}).get(group_id, {})

    def has(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether the group has an offset for the partition, committed or pending."""
        return partition in self.committed(group_id) or self.is_unstable(group_id, partition)

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset for the partition."""
        return partition in self._open.get(group_id, ())

    def unstable(self, group_id: str) -> Iterator[TopicPartition]:
        """The partitions for which open transactions have offsets."""
        yield from self._open.get(group_id, ())

    def open_transactions(self) -> dict[int, dict[str, Offsets]]:
        """All pending offsets, by producer id and group."""
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
        """Groups that have offsets, committed or pending."""
        return self._committed.keys() | self._open.keys()

    # -- changing -----------------------------------------------------------------------------------------------

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None) -> None:
        """Takes over a record; `producer_id` when it is part of a transaction."""
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
        """Takes over a control marker: the pending offsets become the groups', or are gone."""
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            for partition, committed in offsets.items():
                self._close(group_id, partition, producer_id)
                if commit:
                    known = self.committed(group_id).get(partition)
                    if known is None or known.sequence < committed.sequence:
                        self._committed.setdefault(group_id, {})[partition] = committed

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        """A tombstone ends pending offsets too (KAFKA-14505): they must not come back with the marker."""
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


def _discard(groups: dict[str, Offsets], group_id: str, partition: TopicPartition) -> None:
    offsets = groups.get(group_id)
    if offsets is not None:
        offsets.pop(partition, None)
        if not offsets:
            del groups[group_id]
