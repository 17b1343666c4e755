"""A member of a consumer group with a server-side assignor, without any I/O (KIP-848; 1082 for its own member id).

The coordinator divides the partitions and tells each member its part in answers to heartbeats. The member first lets go
what is not its any more (the user is told, offsets are committed), takes what is new, and reports what it owns. All of
this is between it and the coordinator: the other members go on.

    epoch 0 (joining) -> epoch n (a member) -> fenced: epoch 0 again, what it had is lost -> ... -> left (-1, static -2)
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
"""A static member, whose place is kept for its successor until the session ends."""

NOT_SERVED = (
    "group_protocol = 'consumer' needs a broker with the consumer group protocol (KIP-848), as Apache Kafka has since "
    "4.0; group_protocol = 'classic' works here, too"
)

IdPartition = tuple[UUID, int]


class Telling(NamedTuple):
    """What a heartbeat tells only when it has changed."""

    topics: tuple[str, ...]
    pattern: str
    owned: frozenset[IdPartition]


class Next(Enum):
    """What the driver does after an answer."""

    GO_ON = "heartbeat again after the interval"
    SOON = "heartbeat again after a back-off"
    FIND_COORDINATOR = "look the coordinator up, then heartbeat again"
    GIVE_UP = "what it had is lost: tell the user, then join again"


class ConsumerMembership:
    """One member's side of one group."""

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
        """What the coordinator wants this member to have; None until it has said so."""
        self.owned: set[IdPartition] = set()
        """What it has."""
        self.lost = False
        self._asked = False
        """Whether the coordinator may have us as a member."""
        self._everything = True
        """Whether the next heartbeat tells all, as it must after anything went wrong."""
        self._told = self._telling = Telling((), "", frozenset())
        self._settled = GroupMetadata(group_id, group_instance_id=instance_id)

    def metadata(self) -> GroupMetadata:
        """What commits and transactions carry: who we are, or, after the membership has ended, who we were last."""
        return self._settled

    def subscribe(self, topics: Sequence[str], pattern: str) -> None:
        """Read these topics, or those whose whole name matches (RE2 syntax; the broker does it)."""
        self.topics, self.pattern = sorted(set(topics)), pattern

    def heartbeat_request(self) -> ConsumerGroupHeartbeatRequest:
        """We live; and what has changed."""
        self._asked = True
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
        )
        told, everything = self._told, self._everything
        telling = Telling(
            tuple(self.topics), self.pattern, frozenset() if self.epoch == JOINING else frozenset(self.owned)
        )
        if everything:
            request.rack_id = self.rack
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.server_assignor = self.assignor
        if everything or told.topics != telling.topics:
            request.subscribed_topic_names = list(telling.topics)
        if telling.pattern if everything else told.pattern != telling.pattern:
            request.subscribed_topic_regex = telling.pattern  # an empty one takes the pattern back
        if everything or told.owned != telling.owned:
            request.topic_partitions = _by_topic(telling.owned)
        self._telling = telling
        return request

    def failed(self) -> None:
        """A heartbeat was not answered: the next one tells all."""
        self._everything = True

    def answered(self, response: ConsumerGroupHeartbeatResponse, sent_epoch: int) -> Next:
        """Take in the answer to a heartbeat that was sent in an epoch; KafkaError when there is no way on."""
        if sent_epoch != self.epoch:
            return Next.GO_ON
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self._everything, self._told = False, self._telling
            self.epoch, self.interval_ms = response.member_epoch, response.heartbeat_interval_ms
            self._settled = GroupMetadata(self.group_id, self.epoch, self.member_id, self.instance_id)
            if response.assignment is not None:
                self.target = {
                    (topic.topic_id, partition)
                    for topic in response.assignment.topic_partitions
                    for partition in topic.partitions
                }
            return Next.GO_ON
        self._everything = True
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.forget()
            return Next.GIVE_UP
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            return Next.FIND_COORDINATOR
        if code.retriable:
            return Next.SOON
        what = NOT_SERVED if code is ErrorCode.UNSUPPORTED_VERSION else response.error_message or code.text
        raise errors.error_for(code, f"group {self.group_id!r}: {what}")

    @property
    def due(self) -> bool:
        """Whether there is something to let go or to take."""
        return self.target is not None and self.target != self.owned

    def forget(self) -> None:
        """We are no member any more; what we had may be somebody else's already."""
        self.lost = True
        self._asked = False
        self.epoch = JOINING
        self.target = None
        self.owned = set()
        self._everything = True

    def rejoin(self) -> None:
        """The user knows what was lost: join again."""
        self.lost = False

    def leave_request(self) -> ConsumerGroupHeartbeatRequest | None:
        """We go, or do not come; None if we have not asked to be a member, or are none any more.

        Over the connection of the heartbeats, so that it comes after one that is not answered yet.
        """
        if not self._asked:
            return None
        epoch = LEAVING if self.instance_id is None else LEAVING_FOR_A_WHILE
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )


def as_re2(pattern: re.Pattern[str]) -> str:
    """What a pattern for a part of a name is where whole names are matched."""
    flags = "".join(letter for flag, letter in ((re.I, "i"), (re.S, "s")) if pattern.flags & flag)
    return f".*(?{flags}:{pattern.pattern}).*"


def _by_topic(partitions: Iterable[IdPartition]) -> list[TopicPartitions]:
    topics: dict[UUID, TopicPartitions] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, TopicPartitions(topic_id=topic_id, partitions=[])).partitions.append(partition)
    return list(topics.values())
