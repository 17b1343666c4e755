"""How much a scrape does before other requests have their turn, with thousands of groups and transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.broker.durations import Durations
from oncelog.broker.metrics.collect import LINES_A_PART, Collector
from oncelog.broker.metrics.coordinators import CoordinatorLines
from oncelog.broker.requests.request_times import RequestTimes
from oncelog.cluster.topic_traffic import Traffic
from oncelog.coordinator.groups.registry import GroupStatistics
from oncelog.coordinator.transactions.metadata import TransactionState

MANY = 3 * LINES_A_PART


class Counted:
    """Objects of a broker that count how often the collector looks at one."""

    def __init__(self) -> None:
        self.looks = 0

    def listed(self) -> Any:
        self.looks += 1
        return SimpleNamespace(group_state="Stable")

    @property
    def state(self) -> TransactionState:
        self.looks += 1
        return TransactionState.EMPTY

    KIND = "classic"


def coordinators(shared: Counted) -> dict[str, Any]:
    def service(shard: Any) -> Any:
        terms = SimpleNamespace(shards=lambda: [(0, shard)], states=list, loads=Durations())
        return SimpleNamespace(shell=SimpleNamespace(terms=terms))

    offsets = SimpleNamespace(committed=lambda _: ())
    lines = CoordinatorLines(
        service(SimpleNamespace(offsets=offsets, groups=dict.fromkeys(range(MANY), shared))),
        service(SimpleNamespace(transactions=dict.fromkeys(range(MANY), shared))),
        GroupStatistics(),
        now_ms=lambda: 0,
        loop_time=lambda: 0.0,
    )
    return {"coordinators": lines}


def requests(shared: Counted) -> dict[str, Any]:
    times = RequestTimes()
    for number in range(60):
        times.of(f"Api{number}").answered(0.0, 1.0)

    looked = SimpleNamespace(apis=lambda: ((name, _Api(each, shared)) for name, each in times.apis()))
    return {"times": looked, "clock": lambda: 1.0}


class _Api:
    def __init__(self, api: Any, shared: Counted) -> None:
        self.count = api.count
        self._api, self._shared = api, shared

    def quantiles_ms(self, now: float) -> Any:
        self._shared.looks += 1
        return self._api.quantiles_ms(now)


@pytest.mark.parametrize(
    ("made", "lines", "most"),
    [
        (coordinators, lambda collector: collector.coordinators.lines(), 2 * LINES_A_PART),
        (requests, Collector._requests, 1),
    ],
)
def test_no_part_looks_at_too_many_objects(
    made: Callable[[Counted], dict[str, Any]], lines: Callable[[Any], Iterable[str | None]], most: int
) -> None:
    shared = Counted()
    collector = SimpleNamespace(**made(shared))
    collector._lines = lambda _: lines(collector)
    before = 0
    for _ in Collector.parts(collector, None):  # type: ignore[arg-type]
        assert shared.looks - before <= most
        before = shared.looks
    assert shared.looks > most


def test_total_keeps_what_deleted_topics_had() -> None:
    traffic = Traffic()
    for number in range(3):
        traffic.of(f"t{number}").messages_in = 10**number
    traffic.forget("t1")
    traffic.forget("t1")
    assert traffic.total("messages_in") == 111
    assert [name for name, _ in traffic.topics()] == ["t0", "t2"]
