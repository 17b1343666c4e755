"""What one broker has stored and served of each topic, as plain counters (Kafka's `BrokerTopicMetrics`).

The replicas of a topic share its counters, so the hot path adds to integers of an object that it has at hand. The
counters of a deleted topic are added to those of all topics, which never become smaller.
"""

from __future__ import annotations

from operator import attrgetter

COUNTERS = (
    "messages_in",
    "bytes_in",
    "bytes_out",
    "produce_requests",
    "failed_produce_requests",
    "fetch_requests",
    "failed_fetch_requests",
    "replication_bytes_in",
    "replication_bytes_out",
)
"""The attributes of `TopicTraffic`. Bytes are those of record batches."""


class TopicTraffic:
    """The counters of one topic."""

    __slots__ = COUNTERS

    def __init__(self) -> None:
        self.messages_in = 0
        """Records that this broker appended as leader, also of coordinators. Markers do not count."""
        self.bytes_in = 0
        """Bytes of these records' batches."""
        self.bytes_out = 0
        """Bytes that consumers were sent."""
        self.produce_requests = 0
        """Appends that clients requested: one for each partition of a request."""
        self.failed_produce_requests = 0
        """Those that were rejected."""
        self.fetch_requests = 0
        """Partitions that consumers' Fetch requests were answered for."""
        self.failed_fetch_requests = 0
        """Those that were answered with an error."""
        self.replication_bytes_in = 0
        """Bytes that this broker appended as follower."""
        self.replication_bytes_out = 0
        """Bytes that followers were sent."""

    def served(self, size: int, *, failed: bool, follower: bool) -> None:
        """Count one partition of an answered Fetch, with `size` bytes of records."""
        if follower:
            self.replication_bytes_out += size
            return
        self.fetch_requests += 1
        self.bytes_out += size
        self.failed_fetch_requests += failed

    def add(self, other: TopicTraffic) -> None:
        """Add the counters of another topic."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The counters of all topics."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicTraffic] = {}
        self._gone = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        """Return the counters of a topic that has a replica on this broker."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicTraffic()
        return found

    def forget(self, topic: str) -> None:
        """Drop the counters of a deleted topic. Those of all topics keep what it had."""
        found = self._topics.pop(topic, None)
        if found is not None:
            self._gone.add(found)

    def topics(self) -> tuple[tuple[str, TopicTraffic], ...]:
        """Return the counters of each topic."""
        return tuple(self._topics.items())

    def total(self, counter: str) -> int:
        """Return one counter of all topics together, with those of deleted ones. `counter` is one of `COUNTERS`."""
        read = attrgetter(counter)
        total: int = read(self._gone) + sum(map(read, self._topics.values()))
        return total
