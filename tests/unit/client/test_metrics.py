"""Windows, recorders and names of the metrics, without a broker."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest

from oncelog import metrics
from oncelog.client.metrics.fetches import Fetches
from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.sends import Sends
from oncelog.client.metrics.stats import BOUNDS_MS, WINDOW_S, Windows
from oncelog.protocol.apis import ApiKey


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(20))
def test_recent_numbers_are_those_of_one_to_two_windows(seed: int) -> None:
    chance = random.Random(seed)
    windows, now = Windows(0.0), 0.0
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
        windows.roll(now)
        stat.record(recorded[-1][1])
        assert (stat.count, stat.total) == (len(recorded), sum(value for _, value in recorded))


def test_rate_average_and_maximum() -> None:
    stat = Windows(0.0).stat()
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
    found = metrics.ClientMetrics(client_id="c", **requests.values([(1, 2), (1, 0), (3, 1)]))
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
    assert set(sends._topics) == {"b"}
    fetches.consumed("a", 1)
    fetches.consumed("b", 1)
    fetches.keep_topics({"b"})
    assert set(fetches._topics) == {"b"}


def test_result_is_frozen_and_does_not_change() -> None:
    requests = Requests(Clock())
    before = metrics.ClientMetrics(client_id="c", **requests.values([]))
    requests.of_node(1).sent(10)
    assert (before.request_total, before.nodes) == (0, {})
    with pytest.raises(FrozenInstanceError):
        before.request_total = 1  # type: ignore[misc]


def test_names_of_kafka_omit_what_has_no_value() -> None:
    requests = Requests(Clock())
    node = requests.of_node(1)
    node.answered(ApiKey.FETCH, 50, node.sent(100) - 0.01)
    found = metrics.ClientMetrics(client_id="c", **requests.values([])).by_kafka_name()
    client = ("client-id", "c")
    assert found["admin-client-metrics", "request-total", (client,)] == 1
    assert found["admin-client-node-metrics", "outgoing-byte-total", (client, ("node-id", "node-1"))] == 100
    assert found["admin-client-request-metrics", "request-total", (client, ("api", "FETCH"))] == 1
    assert all(isinstance(value, int | float) for value in found.values())
    assert all(name.name == name.name.lower() and "_" not in name.name for name in found)
    empty = metrics.ClientMetrics(client_id="c", **Requests(Clock()).values([])).by_kafka_name()
    assert ("admin-client-metrics", "request-size-max", (client,)) not in empty
