"""Drive one group coordinator as its shell does (append, replay, reply), but in memory and at once.

After each step, a coordinator that reads the log must have the same durable state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.coordinator.groups.classic.group import ClassicGroup
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.groups.records import LAYOUTS, decode_record
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.messages.group_metadata_value import GroupMetadataValue
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.schema import NO_UUID, encode_versioned
from support.durable_state import check
from support.fixed_topics import FixedTopics, topic_id

START_MS = 1_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
GROUP = "g"


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata with its version prefix."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


RANGE = (("range", subscription("t")),)


@dataclass(frozen=True)
class Appended:
    """A record in the log, or (without key) a marker."""

    key: bytes | None
    value: bytes | None
    producer_id: int | None = None
    commit: bool = False


class Waiting:
    """A request's token. `response` is None until it is answered."""

    def __init__(self) -> None:
        self.response: Any = None
        self.failed: ErrorCode | None = None

    @property
    def error(self) -> ErrorCode | None:
        return None if self.response is None else ErrorCode(self.response.error_code)


class GroupDriver:
    """Run a coordinator. `log` is the partition; `refuse` makes the next append fail."""

    layouts = LAYOUTS

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.now_ms = START_MS
        self.ahead_ms = 0
        self.log: list[Appended] = []
        self.refuse: ErrorCode | None = None
        self._uuids = 0
        self.topics = FixedTopics()
        self.coordinator = self._new()
        self.coordinator.loaded(self.now)
        self._reader = self._new()
        """A coordinator that only reads the log."""

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, self._new_uuid, self.topics)

    def _new_uuid(self) -> str:
        self._uuids += 1
        return str(self._uuids)

    @property
    def now(self) -> Now:
        """Return the time. `now_ms` is the wall clock; the monotonic one may differ (`set_clock`)."""
        return Now(self.now_ms, self.now_ms - self.ahead_ms)

    def set_clock(self, ms: int) -> None:
        """Set the wall clock forward or back."""
        self.now_ms += ms
        self.ahead_ms += ms

    @property
    def group(self) -> ClassicGroup:
        group = self.coordinator.registry.find(GROUP, ClassicGroup)
        assert group is not None
        return group

    @property
    def is_consumer_group(self) -> bool:
        return isinstance(self.coordinator.groups.get(GROUP), ConsumerGroup)

    # -- the shell ------------------------------------------------------------------------------------------------

    def apply(self, effects: Effects, producer_id: int | None = None) -> list[CoordinatorRecord]:
        """Apply effects, and return the appended records."""
        if effects.records and self.refuse is not None:
            error, self.refuse = self.refuse, None
            for reply in effects.replies:
                reply.token.failed = error
            return []
        for record in effects.records:
            key = encode_versioned(record.key, record.key_version)
            value = None if record.value is None else encode_versioned(record.value, record.value_version)
            self._write(Appended(key, value, producer_id))
            if producer_id is None:
                self.coordinator.replay(record)
            else:
                self.coordinator.replay(record, producer_id=producer_id, producer_epoch=0)
        check(self.coordinator, self._reader)
        for reply in effects.replies:
            assert reply.token.response is None, "answered twice"
            reply.token.response = reply.response
        return effects.records

    def marker(self, producer_id: int, commit: bool) -> None:
        self._write(Appended(None, None, producer_id, commit))
        self.coordinator.replay_end_transaction(producer_id, 0, commit)
        check(self.coordinator, self._reader)

    def _write(self, entry: Appended) -> None:
        self.log.append(entry)
        self._read(self._reader, entry)

    def _read(self, coordinator: GroupCoordinator, entry: Appended) -> None:
        """Replay the content of an entry."""
        if entry.key is None:
            assert entry.producer_id is not None
            coordinator.replay_end_transaction(entry.producer_id, 0, entry.commit)
        else:
            record = decode_record(entry.key, entry.value, self.layouts)
            assert record is not None
            coordinator.replay(record, producer_id=entry.producer_id)

    def reloaded(self) -> GroupCoordinator:
        """Return another coordinator that has read the log."""
        other = self._new()
        for entry in self.log:
            self._read(other, entry)
        return other

    def fail_over(self) -> None:
        """Continue with a coordinator that knows only the log. Waiting requests are never answered."""
        self.coordinator, self._reader = self.reloaded(), self.reloaded()
        self.apply(self.coordinator.loaded(self.now))

    def pass_time(self, ms: int) -> None:
        """Advance the clock, and tick at each deadline on the way."""
        end = self.now_ms + ms
        while (due := self.coordinator.deadline()) is not None and due + self.ahead_ms <= end:
            self.now_ms = max(due + self.ahead_ms, self.now_ms)
            self.apply(self.coordinator.tick(self.now))
        self.now_ms = end

    # -- clients --------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
    ) -> Waiting:
        token = Waiting()
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        )
        self.apply(self.coordinator.classic_protocol(GROUP).join(request, version, "client", "/host", token, self.now))
        return token

    def consumer_heartbeat(self, version: int = 1, **fields: Any) -> Waiting | ErrorCode:
        """Send ConsumerGroupHeartbeat. Return the error if the request is rejected."""
        token = Waiting()
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, **fields)
        try:
            effects = self.coordinator.consumer.heartbeat(request, version, "client", "/host", token, self.now)
        except ProtocolError as error:
            return error.code
        self.apply(effects)
        return token

    def enter(self, **options: Any) -> tuple[str, Waiting]:
        """Send the two requests of a dynamic member's join: (its id, the second request)."""
        first = self.join(**options)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        member_id = first.response.member_id
        return member_id, self.join(member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol: str | None = "range",
    ) -> Waiting:
        token = Waiting()
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        self.apply(self.coordinator.classic_protocol(GROUP).sync(request, token, self.now))
        return token

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode(self.coordinator.classic_protocol(GROUP).heartbeat(request, self.now).error_code)

    def leave(self, *members: tuple[str, str | None], version: int = 5) -> Waiting:
        token = Waiting()
        request = LeaveGroupRequest(
            group_id=GROUP,
            member_id=members[0][0],
            members=[MemberIdentity(member_id=name, group_instance_id=instance) for name, instance in members],
        )
        self.apply(self.coordinator.classic_protocol(GROUP).leave(request, version, token, self.now))
        return token

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 9,
        metadata: str | None = "",
        retention_ms: int = -1,
    ) -> Waiting | ErrorCode:
        """Commit offsets. Return the error if the whole commit is rejected."""
        token = Waiting()
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id(topic) if self.is_consumer_group else NO_UUID,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        try:
            self.apply(self.coordinator.commit_offsets(request, version, token, self.now))
        except ProtocolError as error:
            return error.code
        return token

    def commit_in_transaction(
        self,
        producer_id: int,
        offsets: dict[tuple[str, int], int],
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
    ) -> Waiting | ErrorCode:
        token = Waiting()
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=GROUP,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        try:
            effects = self.coordinator.commit_transactional_offsets(request, token, self.now)
        except ProtocolError as error:
            return error.code
        self.apply(effects, producer_id)
        return token

    def fetch(self, topic: str = "t", partition: int = 0, *, stable: bool = False) -> int | ErrorCode:
        """Return the offset, or the partition's error."""
        group = OffsetFetchRequestGroup(
            group_id=GROUP, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
        )
        answer = self.coordinator.offsets.fetch(group, stable).topics[0].partitions[0]
        return ErrorCode(answer.error_code) if answer.error_code else int(answer.committed_offset)

    def delete_offset(self, topic: str = "t", partition: int = 0) -> ErrorCode:
        """Send OffsetDelete. Return the partition's error."""
        token = Waiting()
        asked = OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
        )
        self.apply(self.coordinator.delete_offsets(OffsetDeleteRequest(group_id=GROUP, topics=[asked]), token))
        return ErrorCode(token.response.topics[0].partitions[0].error_code)

    def stable_group(self, count: int, **options: Any) -> list[str]:
        """Create a group of `count` dynamic members, each assigned its own id. The leader comes first."""
        joins = [self.enter(**options) for _ in range(count)]
        self.pass_time(self.config.initial_rebalance_delay_ms)
        leader = joins[0][1].response.leader
        ids = sorted((member_id for member_id, _ in joins), key=lambda member_id: member_id != leader)
        generation = joins[0][1].response.generation_id
        assert self.sync(leader, generation, {name: name.encode() for name in ids}).error is ErrorCode.NONE
        for name in ids[1:]:
            assert self.sync(name, generation).response.assignment == name.encode()
        return ids


def last_group(driver: GroupDriver) -> GroupMetadataValue:
    """Return the newest record of the group."""
    for entry in reversed(driver.log):
        assert entry.key is not None
        record = decode_record(entry.key, entry.value)
        if record is not None and isinstance(record.value, GroupMetadataValue):
            return record.value
    raise AssertionError("no group record")


def static_group(driver: GroupDriver) -> tuple[str, str]:
    """Create a stable group, and return the ids of the members "a" (the leader) and "b"."""
    one, two = driver.join(instance="a"), driver.join(instance="b")
    driver.pass_time(0)
    ids = one.response.member_id, two.response.member_id
    driver.sync(ids[0], 1, {ids[0]: b"A", ids[1]: b"B"}, instance="a")
    assert driver.sync(ids[1], 1, instance="b").response.assignment == b"B"
    return ids
