"""When and as whom a consumer commits: what is under way when it closes, what a rebalance makes of it, time-outs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.options import consumer_options
from oncelog.client.consumer.reader import Reader
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.requests import offsets as offset_calls

TP, OTHER = ("t", 0), ("t", 1)


class Coordinator:
    """Takes commits once it is let; `group` is who the reader is."""

    def __init__(self, reader: Reader) -> None:
        self.group = GroupMetadata("g", 1, "m")
        self.taken: list[tuple[int, dict[Any, int]]] = []
        self.free = asyncio.Event()
        reader.group_metadata = lambda: self.group  # type: ignore[method-assign]

    async def commit(self, cluster: object, group: GroupMetadata, offsets: dict[Any, int], **_: object) -> None:
        await self.free.wait()
        self.taken.append((group.generation_id, dict(offsets)))


def run(monkeypatch: pytest.MonkeyPatch, body: Callable[[Reader, Coordinator], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        options = consumer_options(None, {"bootstrap_servers": "n:1", "group_id": "g"} | {"enable_auto_commit": False})
        reader = Reader(options, asyncio.get_running_loop())
        coordinator = Coordinator(reader)
        monkeypatch.setattr(offset_calls, "commit", coordinator.commit)
        reader.assign([TP, OTHER])
        async with asyncio.timeout(20):
            await body(reader, coordinator)
            await reader.close()

    asyncio.run(main())


@pytest.mark.parametrize("member", [False, True])
def test_close_waits_for_commits_under_way(monkeypatch: pytest.MonkeyPatch, member: bool) -> None:
    async def body(reader: Reader, coordinator: Coordinator) -> None:
        async def leave() -> None: ...

        if member:
            found: Any = SimpleNamespace(intact=True, leave=leave, stop=leave)
            reader.subscription.member = found
        commits = [asyncio.create_task(reader.commits.started(reader.commits.take({TP: n}))) for n in (1, 2, 3)]
        closing = asyncio.create_task(reader.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        coordinator.free.set()
        await closing
        await asyncio.gather(*commits)
        assert coordinator.taken == [(1, {TP: n}) for n in (1, 2, 3)]

    run(monkeypatch, body)


def test_a_commit_that_close_does_not_wait_for_any_longer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(reader: Reader, coordinator: Coordinator) -> None:
        commit = asyncio.create_task(reader.commits.started(reader.commits.take({TP: 1})))
        await asyncio.sleep(0)
        await reader.close(20)
        with pytest.raises(errors.ClientClosedError, match="closed before"):
            await commit

    run(monkeypatch, body)


def test_revoked_partitions_wait_for_the_commits_of_their_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(reader: Reader, coordinator: Coordinator) -> None:
        def revoked(partitions: object) -> None:
            reader.commits.start(reader.commits.take({TP: 7}))
            reader.loop.call_later(0.01, coordinator.free.set)

        reader.subscription._listeners = reader.subscription._listeners._replace(revoked=revoked)
        await reader.subscription.revoke([TP])
        assert coordinator.taken == [(1, {TP: 7})]

    run(monkeypatch, body)


def test_old_offsets_are_not_committed_under_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(reader: Reader, coordinator: Coordinator) -> None:
        reader.states[OTHER].seek(5)
        commits = [reader.commits.start(reader.commits.take(offsets)) for offsets in ({TP: 1}, {OTHER: 5}, {TP: 2})]
        await asyncio.sleep(0)  # the first one is under way, the others wait for their turn
        reader.take_partitions([OTHER])
        reader.take_partitions([OTHER, TP])  # somebody else may have had it in between
        coordinator.group = GroupMetadata("g", 2, "m")
        coordinator.free.set()
        await asyncio.wait(commits)
        assert coordinator.taken == [(1, {TP: 1}), (2, {OTHER: 5})], "what was kept all the time is"
        with pytest.raises(errors.GroupError, match="t-0 was given up"):
            commits[2].result()
        assert (reader.states[OTHER].settled, reader.states[TP].settled) == (5, None)

    run(monkeypatch, body)


@pytest.mark.parametrize("timeout_ms", [20, None])
def test_waiting_for_a_turn_counts_for_the_time_out(monkeypatch: pytest.MonkeyPatch, timeout_ms: float | None) -> None:
    async def body(reader: Reader, coordinator: Coordinator) -> None:
        reader.cluster.api_timeout_ms = 20
        first = asyncio.create_task(reader.commits.commit({TP: 1}))
        await asyncio.sleep(0)
        with pytest.raises(errors.TimedOutError, match="20 ms"):
            await reader.commits.commit({TP: 2}, timeout_ms)
        coordinator.free.set()
        await first
        assert coordinator.taken == [(1, {TP: 1})]

    run(monkeypatch, body)
