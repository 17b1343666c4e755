"""Windows, recorders and names of the metrics, without a broker."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest

from oncelog.client.metrics.fetches import Fetches
from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.sends import Sends
from oncelog.client.metrics.stats import BOUNDS_MS, WINDOW_S, Windows
from oncelog.client.metrics.topics import ByTopic
from oncelog.protocol.apis import ApiKey


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(20))
def test_recent_numbers_are_those_of_one_to_two_windows(seed: int) -> None:
    chance = random.Random(seed)
    clock = Clock(0.0)
    windows, now = Windows(clock), 0.0
    stat = windows.stat()
    recorded: list[tuple[float, int]] = []
    for _ in range(500):
        now += chance.choice([0.0, 0.1, 3.0, 20.0, 100.0])
        recent = stat.recent(now)
        assert recent.seconds <= 2 * WINDOW_S
        inside = [value for at, value in recorded if at >= now - recent.seconds]
        assert (recent.numbers, recent.total) == (len(inside), sum(inside))
        assert recent.maximum == max(inside, default=None)
        assert recent.seconds >= min(now, WINDOW_S) - 1e-6
        recorded.append((now, chance.randrange(1, 1000)))
        clock.now = now
        windows.now()
        stat.record(recorded[-1][1])
        assert (stat.count, stat.total) == (len(recorded), sum(value for _, value in recorded))


def test_rate_average_and_maximum() -> None:
    stat = Windows(Clock(0.0)).stat()
    for second in range(10):
        stat.record(second * 10)
    recent = stat.recent(10.0)
    assert (recent.per_second, recent.count_per_second) == (45, 1)
    assert (recent.average, recent.maximum) == (45, 90)
    nothing = stat.recent(1_000.0)
    assert (nothing.per_second, nothing.average, nothing.maximum) == (0, None, None)


def test_histogram_has_each_time_once() -> None:
    clock = Clock()
    requests = Requests(clock)
    node = requests.of_node(1)
    for value in (0.25, 1, 1.125, 2, 60_000, 60_001):
        sent_at = node.sent(100)
        clock.now += value / 1000
        node.answered(ApiKey.FETCH, 50, sent_at)
        clock.now = sent_at
    histogram = requests.of_api(ApiKey.FETCH).histogram()
    assert list(histogram) == [*BOUNDS_MS, float("inf")]
    assert (histogram[1], histogram[2], histogram[60_000], histogram[float("inf")]) == (2, 2, 1, 1)
    assert sum(histogram.values()) == 6


def test_records_read_from_the_buffer_without_requests_have_a_rate() -> None:
    clock = Clock()
    requests = Requests(clock)
    node, fetches = requests.of_node(1), Fetches(requests)
    node.answered(ApiKey.FETCH, 50_000_000, node.sent(100))
    for second in range(300):
        clock.now += 1
        fetches.consumed("t", 10)
        found = fetches.metrics(1, {}, requests.metrics("c", []))
        if second > 60:
            assert found.records_consumed_rate == pytest.approx(10, rel=0.1)
            assert found.topics["t"].records_consumed_rate == pytest.approx(10, rel=0.1)
    node.sent(100)
    assert fetches.metrics(1, {}, requests.metrics("c", [])).records_consumed_rate == pytest.approx(10, rel=0.1)


def test_record_after_a_long_pause_has_a_rate() -> None:
    clock = Clock()
    requests = Requests(clock)
    node, sends = requests.of_node(1), Sends(requests)
    clock.now += 300
    sends.sent([(SimpleNamespace(tp=("t", 0), count=10, created_ms=5), bytes(100))], 10)
    node.sent(100)
    buffer = dict.fromkeys(("buffer_total_bytes", "buffer_available_bytes", "buffered_records", "waiting_threads"), 0)
    assert sends.metrics(requests.metrics("c", []), **buffer).record_send_rate > 0


def test_response_without_records_does_not_change_the_fetch_size() -> None:
    requests = Requests(Clock())
    fetches = Fetches(requests)
    fetches.fetched({"t": 100}, 0)
    fetches.fetched({}, 0)
    found = fetches.metrics(1, {}, requests.metrics("c", []))
    assert found.fetch_size_avg == found.topics["t"].fetch_size_avg == 100


def test_two_threads_create_the_recorder_of_a_topic_once() -> None:
    def make(windows: Windows) -> SimpleNamespace:
        made = SimpleNamespace(stats=[windows.stat()])
        if len(windows._stats) == 1:
            first.append(topics["t"])  # the other thread is faster
        return made

    windows, first = Windows(Clock()), list[SimpleNamespace]()
    topics = ByTopic(windows, make)
    assert topics["t"] is first[0]
    assert list(windows._stats) == first[0].stats


def test_memory_does_not_grow_with_requests_and_time() -> None:
    clock = Clock()
    requests = Requests(clock)
    sends, fetches = Sends(requests), Fetches(requests)
    node = requests.of_node(1)

    def work() -> None:
        for _ in range(2_000):
            clock.now += 0.5
            node.answered(ApiKey.PRODUCE, 50, node.sent(100) - 0.01)
            sends.sent([(SimpleNamespace(tp=("t", 0), count=10, created_ms=5), bytes(100))], 10)
            sends.retried("t", 1)
            fetches.fetched({"t": 100}, 0)
            fetches.consumed("t", 10)

    work()
    tracemalloc.start()
    work()
    before = tracemalloc.get_traced_memory()[0]
    work()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 2_000


def test_nodes_and_topics_that_are_gone_disappear() -> None:
    requests = Requests(Clock())
    for node in (-1, 1, 2, 3):
        requests.of_node(node).sent(10)
    requests.keep_nodes({1, 3})
    found = requests.metrics("c", [(1, 2), (1, 0), (3, 1)])
    assert set(found.nodes) == {-1, 1, 3}
    assert (found.connection_count, found.requests_in_flight, found.nodes[1].connection_count) == (3, 3, 2)
    assert found.request_total == 4, "totals of the client stay"
    sends, fetches = Sends(requests), Fetches(requests)
    kept = len(requests.windows._stats)
    for topic in ("a", "b"):
        sends.sent([(SimpleNamespace(tp=(topic, 0), count=1, created_ms=5), bytes(100))], 10)
    sends.forget("a")
    sends.forget("b")
    assert len(requests.windows._stats) == kept, "their windows are forgotten, too"
    sends.sent([(SimpleNamespace(tp=("b", 0), count=1, created_ms=5), bytes(100))], 10)
    assert [topic for topic, _ in sends._topics.items()] == ["b"]
    fetches.consumed("a", 1)
    fetches.consumed("b", 1)
    fetches.keep_topics({"b"})
    assert [topic for topic, _ in fetches._topics.items()] == ["b"]


def test_result_is_frozen_and_does_not_change() -> None:
    requests = Requests(Clock())
    before = requests.metrics("c", [])
    requests.of_node(1).sent(10)
    assert (before.request_total, before.nodes) == (0, {})
    with pytest.raises(FrozenInstanceError):
        before.request_total = 1  # type: ignore[misc]


def test_names_of_kafka_omit_what_has_no_value() -> None:
    requests = Requests(Clock())
    node = requests.of_node(1)
    node.answered(ApiKey.FETCH, 50, node.sent(100) - 0.01)
    found = requests.metrics("c", []).by_kafka_name()
    client = ("client-id", "c")
    assert found["admin-client-metrics", "request-total", (client,)] == 1
    assert found["admin-client-node-metrics", "outgoing-byte-total", (client, ("node-id", "node-1"))] == 100
    assert found["admin-client-request-metrics", "request-total", (client, ("api", "FETCH"))] == 1
    assert all(isinstance(value, int | float) for value in found.values())
    assert all(name.name == name.name.lower() and "_" not in name.name for name in found)
    empty = Requests(Clock()).metrics("c", []).by_kafka_name()
    assert ("admin-client-metrics", "request-size-max", (client,)) not in empty
