"""The group coordinator of one partition of `__consumer_offsets`, as a state machine without I/O.

A method that takes a token replies to it through `Effects`, which it or a later call returns. The shell appends the
records, replays them here, and delivers the replies (`coordinator.effects`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups import commits, deletion, membership
from oncelog.coordinator.groups.group import Group, GroupState
from oncelog.coordinator.groups.membership import Joining
from oncelog.coordinator.groups.offsets import OffsetStore
from oncelog.coordinator.groups.operation import GroupOperation
from oncelog.coordinator.groups.records import new_group_record
from oncelog.coordinator.groups.registry import GroupConfig, Registry
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.offset_delete import OffsetDeleteRequest
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

WAKE_LIMIT = 200
"""Groups that one tick processes."""
CLEANUP_LIMIT = 200
"""Tombstones that one tick writes in one batch, which takes some ms."""
CLEANUP_CHECKS = 5000
"""Offsets and groups that one tick of the clean-up checks, which takes some ms."""
CLEANUP_PAUSE_MS = 20
"""Time between two ticks of the clean-up."""


class GroupCoordinator:
    """The groups of one partition and their offsets.

    A request of a group becomes a `GroupOperation`, which the functions of `membership` carry out.
    """

    def __init__(self, config: GroupConfig, new_uuid: Callable[[], str]) -> None:
        """`new_uuid` makes the random part of a member id."""
        self.offsets = OffsetStore()
        self._registry = Registry(config, new_uuid)
        self._cleanup_due_ms: int | None = None
        self._next_cleanup_ms = 0
        self._cleanup: list[Iterator[CoordinatorRecord | None]] = []
        """The remaining parts of the current clean-up. The last one in the list runs next."""
        self._now = Now(0, 0)

    @property
    def groups(self) -> dict[str, Group]:
        """Return all groups by their ids. Callers must not change them."""
        return self._registry.groups

    # -- membership ---------------------------------------------------------------------------------------------

    def join_group(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, token: Any, now: Now
    ) -> Effects:
        """Handle JoinGroup. The reply often waits for other members, or for the initial rebalance delay."""
        joining = Joining(request, version, client_id, client_host, token)
        config = self._registry.config
        is_new_group = request.group_id not in self.groups
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            return Effects(replies=[joining.refusal(ErrorCode.INVALID_SESSION_TIMEOUT)])
        if is_new_group and request.member_id:
            return Effects(replies=[joining.refusal(ErrorCode.UNKNOWN_MEMBER_ID)])
        group = self._registry.get_or_create(request.group_id, now.wall_ms)
        operation = self._operation(group, now)
        membership.join(operation, joining)
        if is_new_group:
            operation.write(new_group_record(group))
        return operation.effects

    def sync_group(self, request: SyncGroupRequest, token: Any, now: Now) -> Effects:
        """Handle SyncGroup. A follower's reply waits for the leader."""
        group = self.groups.get(request.group_id)
        if group is None:
            return Effects(replies=[Reply(token, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))])
        operation = self._operation(group, now)
        membership.sync(operation, request, token)
        return operation.effects

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> HeartbeatResponse:
        """Handle Heartbeat. It never writes, so it returns the response instead of Effects."""
        group = self.groups.get(request.group_id)
        if group is None:
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return HeartbeatResponse(error_code=membership.heartbeat(self._operation(group, now), request))

    def leave_group(self, request: LeaveGroupRequest, version: int, token: Any, now: Now) -> Effects:
        """Handle LeaveGroup of one member or several."""
        group = self.groups.get(request.group_id)
        if group is None:
            return Effects(replies=[Reply(token, membership.leave(None, request, version))])
        operation = self._operation(group, now)
        operation.reply(token, membership.leave(operation, request, version))
        return operation.effects

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, version: int, token: Any, now: Now) -> Effects:
        """Handle OffsetCommit of existing topics. Raises ProtocolError if the whole commit is rejected."""
        group = self.groups.get(request.group_id)
        commits.check_commit(group, request, version)
        if group is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            member = group.members.get(request.member_id)
            if member is not None:
                self._registry.touch_session(group, member, now)
        limit = self._registry.config.offset_metadata_max_bytes
        self._now = now
        response, records = commits.accept(request, limit, now.wall_ms)
        return Effects(records, [Reply(token, response)])

    def commit_transactional_offsets(self, request: TxnOffsetCommitRequest, token: Any, now: Now) -> Effects:
        """Handle TxnOffsetCommit. Its records are appended with the producer's id and epoch. Raises ProtocolError."""
        commits.check_transactional_commit(self.groups.get(request.group_id), request)
        limit = self._registry.config.offset_metadata_max_bytes
        self._now = now
        response, records = commits.accept_transactional(request, limit, now.wall_ms)
        return Effects(records, [Reply(token, response)])

    def delete_topic_offsets(self, topic: str, topic_id: UUID) -> Iterator[CoordinatorRecord | None]:
        """Yield tombstones for the offsets of a deleted topic, and None when the caller may pause."""
        return deletion.offsets_of_deleted_topic(self.offsets, topic, topic_id)

    def delete_offsets_since(self, topic: str, since_ms: int) -> Iterator[CoordinatorRecord | None]:
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
        return Effects(records, [Reply(token, response)])

    # -- the log ------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, *, producer_id: int | None = None, producer_epoch: int = -1) -> None:
        """Apply a record of the log. With a producer id, it is part of that producer's transaction."""
        key, value = record.key, record.value
        if isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._replay_group(key.group, value)
        elif isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            if value is not None:
                self._registry.get_or_create(key.group)
            self.offsets.replay(key, value, producer_id)

    def _replay_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        if value is None:
            self._registry.drop(group_id, self._now.wall_ms)
        else:
            self._registry.get_or_create(group_id).apply(value)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """Apply a marker: commit the producer's pending offsets, or drop them."""
        self.offsets.end_transaction(producer_id, commit)

    def loaded(self, now: Now) -> Effects:
        """Start the members' sessions. Rebalance a group that exceeds the size limit, which may have changed."""
        self._now = now
        effects = Effects()
        config = self._registry.config
        self._cleanup_due_ms = now.steady_ms + config.retention_check_interval_ms
        for group in self.groups.values():
            operation = GroupOperation(self._registry, group, effects, now)
            for member in group.members.values():
                operation.touch_session(member)
            if len(group.members) > config.max_size and group.state is GroupState.STABLE:
                operation.prepare_rebalance()
        return effects

    # -- time ---------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Return when `tick` is due, in ms on the steady clock."""
        dues = [self._registry.deadlines.next()]
        if self.groups:
            dues.append(self._cleanup_due_ms)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: Now) -> Effects:
        """End join and sync phases, expire members and their ids, delete expired offsets and groups without offsets."""
        self._now = now
        effects = Effects()
        for group_id in self._registry.deadlines.pop_due(now.steady_ms, WAKE_LIMIT):
            group = self.groups.get(group_id)
            if group is not None:
                GroupOperation(self._registry, group, effects, now).tick()
        if not effects.records and self._cleanup_due_ms is not None and self._cleanup_due_ms <= now.steady_ms:
            self._clean_up(effects, now)
        return effects

    def _clean_up(self, effects: Effects, now: Now) -> None:
        """Run a part of the clean-up: first expired offsets, then groups without offsets."""
        config = self._registry.config
        if not self._cleanup:
            self._next_cleanup_ms = now.steady_ms + config.retention_check_interval_ms
            expired = deletion.expired_offsets(
                self.groups, self.offsets, config.offsets_retention_ms, lambda: self._now.wall_ms
            )
            self._cleanup = [deletion.empty_groups(self.groups, self.offsets), expired]
        checked = 0
        while self._cleanup and not effects.records:  # the shell replays these records before the next kind
            for record in islice(self._cleanup[-1], CLEANUP_CHECKS - checked):
                checked += 1
                if record is not None:
                    effects.records.append(record)
                    if len(effects.records) == CLEANUP_LIMIT:
                        break
            if checked == CLEANUP_CHECKS or len(effects.records) == CLEANUP_LIMIT:
                self._cleanup_due_ms = now.steady_ms + CLEANUP_PAUSE_MS
                return
            self._cleanup.pop()
        self._cleanup_due_ms = now.steady_ms if self._cleanup else self._next_cleanup_ms

    def _operation(self, group: Group, now: Now) -> GroupOperation:
        self._now = now
        return GroupOperation(self._registry, group, Effects(), now)
