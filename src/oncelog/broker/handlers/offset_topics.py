"""What OffsetCommit, TxnOffsetCommit and OffsetDelete share: partitions that do not exist are refused one by one.

The topics of these requests have `name` and `partitions`, these have `partition_index`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from oncelog.cluster.metadata import TopicInfo


class Refused(NamedTuple):
    """Partitions of one topic, with their error."""

    topic: Any
    partitions: Sequence[Any]
    code: ErrorCode


def take_existing(
    topics: Iterable[Any],
    find: Callable[[Any], TopicInfo | None],
    unknown: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> tuple[list[Any], list[Refused]]:
    """(topics with the partitions that exist, what is refused); `unknown` is the error of a topic not found."""
    known, refused = [], []
    for topic in topics:
        info = find(topic)
        if info is None:
            refused.append(Refused(topic, topic.partitions, unknown))
            continue
        count = info.partition_count
        missing = [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]
        if missing:
            refused.append(Refused(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = [part for part in topic.partitions if 0 <= part.partition_index < count]
        if topic.partitions:
            known.append(topic)
    return known, refused


def merge(answered: list[Any], refused: list[Any], identity: Callable[[Any], Any]) -> None:
    """Adds the answers of what was refused; a topic that is in both is answered once."""
    by_topic = {identity(topic): topic for topic in answered}
    for topic in refused:
        same = by_topic.get(identity(topic))
        if same is None:
            answered.append(topic)
        else:
            same.partitions += topic.partitions
