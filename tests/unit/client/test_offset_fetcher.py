"""Find start positions: an unanswered partition delays no other, and no outdated position is used."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import consumer_options
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.requests.offsets import Listed
from oncelog.protocol.topics import TopicPartition
from support import virtual_time

FOUND, LOST = ("t", 0), ("t", 1)
HANG_S = 20.0
"""Longer than any test here takes, unless it hangs."""


class Leaders:
    """Answer ListOffsets for `FOUND` at once, for `LOST` when released; then with an error or an offset."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.asked = asyncio.Event()
        self.offset: int | None = None

    async def list_offsets(
        self,
        cluster: object,
        wanted: Mapping[TopicPartition, int],
        *,
        into: dict[TopicPartition, Listed] | None = None,
        **options: Any,
    ) -> dict[TopicPartition, Listed]:
        found = {} if into is None else into
        if FOUND in wanted:
            found[FOUND] = Listed(7, -1, 0)
        if LOST in wanted:
            self.asked.set()
            await self.let.wait()
            if self.offset is None:
                raise errors.ConnectionFailedError("no leader")
            found[LOST] = Listed(self.offset, -1, 0)
        return found


def run(
    monkeypatch: pytest.MonkeyPatch, body: Any, runner: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
) -> None:
    """Run `body` with a consumer of both partitions."""

    async def main() -> None:
        leaders = Leaders()
        monkeypatch.setattr(offset_calls, "list_offsets", leaders.list_offsets)
        options = consumer_options(None, {"bootstrap_servers": "nowhere:1", "auto_offset_reset": "earliest"})
        core = ConsumerCore(options, asyncio.get_running_loop())
        core.assign([FOUND, LOST])
        async with asyncio.timeout(HANG_S):
            await body(core, leaders)
        await core.close()

    runner(main())


def positions(core: ConsumerCore) -> list[int | None]:
    return [core.subscription.partitions[tp].position for tp in (FOUND, LOST)]


def test_partitions_with_known_positions_are_read_while_another_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        core.subscription.partitions[FOUND].seek(3)
        assert await core.poll(0) == []  # does not wait for the other's leader
        await leaders.asked.wait()
        assert await core.poll(0) == []
        assert positions(core) == [3, None]
        leaders.offset = 5
        leaders.let.set()
        while positions(core) != [3, 5]:
            await core.poll(10)

    run(monkeypatch, body)


def test_found_positions_are_kept_if_another_lookup_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        leaders.let.set()
        assert await core.poll(0) == []
        assert positions(core) == [7, None]

    run(monkeypatch, body)


@pytest.mark.parametrize("change", ["sought", "sought by time", "reassigned"])
def test_outdated_answer_is_ignored(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        leaders.offset = 5
        search = asyncio.ensure_future(core.offsets.update_positions())
        await leaders.asked.wait()
        state = core.subscription.partitions[LOST]
        if change == "sought":
            state.seek(100)
        elif change == "sought by time":
            state.seek_to_time(12345)
        else:
            core.subscription.assign([FOUND, LOST], keep=False)
        leaders.let.set()
        await search
        assert core.subscription.partitions[LOST].position == (100 if change == "sought" else None)

    run(monkeypatch, body)


def test_second_lookup_gets_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record at or after a time: the end is requested."""
    given: list[float] = []

    async def listing(
        cluster: object, wanted: Mapping[TopicPartition, int], *, timeout_ms: float, **options: Any
    ) -> dict[TopicPartition, Listed]:
        given.append(timeout_ms)
        await asyncio.sleep(0.001)
        found = {tp: Listed(9 if timestamp == offset_calls.LATEST else -1, -1, 0) for tp, timestamp in wanted.items()}
        options.get("into", {}).update(found)
        return found

    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        monkeypatch.setattr(offset_calls, "list_offsets", listing)
        for tp in (FOUND, LOST):
            core.subscription.partitions[tp].seek_to_time(1)
        await core.offsets.update_positions(5_000)
        assert positions(core) == [9, 9]
        first, second = given
        assert second < first <= 5_000

    run(monkeypatch, body)


def test_poll_with_timeout_zero_does_not_wait_for_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it waited a second.

    The search continues in the background, so polls with timeout 0 find the position, too.
    """

    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        core.assign([LOST])
        core.metadata_watch._unchecked = set()  # it would contact a real address
        begun = asyncio.get_running_loop().time()
        assert await core.poll(0) == []
        assert asyncio.get_running_loop().time() == begun
        await leaders.asked.wait()
        leaders.offset = 7
        leaders.let.set()
        while core.subscription.partitions[LOST].position is None:
            assert await core.poll(0) == []

    run(monkeypatch, body, virtual_time.run)


def test_a_topic_that_a_broker_does_not_know_yet_is_read_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers learn of a new topic one after another, on a slow machine within seconds. Java's consumer waits, too."""

    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        core.metadata_watch._unchecked = set()  # it would contact a real address, as fetches would
        monkeypatch.setattr(core.fetcher, "send_fetches", lambda: None)
        answers = iter([errors.UnknownTopicError("topic 't' has partitions 0 to 0, not 1")] * 5)

        async def listing(*_: object, into: dict[TopicPartition, Listed], **__: object) -> None:
            await asyncio.sleep(1)
            for error in answers:
                raise error
            into.update({FOUND: Listed(3, -1, 0), LOST: Listed(5, -1, 0)})

        monkeypatch.setattr(offset_calls, "list_offsets", listing)
        while positions(core) != [3, 5]:
            assert await core.poll(0) == []
            await asyncio.sleep(0.1)

    run(monkeypatch, body, virtual_time.run)
    warnings = [record.getMessage() for record in caplog.records if "where to read" in record.getMessage()]
    assert len(warnings) == 2
    assert warnings[0].startswith("cannot find where to read: topic 't' has partitions 0 to 0, not 1")
    assert warnings[1].startswith("over after ")


def test_dropped_consumer_of_missing_topic_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, asyncio logged "Task exception was never retrieved", with a stack trace."""

    async def body(core: ConsumerCore, leaders: Leaders) -> None:
        async def missing(*_: object, **__: object) -> None:
            await asyncio.sleep(0.01)
            raise errors.UnknownTopicError("topic 't'")

        logged: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        monkeypatch.setattr(offset_calls, "list_offsets", missing)
        await core.poll(0)
        search = core.offsets._search
        assert search is not None
        await asyncio.wait([search])
        core.offsets._search = None
        del search
        gc.collect()
        assert not logged

    run(monkeypatch, body)
