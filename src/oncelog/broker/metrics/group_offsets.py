"""Read the committed offsets that a scrape shows: those of the groups that this broker coordinates.

Only the coordinator of a group shows its series, so each series has one broker, also while coordinators move. The
number of series is bounded, because any client may create groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from oncelog.broker.coordinators.groups import GroupService
from oncelog.cluster.image import MetadataImage
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.log.steps import Steps
from oncelog.net.session import Session
from oncelog.protocol.schema import NO_UUID
from oncelog.protocol.topics import TopicPartition

MOST_SERIES = 100_000
"""The number of groups and of their offsets that one scrape shows. A group is shown with all its offsets or not."""

Client = tuple[str, str]
"""Client id and host."""


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """One group: its members, and its committed offsets by topic and partition."""

    group_id: str
    members: int
    clients: frozenset[Client]
    """The clients that probably read: the members, or without any, the clients that commit offsets."""
    offsets: dict[str, dict[int, int]]


@dataclass(slots=True)
class ShownGroups:
    """The groups of a scrape."""

    groups: list[ShownGroup] = field(default_factory=list)
    partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions that the groups have offsets for."""
    omitted: int = 0
    """Groups that are not shown, because there would be too many series."""


def shown_groups(
    service: GroupService, sessions: Iterator[Session], image: MetadataImage, most: int = MOST_SERIES
) -> Steps[ShownGroups]:
    """Read the groups of a scrape, with a pause after each group, offset and connection.

    Offsets of deleted topics are omitted. Their deletion may not be complete.
    """
    committers = yield from _committers(sessions)
    found = ShownGroups()
    left = most
    for _, shard in tuple(service.shell.terms.shards()):
        for group_id in list(shard.groups):
            yield
            group = shard.groups.get(group_id)
            size = 1 + len(shard.offsets.committed(group_id))
            if group is None:
                continue
            if size > left:
                found.omitted += 1
                continue
            left -= size
            clients = group.clients()
            offsets = yield from _offsets(shard, group_id, image, found.partitions)
            readers = frozenset(clients) if clients else frozenset(committers.get(group_id, ()))
            found.groups.append(ShownGroup(group_id, len(clients), readers, offsets))
    return found


def _offsets(
    shard: GroupCoordinator, group_id: str, image: MetadataImage, partitions: set[TopicPartition]
) -> Steps[dict[str, dict[int, int]]]:
    """Return the offsets of a group, and add their partitions to a set."""
    topics: dict[str, dict[int, int]] = {}
    for key in list(shard.offsets.committed(group_id)):
        yield
        committed = shard.offsets.committed(group_id).get(key)
        topic = image.topic(key[0])
        if committed is None or topic is None or key[1] >= topic.partition_count:
            continue
        if committed.topic_id in (NO_UUID, topic.topic_id):  # otherwise that of a deleted topic of the same name
            topics.setdefault(key[0], {})[key[1]] = committed.offset
            partitions.add(key)
    return topics


def _committers(sessions: Iterator[Session]) -> Steps[dict[str, set[Client]]]:
    """Return the clients whose connections have committed offsets, by group."""
    found: dict[str, set[Client]] = {}
    for session in sessions:
        yield
        if session.commits_for is not None and not session.gone:
            found.setdefault(session.commits_for, set()).add((session.client_id, session.host))
    return found
