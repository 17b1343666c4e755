"""Describe topics and partitions, check topic names, and convert topic ids to text."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from oncelog.cluster.partition_state import PartitionState
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE

TOPIC_NAME_MAX = 249
MAX_NEW_PARTITIONS = 10_000
"""The maximum number of partitions that one request may create. Beyond it: POLICY_VIOLATION, as in Kafka."""
NO_LEADER = -1
"""The leader id in responses for a partition that has no leader."""
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
TOPIC_IDS = "/oncelog/topic_ids"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The replicas of a partition, as broker ids, and its state. The properties are the fields that most code reads."""

    replicas: tuple[int, ...]
    state: PartitionState

    @property
    def leader(self) -> int:
        """Return the broker that leads, or NO_LEADER."""
        return self.state.leader

    @property
    def leader_epoch(self) -> int:
        """Return the number of elections."""
        return self.state.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """Return the in-sync replicas."""
        return self.state.isr

    @property
    def complete(self) -> tuple[int, ...]:
        """Return the replicas that have all committed records: the ISR and the ELR."""
        return self.state.complete


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. `configs` holds only the topic's own settings."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        """Return the number of partitions."""
        return len(self.partitions)

    @property
    def internal(self) -> bool:
        """Return whether the topic belongs to the coordinators."""
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` is legal (Kafka's `Topic.validate`)."""
    reason = None
    if not name:
        reason = "is empty"
    elif name in (".", ".."):
        reason = "cannot be '.' or '..'"
    elif len(name) > TOPIC_NAME_MAX:
        reason = f"has {len(name)} characters; at most {TOPIC_NAME_MAX} are allowed"
    elif not _NAME_CHARACTERS.issuperset(name):
        reason = "may contain only ASCII letters, digits, '.', '_' and '-'"
    if reason is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:260]!r} {reason}")


def topic_id_text(topic_id: UUID) -> str:
    """Convert an id to URL-safe base64 without padding, as Kafka's `Uuid.toString` does."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_path(topic_id: UUID) -> str:
    """Return the path of the node that exists as long as the topic of this id."""
    return f"{TOPIC_IDS}/{topic_id_text(topic_id)}"


def parse_topic_id(text: str) -> UUID:
    """Convert the result of `topic_id_text` back to the id."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
