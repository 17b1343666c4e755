"""The series of consumer groups: members, committed offsets, and lag, with the names and labels of kafka_exporter.

The lag of a group is the distance from its committed offset to the end of the records that its members can read. If all
of them use `read_committed`, it ends after the last record before the last stable offset that is not aborted.
Otherwise, or if this is unknown, it ends after the last record before the high watermark. Markers do not count there.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.metrics import catalog as names
from oncelog.broker.metrics.exposition import Lines, single
from oncelog.broker.metrics.group_offsets import ShownGroup, ShownGroups, shown_groups
from oncelog.broker.metrics.partition_ends import Ends, PartitionEnds
from oncelog.broker.requests.readers import Sessions
from oncelog.broker.turns import in_turns
from oncelog.cluster.image import MetadataCache

_MANY = 500
"""Offsets whose sum takes as long as the lines of one part."""


@dataclass(frozen=True, slots=True)
class Lags:
    """Measure the lag of the groups that this broker coordinates."""

    groups: GroupService
    cache: MetadataCache
    ends: PartitionEnds
    sessions: Sessions

    async def measure(self) -> GroupLags:
        """Read the committed offsets first, then ask the leaders. So no lag is smaller than it is."""
        shown = await in_turns(shown_groups(self.groups, self.sessions(), self.cache.image))
        return GroupLags(shown, await self.ends.of(shown.partitions))


class GroupLags:
    """The groups of one scrape, and the ends of their partitions."""

    def __init__(self, shown: ShownGroups, ends: Ends) -> None:
        self._shown = shown
        self._ends = ends

    def lines(self) -> Lines[None]:
        """Yield the lines of all groups. A lag is missing if the leader of its partition does not answer."""
        groups = self._shown.groups
        yield names.MEMBERS.head()
        for group in groups:
            yield names.MEMBERS.sample(group.members, (group.group_id,))
        yield names.COMMITTED.head()
        for group in groups:
            for topic, offsets in group.offsets.items():
                for index, offset in offsets.items():
                    yield names.COMMITTED.sample(offset, (group.group_id, topic, str(index)))
        yield names.COMMITTED_SUM.head()
        for group in groups:
            for topic, offsets in group.offsets.items():
                yield names.COMMITTED_SUM.sample(sum(offsets.values()), (group.group_id, topic))
                yield None if len(offsets) > _MANY else ""
        sums: list[tuple[tuple[str, str], int]] = []
        yield names.LAG.head()
        for group in groups:
            committed = self._ends.all_read_committed(group.clients)
            for topic in group.offsets:
                total = yield from self._lags(group, topic, committed)
                if total is not None:
                    sums.append(((group.group_id, topic), total))
        yield names.LAG_SUM.head()
        for labels, total in sums:
            yield names.LAG_SUM.sample(total, labels)
        yield from single(names.OMITTED_GROUPS, self._shown.omitted)

    def _lags(self, group: ShownGroup, topic: str, committed: bool) -> Lines[int | None]:
        """Yield the lag of each partition. Return the sum, or None if the lag of one is unknown."""
        total: int | None = 0
        for index, offset in group.offsets[topic].items():
            ends = self._ends.partitions.get((topic, index))
            if ends is None:
                total = None
                yield ""
                continue
            lag = max((ends.committed if committed else ends.uncommitted) - offset, 0)
            total = None if total is None else total + lag
            yield names.LAG.sample(lag, (group.group_id, topic, str(index)))
        return total
