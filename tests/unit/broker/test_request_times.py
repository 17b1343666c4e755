"""Times of requests: quantiles are right to a quarter, and old times are forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.broker.requests.request_times import PERIOD_S, ApiTimes, RequestTimes, Times, quantiles_ms

SECONDS = st.floats(0, 3600, allow_nan=False)


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantile_is_at_most_a_quarter_below_the_exact_one(measured: list[float], quantile: float) -> None:
    times = Times()
    for each in measured:
        times.add(each, 0.0)
    exact = next(each for number, each in enumerate(sorted(measured), 1) if number >= quantile * len(measured))
    (found,) = quantiles_ms(times.counts(0.0), [quantile])
    exact_us = int(exact * 1e6)
    assert found * 1000 <= exact_us + 1e-6
    assert found * 1000 * 1.25 >= exact_us - 1


def test_times_are_forgotten_after_two_periods() -> None:
    times = Times()
    times.add(1.0, 0.0)
    assert sum(times.counts(PERIOD_S - 1)) == 1
    assert sum(times.counts(PERIOD_S + 1)) == 1
    assert sum(times.counts(2 * PERIOD_S + 2)) == 0
    times.add(1.0, 10 * PERIOD_S)
    assert sum(times.counts(10 * PERIOD_S)) == 1, "the period between was skipped"


def test_request_that_waits_counts_its_work_and_its_wait_apart() -> None:
    times = ApiTimes()
    times.answered(10.0, 10.001)
    times.answered_late(10.0, 10.002, 11.0)
    found = times.quantiles_ms(11.0)
    assert times.count == 2
    assert {name: (values[0], values[-1]) for name, values in found.items()} == {
        "totaltimems": (0.896, 917.504),
        "localtimems": (0.896, 1.792),
        "remotetimems": (0.0, 917.504),
    }


def test_apis_are_listed_by_name() -> None:
    times = RequestTimes()
    for name in ("Produce", "Fetch", "Produce"):
        times.of(name)
    assert [name for name, _ in times.apis()] == ["Fetch", "Produce"]
