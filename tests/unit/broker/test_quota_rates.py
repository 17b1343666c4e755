"""The rates of quotas, with times as arguments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.broker.quotas.rates import TokenBucket, WindowedRate, Windows

WINDOWS = Windows(11, 1.0)
STEPS = st.lists(st.tuples(st.floats(0, 4), st.integers(0, 5000)), min_size=1, max_size=60)


def test_burst_within_all_windows_needs_no_pause() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(10_000, 100.0)
    assert rate.rate(100.0) == 1000
    assert rate.delay(1000, 100.0) == 0
    rate.record(5000, 100.0)
    assert rate.delay(1000, 100.0) == 5


def test_time_that_the_client_pauses_counts_when_all_windows_are_measured() -> None:
    rate = WindowedRate(WINDOWS)
    for second in range(11):
        rate.record(2000, 100.0 + second)
    pause = rate.delay(1000, 110.0)
    assert pause == 12
    assert rate.rate(110.0) == 2200


def test_windows_are_forgotten() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(1000, 100.0)
    assert rate.total(110.9) == 1000
    assert rate.total(111.0) == 0
    assert rate.rate(111.0) == 0


def test_amount_may_be_taken_back() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(1000, 100.0)
    rate.record(-1000, 100.0)
    assert rate.total(100.0) == 0


@given(STEPS)
def test_rate_never_keeps_more_windows_than_it_measures(steps: list[tuple[float, int]]) -> None:
    rate, now = WindowedRate(WINDOWS), 0.0
    for pause, amount in steps:
        now += pause
        rate.record(amount, now)
        assert len(rate._kept) <= WINDOWS.number + 1
        assert rate.delay(100.0, now) >= 0


@given(STEPS, st.sampled_from([5000.0, 20_000.0]))
def test_client_that_pauses_as_told_keeps_its_limit(steps: list[tuple[float, int]], limit: float) -> None:
    """If no request exceeds the limit of one window, a client gets at most one burst and one request more."""
    rate, now, sent = WindowedRate(WINDOWS), 0.0, 0.0
    for pause, amount in [*steps, *[(0.0, 5000)] * 300]:
        now += pause
        rate.record(amount, now)
        sent += amount
        assert sent <= limit * (now + (WINDOWS.number + 1) * WINDOWS.seconds)
        now += rate.delay(limit, now)
    assert sent <= limit * (now + WINDOWS.number * WINDOWS.seconds)


def test_tokens_return_with_time() -> None:
    bucket = TokenBucket(WINDOWS)
    assert bucket.delay(1.0, 100.0) == 0
    bucket.take(13, 1.0, 100.0)
    assert bucket.delay(1.0, 100.0) == 2
    assert bucket.delay(1.0, 101.0) == 1
    assert bucket.delay(1.0, 102.0) == 0
    bucket.take(11, 1.0, 1000.0)
    assert bucket.delay(1.0, 1000.0) == 0, "no more than one burst has returned"
    bucket.take(1, 1.0, 1000.0)
    assert bucket.delay(1.0, 1000.0) == 1
