"""When and with which identity a consumer commits: pending commits at close, rebalances, and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import consumer_options
from oncelog.client.consumer.rebalance import Listeners
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.requests import offsets as offset_calls
from oncelog.protocol.errors import ErrorCode

TP, OTHER = ("t", 0), ("t", 1)


class Coordinator:
    """Answer commits once released. `group` is the consumer's identity."""

    def __init__(self, core: ConsumerCore) -> None:
        self.group = GroupMetadata("g", 1, "m")
        self.taken: list[tuple[int, dict[Any, int]]] = []
        self.free = asyncio.Event()
        self.rejected: list[ErrorCode] = []
        """Errors of the next commits."""
        core.commits._group_metadata = lambda: self.group

    async def commit(self, cluster: object, group: GroupMetadata, offsets: dict[Any, int], **_: object) -> None:
        await self.free.wait()
        if self.rejected:
            raise errors.error_for(self.rejected.pop(0), f"generation {group.generation_id}")
        self.taken.append((group.generation_id, dict(offsets)))


def run(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[ConsumerCore, Coordinator], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        options = consumer_options(None, {"bootstrap_servers": "n:1", "group_id": "g"} | {"enable_auto_commit": False})
        core = ConsumerCore(options, asyncio.get_running_loop())
        coordinator = Coordinator(core)
        monkeypatch.setattr(offset_calls, "commit", coordinator.commit)
        core.assign([TP, OTHER])
        async with asyncio.timeout(60):
            await body(core, coordinator)
            await core.close()

    asyncio.run(main())


@pytest.mark.parametrize("member", [False, True])
def test_close_waits_for_pending_commits(monkeypatch: pytest.MonkeyPatch, member: bool) -> None:
    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        async def leave() -> None: ...

        if member:
            found: Any = SimpleNamespace(intact=True, leave=leave, stop=leave)
            core.coordinator.member = found
        commits = [asyncio.create_task(core.commits.run(core.commits.prepare({TP: n}))) for n in (1, 2, 3)]
        closing = asyncio.create_task(core.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        coordinator.free.set()
        await closing
        await asyncio.gather(*commits)
        assert coordinator.taken == [(1, {TP: n}) for n in (1, 2, 3)]

    run(monkeypatch, body)


def test_commit_ends_when_close_stops_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        commit = asyncio.create_task(core.commits.run(core.commits.prepare({TP: 1})))
        await asyncio.sleep(0)
        await core.close(20)
        with pytest.raises(errors.ClientClosedError, match="closed before"):
            await commit

    run(monkeypatch, body)


def test_close_that_times_out_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        core.commits.start(core.commits.prepare({TP: 1}))
        await core.close(20)
        assert "did not finish its commits, or leave its group, within 0.02 s" in caplog.text

    run(monkeypatch, body)


def test_revocation_waits_for_the_listeners_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        def revoked(partitions: object) -> None:
            core.commits.start(core.commits.prepare({TP: 7}))
            core.background.loop.call_later(0.01, coordinator.free.set)

        core._rebalancer.listeners = Listeners(revoked=revoked)
        await core._rebalancer.revoke([TP])
        assert coordinator.taken == [(1, {TP: 7})]

    run(monkeypatch, body)


def test_old_offsets_are_not_committed_in_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        core.subscription.partitions[OTHER].seek(5)
        commits = [core.commits.start(core.commits.prepare(offsets)) for offsets in ({TP: 1}, {OTHER: 5}, {TP: 2})]
        await asyncio.sleep(0)  # the first one is in flight, the others wait for their turn
        core.subscription.assign([OTHER])
        core.subscription.assign([OTHER, TP])  # another member may have owned it meanwhile
        coordinator.group = GroupMetadata("g", 2, "m")
        coordinator.free.set()
        await asyncio.wait(commits)
        assert coordinator.taken == [(1, {TP: 1}), (2, {OTHER: 5})], "the records that were kept all the time"
        with pytest.raises(errors.GroupError, match="t-0 was revoked"):
            commits[2].result()
        assert (core.subscription.partitions[OTHER].settled, core.subscription.partitions[TP].settled) == (5, None)

    run(monkeypatch, body)


def test_commit_during_a_join_is_sent_again_in_the_next_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has begun the next generation, and the member waits for the answer to SyncGroup."""

    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        joining = True
        core.commits._joining = lambda: joining
        coordinator.free.set()
        coordinator.rejected = [ErrorCode.ILLEGAL_GENERATION]
        commit = asyncio.create_task(core.commits.commit({TP: 1}))
        await asyncio.sleep(0.01)
        assert not commit.done()
        coordinator.group, joining = GroupMetadata("g", 2, "m"), False
        await commit
        assert coordinator.taken == [(2, {TP: 1})]
        coordinator.rejected = [ErrorCode.ILLEGAL_GENERATION]
        with pytest.raises(errors.GroupError, match="generation 2"):
            await core.commits.commit({TP: 2})

    run(monkeypatch, body)


@pytest.mark.parametrize("timeout_ms", [20, None])
def test_time_in_the_commit_queue_counts_for_the_timeout(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: float | None
) -> None:
    async def body(core: ConsumerCore, coordinator: Coordinator) -> None:
        core.cluster.api_timeout_ms = 20
        first = asyncio.create_task(core.commits.commit({TP: 1}))
        await asyncio.sleep(0)
        with pytest.raises(errors.TimedOutError, match="20 ms"):
            await core.commits.commit({TP: 2}, timeout_ms)
        coordinator.free.set()
        await first
        assert coordinator.taken == [(1, {TP: 1})]

    run(monkeypatch, body)
