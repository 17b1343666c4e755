"""What keeps a client waiting is logged once, and its end once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from oncelog.client.connections.pool import Outage
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.retries import Retries
from oncelog.client.troubles import GAP_SECONDS, MAX_SUBJECTS, QUIET_SECONDS, SILENT_SECONDS, Troubles
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from oncelog.protocol.schema import Message
from support.virtual_time import run

LOG = logging.getLogger("oncelog.client.test")


class Timed:
    """Troubles with a clock that the test sets."""

    def __init__(self, **options: Any) -> None:
        self.at = 0.0
        self.troubles = Troubles(LOG, lambda: self.at, **options)

    def waiting(self, subject: object, why: str, at: float) -> None:
        self.at = at
        self.troubles.waiting(subject, why)

    def over(self, subject: object, at: float) -> None:
        self.at = at
        self.troubles.over(subject)


@pytest.fixture
def troubles() -> Timed:
    return Timed()


def test_long_wait_is_logged_once_and_its_end_once(troubles: Timed, caplog: pytest.LogCaptureFixture) -> None:
    for tenth in range(200):
        troubles.waiting("t", f"attempt {tenth}", tenth / 10)
    troubles.over("t", 20.0)
    troubles.over("t", 21.0)
    assert [each.getMessage() for each in caplog.records] == [
        "attempt 30; still retrying",
        "over after 20 s: attempt 199",
    ]


def test_short_wait_is_not_logged(troubles: Timed, caplog: pytest.LogCaptureFixture) -> None:
    for start in range(0, 100, 10):
        troubles.waiting("t", "why", start)
        troubles.waiting("t", "why", start + SILENT_SECONDS - 0.1)
        troubles.over("t", start + SILENT_SECONDS)
    assert not caplog.records


def test_subject_that_comes_back_is_logged_again_after_a_minute(
    troubles: Timed, caplog: pytest.LogCaptureFixture
) -> None:
    for start in (0.0, 10.0, 20.0):
        for second in range(6):
            troubles.waiting("t", "why", start + second)
        troubles.over("t", start + 6)
    assert len(caplog.records) == 2
    for second in range(int(QUIET_SECONDS)):
        troubles.waiting("t", "why", 30.0 + second)
    assert len(caplog.records) == 3


def test_wait_without_an_end_does_not_count_later(troubles: Timed, caplog: pytest.LogCaptureFixture) -> None:
    troubles.waiting("t", "why", 0.0)
    troubles.waiting("t", "why", GAP_SECONDS + 1)
    assert not caplog.records


def test_subjects_are_separate_and_bounded(troubles: Timed, caplog: pytest.LogCaptureFixture) -> None:
    for subject in range(10 * MAX_SUBJECTS):
        troubles.waiting(subject, f"why {subject}", 0.0)
    assert len(troubles.troubles._known) == MAX_SUBJECTS
    troubles.waiting(10 * MAX_SUBJECTS - 1, "why", SILENT_SECONDS)
    troubles.over(10 * MAX_SUBJECTS - 2, SILENT_SECONDS)
    assert len(caplog.records) == 1


def test_wait_with_long_attempts_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the defaults, an attempt at a broker that accepts connections and does not answer takes 30 s."""

    async def body() -> None:
        async with ClusterClient("h:1") as cluster:
            troubles = cluster.troubles(LOG)
            for attempt in range(3):
                troubles.waiting("t", f"attempt {attempt}")
                await asyncio.sleep(31)
            troubles.over("t")

    run(body())
    assert caplog.messages == ["attempt 1; still retrying", "over after 93 s: attempt 2"]


def test_nothing_else_is_recorded_in_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    outage = "no broker can be reached"
    troubles = Timed(outage=lambda: outage)
    for second in range(10):
        troubles.waiting("t", "why", second)
    assert (caplog.messages, troubles.troubles.why()) == ([], outage)
    outage = ""
    assert troubles.troubles.why() == ""


def test_why_is_the_reason_of_a_wait_that_is_not_over(troubles: Timed) -> None:
    troubles.waiting("a", "why a", 0.0)
    troubles.waiting("b", "why b", 0.0)
    troubles.over("a", 1.0)
    assert troubles.troubles.why() == "why b"
    troubles.over("b", 1.0)
    assert troubles.troubles.why() == ""


def test_calls_of_other_brokers_do_not_hide_a_broker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broker:
        def __init__(self, address: str, code: ErrorCode) -> None:
            self.address, self.code = address, code

        def version_for(self, request: type[Message]) -> int:
            return request.MAX_VERSION

        async def call(self, *_: object, **__: object) -> Message:
            return FindCoordinatorResponse(error_code=self.code)

    async def body() -> None:
        now = asyncio.get_running_loop().time
        retries = Retries(
            backoff_ms=(100, 100),
            api_timeout_ms=lambda: 10_000,
            first_contact_ms=None,
            request_timeout_ms=1_000,
            outage=Outage(now, 0.0),
            troubles=Troubles(LOG, now),
            addresses=lambda: (),
            chance=lambda: 0.0,
        )

        async def call(broker: Any) -> Any:
            async def where() -> Any:
                return broker

            return await retries.call(FindCoordinatorRequest(), where, None, None)

        stuck = Broker("stuck:1", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        waiting = asyncio.ensure_future(call(stuck))
        for _ in range(100):
            await call(Broker("fine:1", ErrorCode.NONE))
            await asyncio.sleep(0.05)
        stuck.code = ErrorCode.NONE
        await waiting

    run(body())
    warning, end = caplog.messages
    assert warning.startswith("a call waits: FindCoordinator")
    assert end.startswith("over after 5 s: a call waits")
