"""The group coordinator of one partition of `__consumer_offsets`, as a state machine without I/O.

Every method that takes a token answers it through `Effects`, at once or from a later call; the shell around it appends
the records, replays them here and delivers the replies (`coordinator.effects`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any
from uuid import UUID

from oncelog.coordinator.clock import Now
from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups import commits, deletion, expiry, membership, queries, rebalance
from oncelog.coordinator.groups.config import GroupConfig
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.offsets import OffsetStore
from oncelog.coordinator.groups.records import group_of
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.states import GroupState
from oncelog.protocol.messages.describe_groups import DescribedGroup
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from oncelog.protocol.messages.list_groups import ListedGroup, ListGroupsRequest
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.offset_delete import OffsetDeleteRequest
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

WAKE_LIMIT = 200
"""Groups looked at in one tick."""
CLEANUP_LIMIT = 200
"""Tombstones that one tick writes in one batch: some ms."""
CLEANUP_LOOKS = 5000
"""Offsets and groups that one tick of the clean-up looks at: some ms."""
CLEANUP_PAUSE_MS = 20
"""Time between two ticks of the clean-up."""


class GroupCoordinator:
    """Groups and their offsets; see the modules it calls."""

    def __init__(self, config: GroupConfig, new_uuid: Callable[[], str]) -> None:
        """`new_uuid` makes the random part of a member id."""
        self.offsets = OffsetStore()
        self._registry = Registry(config, new_uuid)
        self._cleanup_due_ms: int | None = None
        self._next_cleanup_ms = 0
        self._cleanup: list[Iterator[CoordinatorRecord | None]] = []
        """The rest of the clean-up that runs now; the last one is the next."""
        self._now = Now(0, 0)

    @property
    def groups(self) -> dict[str, Group]:
        """Every group by its id; not to be changed."""
        return self._registry.groups

    # -- membership ---------------------------------------------------------------------------------------------

    def join_group(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, token: Any, now: Now
    ) -> Effects:
        """JoinGroup; the reply often waits for other members or for the initial delay."""
        effects = self._begin(now)
        joining = membership.Joining(request, version, client_id, client_host, token)
        membership.join(self._registry, joining, effects, now)
        return effects

    def sync_group(self, request: SyncGroupRequest, token: Any, now: Now) -> Effects:
        """SyncGroup; a follower's reply waits for the leader."""
        effects = self._begin(now)
        membership.sync(self._registry, request, token, effects, now)
        return effects

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> HeartbeatResponse:
        """Heartbeat: never writes, so the answer needs no Effects."""
        return HeartbeatResponse(error_code=membership.heartbeat(self._registry, request, now))

    def leave_group(self, request: LeaveGroupRequest, version: int, token: Any, now: Now) -> Effects:
        """LeaveGroup, in batches or of one member."""
        effects = self._begin(now)
        response = membership.leave(self._registry, request, version, effects, now)
        effects.replies.append(Reply(token, response))
        return effects

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, version: int, token: Any, now: Now) -> Effects:
        """OffsetCommit of topics that exist; ProtocolError when the whole commit is refused."""
        effects = self._begin(now)
        response = commits.commit(self._registry, request, version, effects, now)
        effects.replies.append(Reply(token, response))
        return effects

    def commit_transactional_offsets(self, request: TxnOffsetCommitRequest, token: Any, now: Now) -> Effects:
        """TxnOffsetCommit; its records must be appended under the producer's id and epoch. ProtocolError as above."""
        effects = self._begin(now)
        response = commits.commit_transactional(self._registry, request, effects, now)
        effects.replies.append(Reply(token, response))
        return effects

    def fetch_offsets(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """OffsetFetch of one group."""
        return commits.fetch(self.offsets, request, require_stable)

    def committed_topics(self, group_id: str) -> list[OffsetFetchRequestTopics]:
        """Return every partition with a committed offset of a group."""
        return commits.all_topics(self.offsets.committed(group_id))

    def delete_topic_offsets(self, topic: str, topic_id: UUID) -> Iterator[CoordinatorRecord | None]:
        """Yield tombstones for the offsets of a deleted topic, and None where the caller may pause."""
        return expiry.of_deleted_topic(self.offsets, topic, topic_id)

    # -- deleting -----------------------------------------------------------------------------------------------

    def delete_groups(self, group_ids: Iterable[str], token: Any) -> Effects:
        """DeleteGroups, as far as they live here; the reply is a list of results."""
        effects = Effects()
        results = deletion.delete_groups(self._registry, self.offsets, group_ids, effects)
        effects.replies.append(Reply(token, results))
        return effects

    def delete_some_offsets(self, group_id: str, most: int, token: Any) -> Effects:
        """Delete offsets of a group that is to be deleted, if it has more than `most`. Reply with their number."""
        effects = Effects()
        count = deletion.delete_some_offsets(self._registry, self.offsets, group_id, most, effects)
        effects.replies.append(Reply(token, count))
        return effects

    def delete_offsets(self, request: OffsetDeleteRequest, token: Any) -> Effects:
        """OffsetDelete of partitions that exist; ProtocolError when all of it is refused."""
        effects = Effects()
        response = deletion.delete_offsets(self._registry, self.offsets, request, effects)
        effects.replies.append(Reply(token, response))
        return effects

    # -- looking in ---------------------------------------------------------------------------------------------

    def list_groups(self, request: ListGroupsRequest) -> list[ListedGroup]:
        """Those that pass the request's filters."""
        return queries.listed(self.groups.values(), request)

    def describe_group(self, group_id: str, version: int) -> DescribedGroup:
        """All there is to say of one group."""
        group = self.groups.get(group_id)
        return queries.unknown(group_id, version) if group is None else queries.described(group)

    # -- the log ------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, *, producer_id: int | None = None, producer_epoch: int = -1) -> None:
        """Takes over a record that is in the log; with a producer id it is part of that producer's transaction."""
        key, value = record.key, record.value
        if isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._replay_group(key.group, value, record.replayed)
        elif isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            if value is not None:
                self._registry.get_or_make(key.group, self._now.wall_ms)
            self.offsets.replay(key, value, producer_id)

    def _replay_group(
        self, group_id: str, value: GroupMetadataValue | None, replayed: Callable[[], None] | None
    ) -> None:
        if value is None:
            self._registry.drop(group_id, self._now.wall_ms)
        elif replayed is not None:
            replayed()
        else:
            self.groups[group_id] = group_of(group_id, value, self._now.wall_ms)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """Takes over a marker: makes the producer's pending offsets visible, or drops them."""
        self.offsets.end_transaction(producer_id, commit)

    def loaded(self, now: Now) -> Effects:
        """Gives every member a new session, and a group that is over the (changed) size limit a rebalance."""
        effects = self._begin(now)
        self._cleanup_due_ms = now.steady_ms + self._registry.config.retention_check_interval_ms
        for group in self.groups.values():
            for member in group.members.values():
                self._registry.heard(group, member, now)
            if len(group.members) > self._registry.config.max_size and group.state is GroupState.STABLE:
                rebalance.prepare(self._registry, group, effects, now)
        return effects

    # -- time ---------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """When `tick` is due, on the steady clock, in ms."""
        dues = [self._registry.deadlines.next()]
        if self.groups:
            dues.append(self._cleanup_due_ms)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: Now) -> Effects:
        """Join and sync phases that are over, members that are gone, offsets that nobody needs."""
        effects = self._begin(now)
        for group_id in self._registry.deadlines.pop_due(now.steady_ms, WAKE_LIMIT):
            group = self.groups.get(group_id)
            if group is not None:
                self._tick_group(group, effects, now)
        if not effects.records and self._cleanup_due_ms is not None and self._cleanup_due_ms <= now.steady_ms:
            self._clean_up(effects, now)
        return effects

    def _tick_group(self, group: Group, effects: Effects, now: Now) -> None:
        rebalance.expire_members(self._registry, group, effects, now)
        if group.join_due_ms is not None and group.join_due_ms <= now.steady_ms:
            rebalance.join_phase_over(self._registry, group, effects, now)
        if group.sync_due_ms is not None and group.sync_due_ms <= now.steady_ms:
            rebalance.sync_phase_over(self._registry, group, effects, now)
        next_due_ms = group.next_due_ms()
        if next_due_ms is not None:
            self._registry.wake(group, next_due_ms)

    def _clean_up(self, effects: Effects, now: Now) -> None:
        """Run a part of the clean-up: first expired offsets, then groups without offsets."""
        config = self._registry.config
        if not self._cleanup:
            self._next_cleanup_ms = now.steady_ms + config.retention_check_interval_ms
            expired = expiry.expired_offsets(
                self.groups, self.offsets, config.offsets_retention_ms, lambda: self._now.wall_ms
            )
            self._cleanup = [expiry.empty_groups(self.groups, self.offsets), expired]
        looked = 0
        while self._cleanup and not effects.records:  # these have to be replayed before the next kind is looked at
            for record in islice(self._cleanup[-1], CLEANUP_LOOKS - looked):
                looked += 1
                if record is not None:
                    effects.records.append(record)
                    if len(effects.records) == CLEANUP_LIMIT:
                        break
            if looked == CLEANUP_LOOKS or len(effects.records) == CLEANUP_LIMIT:
                self._cleanup_due_ms = now.steady_ms + CLEANUP_PAUSE_MS
                return
            self._cleanup.pop()
        self._cleanup_due_ms = now.steady_ms if self._cleanup else self._next_cleanup_ms

    def _begin(self, now: Now) -> Effects:
        self._now = now
        return Effects()
