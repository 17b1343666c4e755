"""What a producer's `close` tells of failures that nobody has looked at."""

from __future__ import annotations

import threading

import pytest

from oncelog.client.producer import delivery
from oncelog.client.producer.delivery import Delivery, Failures, RecordFuture
from support.tracebacks import depth


def failed(words: str) -> Delivery:
    made = Delivery(("t", 0), threading.Condition())
    made.count = 1
    made.fail(ValueError(words))
    return made


def test_failures_beyond_those_that_are_remembered_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "REMEMBERED", 2)
    failures = Failures()
    first = [failed("one"), failed("two")]
    for each in (*first, failed("three"), failed("four")):
        failures.add(each)
    for each in first:
        each.seen = True
    told = failures.first_unseen()
    assert str(told) == "three"
    assert "2 records" in told.__notes__[0]  # type: ignore[union-attr]
    assert failures.first_unseen() is None


def test_a_failure_that_is_asked_for_often_keeps_no_frames_of_before() -> None:
    future = RecordFuture(failed("one"), 0, 0)
    assert len({depth(future.result, ValueError) for _ in range(5)}) == 1
