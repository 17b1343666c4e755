"""The log start offsets of followers are stored in rounds, which all replicas of a directory share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.broker.replication import start_offsets
from oncelog.broker.replication.start_offsets import StartOffsets


class Follower:
    """A replica as `StartOffsets` uses it."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(directory="data/t-0", log_start_offset=0)
        self.stored: list[int] = []
        self.start_stored = self.stored.append


class Directory:
    path, online = "data", True


class Rounds:
    """Checkpoints whose next rounds have the given outcomes, and then succeed."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.outcomes = list(outcomes)
        self.count = 0
        self.during: Callable[[], object] = bool
        self.directory = Directory()

    async def write(self, _directories: object) -> bool:
        self.count += 1
        await asyncio.sleep(0)
        self.during()
        outcome = self.outcomes.pop(0) if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def run(rounds: Rounds, body: Callable[[StartOffsets], Awaitable[None]]) -> None:
    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []
        workers = SimpleNamespace(spawn=lambda work, _name: tasks.append(asyncio.ensure_future(work)))
        directories = SimpleNamespace(holding=lambda _path: rounds.directory)
        runtime = SimpleNamespace(workers=workers, logger=logging.getLogger("starts"))
        starts = StartOffsets(rounds, directories, runtime)  # type: ignore[arg-type]
        await body(starts)
        await asyncio.gather(*tasks)
        assert not starts.is_writing

    asyncio.run(main())


def test_replicas_share_a_round_and_later_offsets_get_the_next_one() -> None:
    rounds, followers = Rounds(), [Follower() for _ in range(3)]

    async def body(starts: StartOffsets) -> None:
        def advance() -> None:
            if rounds.count == 1:
                followers[0].log.log_start_offset = 9
                starts.store(followers[0])  # type: ignore[arg-type]

        rounds.during = advance
        for follower in followers:
            follower.log.log_start_offset = 5
            starts.store(follower)  # type: ignore[arg-type]
            assert starts.is_writing

    run(rounds, body)
    assert rounds.count == 2
    assert [follower.stored for follower in followers] == [[5, 9], [5], [5]]


@pytest.mark.parametrize("failure", [False, RuntimeError("an unexpected error")])
def test_failed_round_is_repeated(
    failure: bool | Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start_offsets, "RETRY_S", 0.001)
    rounds, follower = Rounds(failure, failure), Follower()
    follower.log.log_start_offset = 5

    async def body(starts: StartOffsets) -> None:
        starts.store(follower)  # type: ignore[arg-type]

    run(rounds, body)
    assert (rounds.count, follower.stored) == (3, [5])
    assert ("an unexpected error" in caplog.text) == bool(failure)


def test_nothing_is_stored_in_a_failed_directory() -> None:
    rounds, follower = Rounds(False), Follower()

    async def body(starts: StartOffsets) -> None:
        rounds.during = lambda: setattr(rounds.directory, "online", False)
        starts.store(follower)  # type: ignore[arg-type]

    run(rounds, body)
    assert (rounds.count, follower.stored) == (1, [])
