"""What keeps a client waiting is logged once, and its end once."""

from __future__ import annotations

import logging

import pytest

from oncelog.client.troubles import GAP_SECONDS, MAX_SUBJECTS, QUIET_SECONDS, SILENT_SECONDS, Troubles


@pytest.fixture
def troubles() -> Troubles:
    return Troubles(logging.getLogger("oncelog.client.test"))


def test_long_wait_is_logged_once_and_its_end_once(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    for tenth in range(200):
        troubles.waiting("t", f"attempt {tenth}", tenth / 10)
    troubles.over("t", 20.0)
    troubles.over("t", 21.0)
    assert [each.getMessage() for each in caplog.records] == [
        "attempt 30; still retrying",
        "over after 20 s: attempt 199",
    ]


def test_short_wait_is_not_logged(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    for start in range(0, 100, 10):
        troubles.waiting("t", "why", start)
        troubles.waiting("t", "why", start + SILENT_SECONDS - 0.1)
        troubles.over("t", start + SILENT_SECONDS)
    assert not caplog.records


def test_subject_that_comes_back_is_logged_again_after_a_minute(
    troubles: Troubles, caplog: pytest.LogCaptureFixture
) -> None:
    for start in (0.0, 10.0, 20.0):
        for second in range(6):
            troubles.waiting("t", "why", start + second)
        troubles.over("t", start + 6)
    assert len(caplog.records) == 2
    for second in range(int(QUIET_SECONDS)):
        troubles.waiting("t", "why", 30.0 + second)
    assert len(caplog.records) == 3


def test_wait_without_an_end_does_not_count_later(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    troubles.waiting("t", "why", 0.0)
    troubles.waiting("t", "why", GAP_SECONDS + 1)
    assert not caplog.records


def test_subjects_are_separate_and_bounded(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    for subject in range(10 * MAX_SUBJECTS):
        troubles.waiting(subject, f"why {subject}", 0.0)
    assert len(troubles._known) == MAX_SUBJECTS
    troubles.waiting(10 * MAX_SUBJECTS - 1, "why", SILENT_SECONDS)
    troubles.over(10 * MAX_SUBJECTS - 2, SILENT_SECONDS)
    assert len(caplog.records) == 1
