"""Count the records that a producer sends."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Protocol

from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.results import ProducerMetrics, ProducerTopicMetrics
from oncelog.client.metrics.stats import Windows
from oncelog.client.types import TopicPartition
from oncelog.protocol.apis import ApiKey


class SentBatch(Protocol):
    """The attributes of a batch that the metrics use. `created_ms` is the time when its first record was added."""

    tp: TopicPartition
    count: int
    created_ms: int


class _Records:
    """Count the records of one topic, or of all topics. Each number is the size of a batch or request."""

    __slots__ = ("bytes", "failed", "retried", "sent", "stats")

    def __init__(self, windows: Windows) -> None:
        self.stats = self.sent, self.bytes, self.retried, self.failed = tuple(windows.stat() for _ in range(4))

    def metrics(self, now: float) -> dict[str, Any]:
        """Return the fields that topics and producers share."""
        return {
            "record_send_total": self.sent.total,
            "record_send_rate": self.sent.recent(now).per_second,
            "record_retry_total": self.retried.total,
            "record_retry_rate": self.retried.recent(now).per_second,
            "record_error_total": self.failed.total,
            "record_error_rate": self.failed.recent(now).per_second,
        }


class Sends:
    """Count the records, batches and Produce requests of one producer."""

    def __init__(self, requests: Requests) -> None:
        self._clock = requests.clock
        self._windows = requests.windows
        self._all = _Records(self._windows)
        self._topics: dict[str, _Records] = {}
        self._queued, self._throttled = self._windows.stat(), self._windows.stat()
        self._latency = requests.of_api(ApiKey.PRODUCE)
        self.splits = 0
        self.exhausted = 0
        """How many calls of `send` have failed because the buffer was full."""

    def sent(self, batches: Iterable[tuple[SentBatch, Sized]], now_ms: int) -> None:
        """Count a Produce request: its batches, and the bytes of each. `now_ms` has the clock of `created_ms`."""
        sizes, queued = self._all.bytes, self._queued
        records = 0
        for batch, data in batches:
            topic = self._topics.get(batch.tp[0]) or self._topic(batch.tp[0])
            size, waited = len(data), now_ms - batch.created_ms
            records += batch.count
            topic.sent.total += batch.count
            topic.bytes.total += size
            sizes.record(size)
            queued.record(waited)
        self._all.sent.record(records)

    def answered(self, throttle_ms: int) -> None:
        """Count a Produce response, with the broker's throttle time."""
        self._throttled.record(throttle_ms)

    def retried(self, topic: str, records: int) -> None:
        """Count the records of a batch that will be sent again."""
        self._all.retried.record(records)
        self._topic(topic).retried.record(records)

    def failed(self, topic: str, records: int) -> None:
        """Count the records of a batch that has failed."""
        self._all.failed.record(records)
        self._topic(topic).failed.record(records)

    def _topic(self, topic: str) -> _Records:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Records(self._windows)
        return found

    def forget(self, topic: str) -> None:
        """Drop the counts of a topic that the producer no longer uses."""
        found = self._topics.pop(topic, None)
        if found is not None:
            self._windows.drop(found.stats)

    def metrics(self, **others: Any) -> ProducerMetrics:
        """Return the producer's metrics. `others` has the fields that this class does not count."""
        now = self._clock()
        sent, sizes, queued = (each.recent(now) for each in (self._all.sent, self._all.bytes, self._queued))
        throttled, latency = self._throttled.recent(now), self._latency.recent(now)
        return ProducerMetrics(
            **others,
            **self._all.metrics(now),
            records_per_request_avg=sent.average,
            record_queue_time_avg=queued.average,
            record_queue_time_max=queued.maximum,
            batch_size_avg=sizes.average,
            batch_size_max=sizes.maximum,
            batch_split_total=self.splits,
            request_latency_avg=latency.average,
            request_latency_max=latency.maximum,
            produce_throttle_time_avg=throttled.average,
            produce_throttle_time_max=throttled.maximum,
            buffer_exhausted_total=self.exhausted,
            topics={topic: _of_topic(each, now) for topic, each in self._topics.copy().items()},
        )


def _of_topic(records: _Records, now: float) -> ProducerTopicMetrics:
    return ProducerTopicMetrics(
        byte_total=int(records.bytes.total), byte_rate=records.bytes.recent(now).per_second, **records.metrics(now)
    )
