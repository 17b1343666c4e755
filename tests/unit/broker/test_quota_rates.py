"""The rates of quotas, with times as arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.broker.quotas.rates import TokenBucket, Windows

STEPS = st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50_000)), min_size=1, max_size=60)
LIMITS = st.sampled_from([100.0, 1000.0, 20_000.0])


def test_windows_are_those_of_kafka() -> None:
    assert (Windows().complete_s, Windows().all_s) == (10.0, 11.0)


def test_tokens_return_with_time() -> None:
    bucket = TokenBucket(11.0)
    assert bucket.delay(1.0, 100.0) == 0
    assert bucket.take(13, 1.0, 100.0) == 2
    assert bucket.delay(1.0, 101.0) == 1
    assert bucket.delay(1.0, 102.0) == 0
    assert bucket.take(11, 1.0, 1000.0) == 0, "no more than one burst has returned"
    assert bucket.take(1, 1.0, 1000.0) == 1


def test_amount_is_admitted_when_there_are_enough_tokens() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.admit(60, 10.0, 0.0) == (True, 0)
    assert bucket.admit(60, 10.0, 0.0) == (False, 2)
    assert bucket.admit(40, 10.0, 0.0) == (True, 0)
    assert bucket.admit(60, 10.0, 6.0) == (True, 0)


def test_amount_above_the_burst_needs_a_full_burst() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.admit(1000, 10.0, 0.0) == (True, 90)
    assert bucket.admit(1000, 10.0, 90.0) == (False, 10)
    assert bucket.admit(1000, 10.0, 100.0) == (True, 90)


def test_debt_is_bounded() -> None:
    bucket = TokenBucket(10.0, debt_s=11.0)
    for _ in range(100):
        bucket.take(1000, 1.0, 0.0)
    bucket.take(0, 1.0, 0.0)
    assert bucket.delay(1.0, 0.0) == 11


def test_limit_may_change() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.take(10_000, 1000.0, 0.0) == 0
    assert bucket.delay(1.0, 0.0) == 0, "what the former limit admitted is not owed"
    assert bucket.take(1, 1.0, 0.0) == 1
    assert bucket.take(1000, 1e6, 1.0) == 0


@given(STEPS, LIMITS)
def test_client_that_pauses_as_told_keeps_its_limit(steps: list[tuple[float, int]], limit: float) -> None:
    """After each pause, a client has sent at most what the limit gives for the time, and one burst."""
    bucket, now, sent = TokenBucket(10.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        pause = bucket.take(amount, limit, now)
        sent += amount
        now += pause
        assert sent <= limit * (now + 10.0) * 1.0001


@pytest.mark.parametrize("seconds", [0.01, 0.1, 1.0, 9.0, 12.0, 21.0, 40.0])
@given(gap=st.floats(0.0001, 0.01))
def test_busy_client_gets_its_limit(seconds: float, gap: float) -> None:
    """Each request takes what the limit gives in `seconds`. A consumer that asks again soon gets no less either."""
    limit = 1000.0
    for admitting in (False, True):
        bucket, now, sent = TokenBucket(10.0), 0.0, 0.0
        for _ in range(2000):
            admitted, pause = True, 0.0
            if admitting:
                admitted, pause = bucket.admit(seconds * limit, limit, now)
            else:
                pause = bucket.take(seconds * limit, limit, now)
            sent += seconds * limit if admitted else 0
            now += pause + gap * seconds
        assert sent == pytest.approx(limit * (now + 10.0), rel=0.02, abs=12 * seconds * limit)
