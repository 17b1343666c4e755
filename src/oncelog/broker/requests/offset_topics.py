"""Reject partitions that do not exist or may not be read, for OffsetCommit, TxnOffsetCommit and OffsetDelete.

The topics of these requests have `name` and `partitions`, and the partitions have `partition_index`. A request may
have many of them, so each function is a generator that pauses after each (`broker.turns.in_turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from oncelog.cluster.topics import TopicInfo
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.schema import Message


class Refused(NamedTuple):
    """Partitions of one topic, with their error."""

    topic: Any
    partitions: Sequence[Any]
    code: ErrorCode


def take_existing(
    topics: Iterable[Any],
    find: Callable[[Any], TopicInfo | None],
    may_read: Callable[[str], bool],
    unknown: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps[tuple[list[Any], list[Refused]]]:
    """Return the topics with their existing partitions, and the others.

    The error of a topic that the client may not read is TOPIC_AUTHORIZATION_FAILED, so that the client does not learn
    whether the topic exists. `unknown` is the error of a missing topic.
    """
    known: list[Any] = []
    refused: list[Refused] = []
    for topic in topics:
        yield
        info = find(topic)
        if topic.name and not may_read(topic.name):
            refused.append(Refused(topic, topic.partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        if info is None:
            refused.append(Refused(topic, topic.partitions, unknown))
            continue
        existing: list[Any] = []
        missing: list[Any] = []
        for partition in topic.partitions:
            yield
            (existing if 0 <= partition.partition_index < info.partition_count else missing).append(partition)
        if missing:
            refused.append(Refused(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if existing:
            topic.partitions = existing
            known.append(topic)
    return known, refused


def still_existing(
    topics: Iterable[Any], exists: Callable[[Any], bool], unknown: ErrorCode, deleted: list[Refused]
) -> list[Any]:
    """Return the topics of one part of a request that still exist. Add the others to `deleted` with `unknown`.

    A topic may be deleted between two parts. A new topic of its name must not get the offsets of the later parts.
    """
    left = []
    for topic in topics:
        if exists(topic):
            left.append(topic)
        else:
            deleted.append(Refused(topic, topic.partitions, unknown))
    return left


def answered(refused: Iterable[Refused], answer: type[Message]) -> Steps[list[Any]]:
    """Return the response's topics for rejected partitions. `answer` is their class."""
    partition: Any = answer.FIELDS["partitions"].element
    topics = []
    for each in refused:
        topic: Any = answer()
        for key in ("name", "topic_id"):
            if key in answer.FIELDS:
                setattr(topic, key, getattr(each.topic, key))
        for item in each.partitions:
            yield
            topic.partitions.append(partition(partition_index=item.partition_index, error_code=each.code))
        topics.append(topic)
        yield
    return topics


def merge(topics: list[Any], refused: Iterable[Any], identity: Callable[[Any], Any]) -> Steps[None]:
    """Add the topics `refused` to the topics of a response. A topic that is in both is answered once."""
    by_topic = {}
    for topic in topics:
        yield
        by_topic[identity(topic)] = topic
    for topic in refused:
        yield
        same = by_topic.get(identity(topic))
        if same is None:
            topics.append(topic)
        else:
            same.partitions += topic.partitions
