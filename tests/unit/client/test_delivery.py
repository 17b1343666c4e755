"""Failures that were not read, as a producer's `close` reports them."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import closing

import pytest

from oncelog import errors
from oncelog.client.producer import delivery
from oncelog.client.producer.delivery import Delivery, Failures, RecordFuture
from support.tracebacks import depth


def failed(words: str) -> Delivery:
    made = Delivery(("t", 0), threading.Condition())
    made.count = 1
    made.fail(ValueError(words))
    return made


def test_failures_beyond_the_remembered_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "REMEMBERED", 2)
    failures = Failures()
    first = [failed("one"), failed("two")]
    for each in (*first, failed("three"), failed("four")):
        failures.add(each)
    for each in first:
        each.seen = True
    error = failures.first_unseen()
    assert str(error) == "three"
    assert "2 records" in error.__notes__[0]  # type: ignore[union-attr]
    assert failures.first_unseen() is None


@pytest.mark.parametrize(("seen", "reported"), [((True, True), None), ((True, False), "part 1")])
def test_failures_of_a_split_batch_are_reported_unless_all_failed_parts_are_seen(
    seen: tuple[bool, bool], reported: str | None
) -> None:
    failures = Failures()
    parts = Delivery(("t", 0), threading.Condition(), failures.add).split([1, 1, 1])
    for number, part in enumerate(parts[:2]):
        part.seen = seen[number]
        part.fail(ValueError(f"part {number}"))
    parts[2].complete(0, 0)
    error = failures.first_unseen()
    assert (error if error is None else str(error)) == reported


def test_repeated_errors_of_a_future_keep_no_frames() -> None:
    future = RecordFuture(failed("one"), 0, 0)
    assert len({depth(future.result, ValueError) for _ in range(5)}) == 1


def waiting_on(loop: asyncio.AbstractEventLoop) -> RecordFuture:
    return RecordFuture(Delivery(("t", 0), threading.Condition(), loop=loop), 0, 0)


def test_blocking_on_the_event_loop_that_sends_the_record_is_rejected() -> None:
    """Before, it waited forever, because only that loop can deliver the outcome."""

    async def body() -> None:
        future = waiting_on(asyncio.get_running_loop())
        with pytest.raises(errors.UsageError, match="await"):
            future.result()
        with pytest.raises(errors.TimedOutError):
            future.result(0)

    asyncio.run(body())


def test_waiting_for_a_record_of_a_closed_event_loop_is_rejected() -> None:
    with closing(asyncio.new_event_loop()) as loop:
        future = waiting_on(loop)
    with pytest.raises(errors.UsageError, match="event loop"):
        future.result(1)


def test_callback_that_exits_does_not_hide_the_outcome_from_others() -> None:
    called: list[str] = []

    async def body() -> None:
        made = Delivery(("t", 0), threading.Condition())
        made.when_ready(sys.exit)
        made.when_ready(lambda: called.append("second"))
        made.complete(0, 0)
        await asyncio.sleep(0)

    with pytest.raises(SystemExit):
        asyncio.run(body())
    assert called == ["second"]
