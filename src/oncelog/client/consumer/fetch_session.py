"""Incremental Fetch requests to one broker, without any I/O (KIP-227; Kafka's FetchSessionHandler)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from oncelog.protocol.schema import NO_UUID
from oncelog.protocol.topics import TopicPartition

LAST_WITH_NAMES = 12
"""The last version of Fetch in which a topic has its name; later versions have its id."""
NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1


class FetchTarget(NamedTuple):
    """What a Fetch request says about one partition."""

    offset: int
    leader_epoch: int
    max_bytes: int
    topic_id: UUID


class FetchSession:
    """The session with one broker. The broker remembers the partitions, so a request has only the changes."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._known: dict[TopicPartition, FetchTarget] = {}
        self._sent: dict[TopicPartition, FetchTarget] = {}

    def build(
        self, targets: Mapping[TopicPartition, FetchTarget], options: Mapping[str, int], rack: str
    ) -> FetchRequest:
        """Return the request that fetches exactly these partitions."""
        self._sent = dict(targets)
        if self.epoch == FULL_EPOCH:
            changed: Iterable[TopicPartition] = targets
            forgotten: list[TopicPartition] = []
        else:
            changed = [tp for tp, item in targets.items() if self._known.get(tp) != item]
            forgotten = [
                tp for tp, old in self._known.items() if tp not in targets or targets[tp].topic_id != old.topic_id
            ]
        topics: dict[str, FetchTopic] = {}
        for tp in changed:
            item = targets[tp]
            topic = topics.get(tp[0])
            if topic is None:
                topic = topics[tp[0]] = FetchTopic(topic=tp[0], topic_id=item.topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=tp[1],
                    current_leader_epoch=item.leader_epoch,
                    fetch_offset=item.offset,
                    partition_max_bytes=item.max_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=options["max_wait_ms"],
            min_bytes=options["min_bytes"],
            max_bytes=options["max_bytes"],
            isolation_level=options["isolation_level"],
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=self._forgotten(forgotten),
            rack_id=rack,
        )

    def _forgotten(self, partitions: Iterable[TopicPartition]) -> list[ForgottenTopic]:
        topics: dict[TopicPartition | tuple[str, UUID], ForgottenTopic] = {}
        for tp in partitions:
            topic_id = self._known[tp].topic_id
            topic = topics.setdefault((tp[0], topic_id), ForgottenTopic(topic=tp[0], topic_id=topic_id, partitions=[]))
            topic.partitions.append(tp[1])
        return list(topics.values())

    def succeeded(self, session_id: int) -> None:
        """Remember what the broker knows after it has accepted the last request."""
        self._known = self._sent
        if session_id == NO_SESSION:
            self.reset()
            return
        self.epoch = 1 if session_id != self.session_id or self.epoch == 2**31 - 1 else self.epoch + 1
        self.session_id = session_id

    def reset(self) -> None:
        """Begin a new session with the next request, because the broker has lost this one."""
        self.session_id, self.epoch = NO_SESSION, FULL_EPOCH
        self._known = {}


def topic_ids_usable(targets: Mapping[TopicPartition, FetchTarget]) -> bool:
    """Return whether the id of each topic is known: versions above `LAST_WITH_NAMES` need it."""
    return all(item.topic_id != NO_UUID for item in targets.values())
