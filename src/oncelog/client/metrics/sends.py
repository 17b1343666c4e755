"""Count the records that a producer sends."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol, TypedDict

from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.results import ClientMetrics, ProducerMetrics, ProducerTopicMetrics, client_fields
from oncelog.client.metrics.stats import Windows
from oncelog.client.metrics.topics import ByTopic
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.topics import TopicPartition


class SentBatch(Protocol):
    """The attributes of a batch that the metrics use. `created_ms` is the time when its first record was added."""

    tp: TopicPartition
    count: int
    created_ms: int


class _Written(TypedDict):
    """The fields that topics and producers share."""

    record_send_total: int
    record_send_rate: float
    record_retry_total: int
    record_retry_rate: float
    record_error_total: int
    record_error_rate: float


class _Records:
    """Count the records of one topic, or of all topics. Each number is the size of a batch or request."""

    __slots__ = ("bytes", "failed", "retried", "sent", "stats")

    def __init__(self, windows: Windows) -> None:
        self.stats = self.sent, self.bytes, self.retried, self.failed = tuple(windows.stat() for _ in range(4))

    def metrics(self, now: float) -> _Written:
        """Return the fields that topics and producers share."""
        return {
            "record_send_total": int(self.sent.total),
            "record_send_rate": self.sent.recent(now).per_second,
            "record_retry_total": int(self.retried.total),
            "record_retry_rate": self.retried.recent(now).per_second,
            "record_error_total": int(self.failed.total),
            "record_error_rate": self.failed.recent(now).per_second,
        }


class Sends:
    """Count the records, batches and Produce requests of one producer."""

    def __init__(self, requests: Requests) -> None:
        self._windows = requests.windows
        self._all = _Records(self._windows)
        self._topics = ByTopic(self._windows, _Records)
        self._queued, self._throttled = self._windows.stat(), self._windows.stat()
        self._latency = requests.of_api(ApiKey.PRODUCE)
        self.splits = 0
        self.gaps = 0
        """How many batches were rejected because an earlier one had not arrived."""
        self.stale = 0
        """How many batches were rejected because the log has later records."""
        self.exhausted = 0
        """How many calls of `send` have failed because the buffer was full."""

    def sent(self, batches: Iterable[tuple[SentBatch, Sized]], now_ms: int) -> None:
        """Count a Produce request: its batches, and the bytes of each. `now_ms` has the clock of `created_ms`."""
        self._windows.now()
        sizes, queued = self._all.bytes, self._queued
        records = 0
        for batch, data in batches:
            topic = self._topics[batch.tp[0]]
            size, waited = len(data), now_ms - batch.created_ms
            records += batch.count
            topic.sent.add(batch.count)
            topic.bytes.add(size)
            sizes.record(size)
            queued.record(waited)
        self._all.sent.record(records)

    def answered(self, throttle_ms: int) -> None:
        """Count a Produce response, with the broker's throttle time."""
        self._windows.now()
        self._throttled.record(throttle_ms)

    def retried(self, topic: str, records: int) -> None:
        """Count the records of a batch that will be sent again."""
        self._windows.now()
        self._all.retried.add(records)
        self._topics[topic].retried.add(records)

    def failed(self, topic: str, records: int) -> None:
        """Count the records of a batch that has failed."""
        self._windows.now()
        self._all.failed.add(records)
        self._topics[topic].failed.add(records)

    def forget(self, topic: str) -> None:
        """Drop the counts of a topic that the producer no longer uses."""
        self._topics.drop(topic)

    def metrics(
        self,
        client: ClientMetrics,
        *,
        buffer_total_bytes: int,
        buffer_available_bytes: int,
        buffered_records: int,
        waiting_threads: int,
    ) -> ProducerMetrics:
        """Return the metrics of the producer and those of its client. The arguments are not counted here."""
        now = self._windows.clock()
        sent, sizes, queued = (each.recent(now) for each in (self._all.sent, self._all.bytes, self._queued))
        throttled, latency = self._throttled.recent(now), self._latency.recent(now)
        return ProducerMetrics(
            **client_fields(client),
            **self._all.metrics(now),
            records_per_request_avg=sent.average,
            record_queue_time_avg=queued.average,
            record_queue_time_max=queued.maximum,
            batch_size_avg=sizes.average,
            batch_size_max=sizes.maximum,
            batch_split_total=self.splits,
            sequence_gap_total=self.gaps,
            stale_sequence_total=self.stale,
            request_latency_avg=latency.average,
            request_latency_max=latency.maximum,
            produce_throttle_time_avg=throttled.average,
            produce_throttle_time_max=throttled.maximum,
            buffer_total_bytes=buffer_total_bytes,
            buffer_available_bytes=buffer_available_bytes,
            buffered_records=buffered_records,
            buffer_exhausted_total=self.exhausted,
            waiting_threads=waiting_threads,
            topics={topic: _of_topic(each, now) for topic, each in self._topics.items()},
        )


def _of_topic(records: _Records, now: float) -> ProducerTopicMetrics:
    return ProducerTopicMetrics(
        byte_total=int(records.bytes.total), byte_rate=records.bytes.recent(now).per_second, **records.metrics(now)
    )
