"""Check that a member of a consumer group may commit offsets (KIP-848, KIP-1251).

A member may commit with an older epoch the offsets of partitions that it has had since: its next epoch may be on the
way. Source: Kafka's `ConsumerGroup.validateOffsetCommit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from oncelog.coordinator.groups.consumer.member import ConsumerMember
from oncelog.protocol.errors import ErrorCode, ProtocolError

Committed = Iterable[tuple[str, UUID | None, int]]
"""Topic, its id, and a partition whose offset is to be committed."""


def check_epoch(member: ConsumerMember, epoch: int, partitions: Committed) -> None:
    """Raise STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member, unless it may commit with this epoch."""
    code, name = ErrorCode.STALE_MEMBER_EPOCH, "member epoch"
    if member.classic is not None:
        code, name = ErrorCode.ILLEGAL_GENERATION, "generation id"
    if epoch > member.epoch:
        raise ProtocolError(code, f"Received {name} {epoch} is newer than current member epoch {member.epoch}.")
    if epoch == member.epoch:
        return
    for topic, topic_id, partition in partitions:
        since = None if topic_id is None else member.epoch_of(topic_id, partition)
        if since is None:
            message = f"Partition {topic}-{partition} is not assigned or pending revocation for member."
            raise ProtocolError(code, message)
        if epoch < since:
            message = (
                f"Received {name} {epoch} is older than assignment epoch {since} for partition {topic}-{partition}."
            )
            raise ProtocolError(code, message)
