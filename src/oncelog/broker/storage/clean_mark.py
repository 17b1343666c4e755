"""Encode the clean-shutdown mark of a log directory. It says what the files of each log were at the stop.

Kafka's mark is JSON with `version` and `brokerEpoch`. Kafka ignores the other field, and its next stop replaces the
file. So a mark never describes logs that Kafka has changed. Source: Kafka's ``CleanShutdownFileHandler``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

import msgspec

from oncelog.cluster.replica import Replica
from oncelog.log.clean_end import CleanEnd
from oncelog.protocol.topics import TopicPartition


class Stopped(NamedTuple):
    """A log at the last clean stop."""

    topic_id: UUID
    files: CleanEnd


CleanEnds = dict[TopicPartition, Stopped]


class _Mark(msgspec.Struct):
    version: int = 0
    brokerEpoch: int = -1  # noqa: N815 - Kafka's name
    logs: dict[str, tuple[UUID, dict[int, CleanEnd]]] = {}


def encode(logs: CleanEnds) -> bytes:
    """Return the content of the mark."""
    topics: dict[str, tuple[UUID, dict[int, CleanEnd]]] = {}
    for (topic, partition), stopped in logs.items():
        topics.setdefault(topic, (stopped.topic_id, {}))[1][partition] = stopped.files
    return msgspec.json.encode(_Mark(logs=topics))


def decode(data: bytes) -> CleanEnds | None:
    """Return the logs of a mark, or None if it is damaged. An empty mark, as of an old Kafka, has no logs."""
    if not data.strip():
        return {}
    try:
        topics = msgspec.json.decode(data, type=_Mark).logs
    except msgspec.DecodeError:
        return None
    return {
        (topic, partition): Stopped(topic_id, files)
        for topic, (topic_id, partitions) in topics.items()
        for partition, files in partitions.items()
    }


def at_stop(before: CleanEnds, opened: Iterable[Replica], hosts: Callable[[str, int], bool]) -> CleanEnds:
    """Return all logs of a directory after their clean stop. `before` has those that the process has not opened."""
    logs = {key: stopped for key, stopped in before.items() if hosts(*key)}
    for replica in opened:
        key, files = (replica.topic, replica.partition), replica.log.clean_end()
        if files is not None:
            logs[key] = Stopped(replica.topic_id, files)
        else:
            logs.pop(key, None)
    return logs
