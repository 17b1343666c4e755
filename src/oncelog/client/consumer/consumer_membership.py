"""A member of a consumer group with a server-side assignor, without any I/O (KIP-848; 1082 for its own member id).

The coordinator assigns the partitions, and returns each member's target assignment in responses to heartbeats. The
member first revokes the partitions that are not in it (listener, commit), then adds the new ones, and reports what it
owns. Meanwhile, the other members continue.

    epoch 0 (joining) -> epoch n (a member) -> fenced: epoch 0 again, partitions lost -> ... -> left (-1, static -2)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from oncelog import errors
from oncelog.client.group_offsets import GroupMetadata
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""The leaving epoch of a static member: its partitions wait for its successor until the session ends."""

NOT_SERVED = (
    "group_protocol = 'consumer' needs a broker with the consumer protocol (KIP-848): Apache Kafka 4.0, or oncelog "
    "with the feature group.version; use group_protocol = 'classic' with this broker"
)

IdPartition = tuple[UUID, int]


class _Reported(NamedTuple):
    """What a heartbeat contains only if it has changed."""

    topics: tuple[str, ...]
    pattern: str
    owned: frozenset[IdPartition]


class HeartbeatResult(Enum):
    """What a response means for the driver."""

    ACCEPTED = "send the next heartbeat after the interval"
    RETRY = "retry the heartbeat after a back-off"
    FIND_COORDINATOR = "find the coordinator, then retry the heartbeat"
    FENCED = "the partitions are lost: call the user's listener, then join again"


class ConsumerMembership:
    """One member's view of one group."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        *,
        instance_id: str | None = None,
        rack: str | None = None,
        rebalance_timeout_ms: int = 300_000,
        assignor: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack = rack
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.assignor = assignor
        self.epoch = JOINING
        self.interval_ms = 0
        self.topics: list[str] = []
        self.pattern = ""
        self.target: set[IdPartition] | None = None
        """The target assignment; None until the coordinator has returned one."""
        self.owned: set[IdPartition] = set()
        """The partitions that this member has."""
        self.lost = False
        self._asked = False
        """Whether the coordinator may know this member."""
        self._everything = True
        """Whether the next heartbeat is complete, as it must be after an error."""
        self._reported = self._sent = _Reported((), "", frozenset())
        self._settled = GroupMetadata(group_id, group_instance_id=instance_id)

    def metadata(self) -> GroupMetadata:
        """Return the member's identity for commits and transactions; after the membership has ended, the last one."""
        return self._settled

    def subscribe(self, topics: Sequence[str], pattern: str) -> None:
        """Read these topics, or those whose whole name matches (RE2 syntax, applied by the broker)."""
        self.topics, self.pattern = sorted(set(topics)), pattern

    def heartbeat_request(self) -> ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat, with what has changed."""
        self._asked = True
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
        )
        reported, everything = self._reported, self._everything
        current = _Reported(
            tuple(self.topics), self.pattern, frozenset() if self.epoch == JOINING else frozenset(self.owned)
        )
        if everything:
            request.rack_id = self.rack
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.server_assignor = self.assignor
        if everything or reported.topics != current.topics:
            request.subscribed_topic_names = list(current.topics)
        if current.pattern if everything else reported.pattern != current.pattern:
            request.subscribed_topic_regex = current.pattern  # an empty one removes the pattern
        if everything or reported.owned != current.owned:
            request.topic_partitions = _by_topic(current.owned)
        self._sent = current
        return request

    def failed(self) -> None:
        """Make the next heartbeat complete, because this one was not answered."""
        self._everything = True

    def answered(self, response: ConsumerGroupHeartbeatResponse, sent_epoch: int) -> HeartbeatResult:
        """Apply the response to a heartbeat of this epoch. Raise KafkaError if a retry would not help."""
        if sent_epoch != self.epoch:
            return HeartbeatResult.ACCEPTED
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self._everything, self._reported = False, self._sent
            self.epoch, self.interval_ms = response.member_epoch, response.heartbeat_interval_ms
            self._settled = GroupMetadata(self.group_id, self.epoch, self.member_id, self.instance_id)
            if response.assignment is not None:
                self.target = {
                    (topic.topic_id, partition)
                    for topic in response.assignment.topic_partitions
                    for partition in topic.partitions
                }
            return HeartbeatResult.ACCEPTED
        self._everything = True
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.forget()
            return HeartbeatResult.FENCED
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            return HeartbeatResult.FIND_COORDINATOR
        if code.retriable:
            return HeartbeatResult.RETRY
        what = NOT_SERVED if code is ErrorCode.UNSUPPORTED_VERSION else response.error_message or code.text
        raise errors.error_for(code, f"group {self.group_id!r}: {what}")

    @property
    def needs_reconciliation(self) -> bool:
        """Whether the target assignment differs from the partitions that this member has."""
        return self.target is not None and self.target != self.owned

    def forget(self) -> None:
        """End the membership: another member may own the partitions already."""
        self.lost = True
        self._asked = False
        self.epoch = JOINING
        self.target = None
        self.owned = set()
        self._everything = True

    def rejoin(self) -> None:
        """Join again, after the user's listener was called."""
        self.lost = False

    def leave_request(self) -> ConsumerGroupHeartbeatRequest | None:
        """Return the request that leaves the group; None if the coordinator cannot know this member.

        Send it over the connection of the heartbeats, so that it follows a heartbeat without a response.
        """
        if not self._asked:
            return None
        epoch = LEAVING if self.instance_id is None else LEAVING_FOR_A_WHILE
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )


def as_re2(pattern: re.Pattern[str]) -> str:
    """Return the pattern for whole names that matches the same names as this pattern for a part of a name."""
    flags = "".join(letter for flag, letter in ((re.I, "i"), (re.S, "s")) if pattern.flags & flag)
    return f".*(?{flags}:{pattern.pattern}).*"


def _by_topic(partitions: Iterable[IdPartition]) -> list[TopicPartitions]:
    topics: dict[UUID, TopicPartitions] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, TopicPartitions(topic_id=topic_id, partitions=[])).partitions.append(partition)
    return list(topics.values())
