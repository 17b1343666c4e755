"""Count the records that a producer sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.results import ProducerMetrics, ProducerTopicMetrics
from oncelog.client.metrics.stats import Stat
from oncelog.protocol.apis import ApiKey


class _Records:
    """The records of a topic, or of all topics. Each number is the size of a batch or request, in records or bytes."""

    __slots__ = ("bytes", "failed", "retried", "sent")

    def __init__(self, now: float) -> None:
        self.sent, self.bytes, self.retried, self.failed = Stat(now), Stat(now), Stat(now), Stat(now)

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
    """Records, batches and Produce requests of one producer."""

    def __init__(self, requests: Requests) -> None:
        self._clock = requests.clock
        now = self._clock()
        self._all = _Records(now)
        self._topics: dict[str, _Records] = {}
        self._queued, self._throttled = Stat(now), Stat(now)
        self._latency = requests.of_api(ApiKey.PRODUCE)
        self.splits = 0
        self.exhausted = 0
        """How many calls of `send` have failed because the buffer was full."""

    def sent(self, batches: Iterable[tuple[str, int, int, int]]) -> None:
        """Count a Produce request. Each batch has its topic, records, bytes, and time in the buffer in ms."""
        now = self._clock()
        everything = self._all
        total = 0
        for topic, records, size, queued_ms in batches:
            of_topic = self._topic(topic)
            of_topic.sent.record(records, now)
            of_topic.bytes.record(size, now)
            everything.bytes.record(size, now)
            self._queued.record(queued_ms, now)
            total += records
        everything.sent.record(total, now)

    def answered(self, throttle_ms: int) -> None:
        """Count a Produce response with the time that the broker delayed it."""
        self._throttled.record(throttle_ms, self._clock())

    def retried(self, topic: str, records: int) -> None:
        """Count the records of a batch that will be sent again."""
        now = self._clock()
        self._all.retried.record(records, now)
        self._topic(topic).retried.record(records, now)

    def failed(self, topic: str, records: int) -> None:
        """Count the records of a batch that has failed."""
        now = self._clock()
        self._all.failed.record(records, now)
        self._topic(topic).failed.record(records, now)

    def _topic(self, topic: str) -> _Records:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Records(self._clock())
        return found

    def forget(self, topic: str) -> None:
        """Forget a topic that the producer does not use any more."""
        self._topics.pop(topic, None)

    def metrics(self, **others: Any) -> ProducerMetrics:
        """Return the values. `others` are the fields that this class does not count."""
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
