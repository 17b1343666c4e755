"""The group coordinator of one partition of `__consumer_offsets`, as a state machine without I/O.

A method that takes a token replies to it through `Effects`, which it or a later call returns. The shell appends the
records, replays them here, and delivers the replies (`coordinator.effects`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups import commits, deletion
from oncelog.coordinator.groups.classic.groups import ClassicGroups
from oncelog.coordinator.groups.consumer.classic_members import ClassicMembers
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.groups import ConsumerGroups
from oncelog.coordinator.groups.deletion import Tombstones
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.offsets import OffsetStore
from oncelog.coordinator.groups.registry import (
    ConsumerSettings,
    FindConsumerSettings,
    GroupConfig,
    GroupStatistics,
    Registry,
)
from oncelog.coordinator.groups.topics import Topics
from oncelog.coordinator.timers import Now
from oncelog.protocol.messages.list_groups import ListedGroup
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.offset_delete import OffsetDeleteRequest
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

WAKE_LIMIT = 200
"""Groups that one tick processes."""
CLEANUP_LIMIT = 200
"""The number of tombstones from which on a batch takes no more offsets or groups. To write them takes some ms."""
CLEANUP_CHECKS = 5000
"""Offsets and groups that one tick of the clean-up checks, which takes some ms."""
CLEANUP_PAUSE_MS = 20
"""Time between two ticks of the clean-up."""


class GroupCoordinator:
    """The groups of one partition and their offsets.

    Each kind of groups has its own requests (`classic`). Here are the requests and the clean-up of their offsets, which
    all kinds share. The registry has the groups of all kinds.
    """

    def __init__(
        self,
        config: GroupConfig,
        new_uuid: Callable[[], str],
        topics: Topics,
        statistics: GroupStatistics | None = None,
        consumer_settings: FindConsumerSettings = lambda _: ConsumerSettings(),
    ) -> None:
        """`new_uuid` makes the random part of a member id.

        `consumer_settings`: see `FindConsumerSettings`.
        """
        self.offsets = OffsetStore()
        self.registry = Registry(config, new_uuid, statistics, consumer_settings)
        self.classic = ClassicGroups(self.registry)
        self.registry.register(self.classic)
        self.consumer = ConsumerGroups(self.registry, topics)
        self.registry.register(self.consumer)
        self._topics = topics
        self._cleanup_due_ms: int | None = None
        self._next_cleanup_ms = 0
        self._cleanup: list[Tombstones] = []
        """The remaining parts of the current clean-up. The last one in the list runs next."""
        self._now_ms = 0
        """The wall clock at the last tick."""

    @property
    def groups(self) -> dict[str, Group]:
        """Return all groups by their ids. Callers must not change them."""
        return self.registry.groups

    def classic_protocol(self, group_id: str) -> ClassicGroups | ClassicMembers:
        """Return what handles the requests of the classic protocol: an empty consumer group becomes a classic one."""
        group = self.registry.find(group_id, ConsumerGroup)
        return self.classic if group is None or group.is_empty else self.consumer.classic_members

    def list_groups(self, states: Collection[str], kinds: Collection[str]) -> list[ListedGroup]:
        """Return the groups in these states and of these kinds, in lower case. An empty filter lets all groups pass."""
        listed = [group.listed() for group in self.groups.values() if not kinds or group.KIND.lower() in kinds]
        return [group for group in listed if not states or group.group_state.lower() in states]

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, version: int, token: Any, now: Now) -> Effects:
        """Handle OffsetCommit of existing topics. Raises ProtocolError if the whole commit is rejected."""
        group = self.groups.get(request.group_id)
        commits.check_commit(group, request, version)
        if group is not None:
            self.registry.kind_of(group).committed_by(group, request.member_id, now)
        limit = self.registry.config.offset_metadata_max_bytes
        response, records = commits.accept(request, limit, now.wall_ms)
        self.registry.statistics.offset_commits += len(records)
        return Effects(records, [Reply(token, response)])

    def commit_transactional_offsets(self, request: TxnOffsetCommitRequest, token: Any, now: Now) -> Effects:
        """Handle TxnOffsetCommit. Its records are appended with the producer's id and epoch. Raises ProtocolError."""
        commits.check_transactional_commit(self.groups.get(request.group_id), request, self._topic_id)
        limit = self.registry.config.offset_metadata_max_bytes
        response, records = commits.accept_transactional(request, limit, now.wall_ms)
        self.registry.statistics.offset_commits += len(records)
        return Effects(records, [Reply(token, response)])

    def fetch_offsets(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Handle OffsetFetch of one group. Raises ProtocolError if the member may not fetch."""
        group = self.registry.find(request.group_id, ConsumerGroup)
        if group is not None:
            group.check_fetch(request.member_id, request.member_epoch)
        return self.offsets.fetch(request, require_stable)

    def _topic_id(self, name: str) -> UUID | None:
        topic = self._topics.by_name(name)
        return None if topic is None else topic.topic_id

    def delete_topic_offsets(self, topic: str, topic_id: UUID) -> Tombstones:
        """Yield tombstones for the offsets of a deleted topic. The caller may pause."""
        return deletion.offsets_of_deleted_topic(self.offsets, topic, topic_id)

    def delete_offsets_since(self, topic: str, since_ms: int) -> Tombstones:
        """Yield tombstones for offsets of a topic that were committed after a time. See `delete_topic_offsets`."""
        return deletion.offsets_committed_since(self.offsets, topic, since_ms)

    def topics_with_offsets(self) -> Iterator[str]:
        """Yield the topic of each offset. The caller may pause."""
        return deletion.topics_with_offsets(self.offsets)

    # -- deletion -----------------------------------------------------------------------------------------------

    def delete_groups(self, group_ids: Iterable[str], token: Any) -> Effects:
        """Handle DeleteGroups for groups of this coordinator. The reply is a list of results."""
        results, records = deletion.delete_groups(self.groups, self.offsets, group_ids)
        return Effects(records, [Reply(token, results)])

    def delete_some_offsets(self, group_id: str, most: int, token: Any) -> Effects:
        """Delete offsets of a group that is to be deleted, if it has more than `most`. Reply with their number."""
        count, records = deletion.delete_some_offsets(self.groups, self.offsets, group_id, most)
        return Effects(records, [Reply(token, count)])

    def delete_offsets(self, request: OffsetDeleteRequest, token: Any) -> Effects:
        """Handle OffsetDelete of existing partitions. Raises ProtocolError if the whole request is rejected."""
        response, records = deletion.delete_offsets(self.groups, self.offsets, request)
        self.registry.statistics.deleted_offsets += len(records)
        return Effects(records, [Reply(token, response)])

    # -- the log ------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, *, producer_id: int | None = None, producer_epoch: int = -1) -> None:
        """Apply a record of the log. With a producer id, it is part of that producer's transaction."""
        key, value = record.key, record.value
        if not isinstance(key, OffsetCommitKey):
            self.registry.kind_of_key(key).replay(key, value)
            return
        assert value is None or isinstance(value, OffsetCommitValue)
        if value is not None and key.group not in self.groups:
            self.classic.find_or_create(key.group)  # the client assigns its partitions itself
        self.offsets.replay(key, value, producer_id)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """Apply a marker: commit the producer's pending offsets, or drop them."""
        self.offsets.end_transaction(producer_id, commit)

    def loaded(self, now: Now) -> Effects:
        """Start the timers of all groups, and the clean-up."""
        effects = Effects()
        self.registry.is_loaded = True
        self._cleanup_due_ms = now.steady_ms + self.registry.config.retention_check_interval_ms
        for group in self.groups.values():
            self.registry.kind_of(group).loaded(group, effects, now)
        return effects

    def topics_changed(self, topics: frozenset[str], now: Now) -> Effects:
        """Report to all kinds which topics were created or deleted, or have more partitions than before."""
        effects = Effects()
        for kind in self.registry.kinds.values():
            kind.topics_changed(topics, effects, now)
        return effects

    # -- time ---------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Return when `tick` is due, in ms on the steady clock."""
        dues = [self.registry.deadlines.next()]
        if self.groups:
            dues.append(self._cleanup_due_ms)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: Now) -> Effects:
        """Process the deadlines of groups, and delete expired offsets and groups without offsets."""
        self._now_ms = now.wall_ms
        effects = Effects()
        for _ in range(WAKE_LIMIT):
            due = self.registry.deadlines.pop_due(now.steady_ms, 1)
            group = self.groups.get(due[0]) if due else None
            if group is not None:
                self.registry.kind_of(group).tick(group, effects, now)
            if effects.records or not due:
                break  # if these records are refused, other groups do not wait for them
        if not effects.records and self._cleanup_due_ms is not None and self._cleanup_due_ms <= now.steady_ms:
            self._clean_up(effects, now)
        return effects

    def _clean_up(self, effects: Effects, now: Now) -> None:
        """Run a part of the clean-up: first expired offsets, then groups without offsets."""
        config = self.registry.config
        if not self._cleanup:
            self._next_cleanup_ms = now.steady_ms + config.retention_check_interval_ms
            expired = deletion.expired_offsets(
                self.groups, self.offsets, config.offsets_retention_ms, lambda: self._now_ms
            )
            self._cleanup = [deletion.empty_groups(self.groups, self.offsets), expired]
        checked = 0
        while self._cleanup and not effects.records:  # the shell replays these records before the next kind
            for records in islice(self._cleanup[-1], CLEANUP_CHECKS - checked):
                checked += 1
                effects.records += records
                if len(self._cleanup) > 1:  # the first part is that of expired offsets
                    self.registry.statistics.expired_offsets += len(records)
                if len(effects.records) >= CLEANUP_LIMIT:
                    break
            if checked == CLEANUP_CHECKS or len(effects.records) >= CLEANUP_LIMIT:
                self._cleanup_due_ms = now.steady_ms + CLEANUP_PAUSE_MS
                return
            self._cleanup.pop()
        self._cleanup_due_ms = now.steady_ms if self._cleanup else self._next_cleanup_ms
