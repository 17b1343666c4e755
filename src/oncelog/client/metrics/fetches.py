"""Count the records that a consumer reads."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypedDict

from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.results import (
    ClientMetrics,
    ConsumerMetrics,
    ConsumerTopicMetrics,
    PartitionMetrics,
    client_fields,
)
from oncelog.client.metrics.stats import Windows
from oncelog.client.metrics.topics import ByTopic
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.topics import TopicPartition

_HEARTBEATS = (ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT)


class _Read(TypedDict):
    """The fields that topics and consumers share."""

    records_consumed_total: int
    records_consumed_rate: float
    bytes_consumed_total: int
    bytes_consumed_rate: float
    fetch_size_avg: float | None
    fetch_size_max: float | None


class _Records:
    """Count the records of one topic, or of all topics: the records that calls return, and the bytes of responses."""

    __slots__ = ("consumed", "fetched", "stats")

    def __init__(self, windows: Windows) -> None:
        self.stats = self.consumed, self.fetched = windows.stat(), windows.stat()

    def metrics(self, now: float) -> _Read:
        """Return the fields that topics and consumers share."""
        fetched = self.fetched.recent(now)
        return {
            "records_consumed_total": int(self.consumed.total),
            "records_consumed_rate": self.consumed.recent(now).per_second,
            "bytes_consumed_total": int(self.fetched.total),
            "bytes_consumed_rate": fetched.per_second,
            "fetch_size_avg": fetched.average,
            "fetch_size_max": fetched.maximum,
        }


class Fetches:
    """Count the records, Fetch requests and assignments of one consumer."""

    def __init__(self, requests: Requests) -> None:
        self._fetch, self._commit = requests.of_api(ApiKey.FETCH), requests.of_api(ApiKey.OFFSET_COMMIT)
        self._heartbeats = [requests.of_api(each) for each in _HEARTBEATS]
        self._windows = requests.windows
        self._all = _Records(self._windows)
        self._topics = ByTopic(self._windows, _Records)
        self._throttled, self._rebalances = self._windows.stat(), self._windows.stat()
        self._rebalanced_at: float | None = None

    def fetched(self, by_topic: Mapping[str, int], throttle_ms: int) -> None:
        """Count a Fetch response: the bytes of each topic's batches, and the broker's throttle time."""
        self._windows.now()
        for topic, size in by_topic.items():
            self._topics[topic].fetched.record(size)
        if by_topic:
            self._all.fetched.record(sum(by_topic.values()))
        self._throttled.record(throttle_ms)

    def consumed(self, topic: str, records: int) -> None:
        """Count records that the program gets."""
        self._windows.now()
        self._all.consumed.add(records)
        self._topics[topic].consumed.add(records)

    def rebalanced(self) -> None:
        """Count an assignment that the consumer got from its group."""
        self._rebalanced_at = self._windows.now()
        self._rebalances.record(1)

    def keep_topics(self, topics: Container[str]) -> None:
        """Drop the counts of all other topics, because they are no longer assigned."""
        self._topics.keep(topics)

    def metrics(self, assigned: int, lags: Mapping[TopicPartition, int], client: ClientMetrics) -> ConsumerMetrics:
        """Return the metrics of the consumer and those of its client."""
        now = self._windows.clock()
        throttled, rebalances = self._throttled.recent(now), self._rebalances.recent(now)
        fetches, commits = self._fetch.recent(now), self._commit.recent(now)
        heartbeats = [each.recent(now).maximum for each in self._heartbeats]
        return ConsumerMetrics(
            **client_fields(client),
            **self._all.metrics(now),
            fetch_total=self._fetch.count,
            fetch_rate=fetches.count_per_second,
            fetch_latency_avg=fetches.average,
            fetch_latency_max=fetches.maximum,
            fetch_throttle_time_avg=throttled.average,
            fetch_throttle_time_max=throttled.maximum,
            records_lag_max=max(lags.values(), default=None),
            assigned_partitions=assigned,
            rebalance_total=self._rebalances.count,
            rebalance_rate_per_hour=rebalances.count_per_second * 3600,
            last_rebalance_seconds_ago=None if self._rebalanced_at is None else now - self._rebalanced_at,
            heartbeat_total=sum(each.count for each in self._heartbeats),
            heartbeat_response_time_max=max((each for each in heartbeats if each is not None), default=None),
            commit_total=self._commit.count,
            commit_latency_avg=commits.average,
            commit_latency_max=commits.maximum,
            topics={topic: ConsumerTopicMetrics(**each.metrics(now)) for topic, each in self._topics.items()},
            partitions={tp: PartitionMetrics(lag) for tp, lag in lags.items()},
        )
