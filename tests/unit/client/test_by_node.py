"""Requests for many items at once: which are retried, at which broker, and for how long. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.broker_fanout import BrokerFanout, ask_by_node
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from oncelog.sim.loop import SimLoop

Fate = ErrorCode | None
"""Of one name in one answer. None: it is omitted."""


class World(ClusterClient):
    """Names are at nodes. Every answer says whether each name is there, unless `fate` overrides it."""

    def __init__(self) -> None:
        super().__init__("nowhere:1")
        self.at: dict[str, int | None] = {}
        self.known: dict[str, int | None] = {}
        self.fates: dict[str, list[Fate]] = {}
        self.lost: set[int] = set()
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        self.moved: list[tuple[str, ErrorCode]] = []

    async def connection(self, node_id: int, purpose: str = "") -> Any:
        return Node(self, node_id)

    async def where(self, name: str) -> int | None:
        return self.known.setdefault(name, self.at[name])

    def forget(self, name: str, code: ErrorCode) -> None:
        self.moved.append((name, code))
        self.known.pop(name, None)

    def ask(self, *names: str, into: dict[str, str] | None = None) -> dict[str, str]:
        def read(response: DescribeGroupsResponse) -> Iterable[tuple[str, ErrorCode, str]]:
            return [(g.group_id, ErrorCode.of(g.error_code), g.group_state) for g in response.groups]

        fanout = BrokerFanout(
            self.where, lambda names: DescribeGroupsRequest(groups=names), read, self.forget, lambda name: f"<{name}>"
        )
        with closing(SimLoop()) as loop:
            return loop.run_until_complete(ask_by_node(self, fanout, names, timeout_ms=5_000, into=into))


class Node:
    """A connection."""

    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node

    async def call(self, request: DescribeGroupsRequest, version: int | None) -> Any:
        world = self.world
        world.asked.append((self.node, tuple(request.groups)))
        assert len(world.asked) < 1_000, "requests without a pause"
        await asyncio.sleep(0.01)
        if self.node in world.lost:
            raise ConnectionLostError("hung up")
        found = []
        for name in request.groups:
            here = ErrorCode.NONE if world.at[name] == self.node else ErrorCode.NOT_COORDINATOR
            fates = world.fates.get(name)
            code = fates.pop(0) if fates else here
            if code is not None:
                found.append(DescribedGroup(group_id=name, error_code=code, group_state=f"of {self.node}"))
        return DescribeGroupsResponse(groups=found)


@pytest.fixture
def world() -> World:
    made = World()
    made.at = {"a": 1, "b": 1, "c": 2}
    return made


def test_each_broker_gets_one_request_for_all_its_items(world: World) -> None:
    assert world.ask("a", "b", "c", "a") == {"a": "of 1", "b": "of 1", "c": "of 2"}
    assert world.asked == [(1, ("a", "b")), (2, ("c",))]


def test_only_moved_items_are_requested_again_at_their_new_broker(world: World) -> None:
    world.known = {"a": 1, "b": 1, "c": 1}
    assert world.ask("a", "b", "c") == {"a": "of 1", "b": "of 1", "c": "of 2"}
    assert world.asked == [(1, ("a", "b", "c")), (2, ("c",))]
    assert world.moved == [("c", ErrorCode.NOT_COORDINATOR)]


def test_all_items_of_a_lost_broker_are_looked_up_again(world: World) -> None:
    world.known, world.lost = {"a": 3, "b": 3}, {3}
    assert world.ask("a", "b", "c") == {"a": "of 1", "b": "of 1", "c": "of 2"}
    assert world.moved == [("a", ErrorCode.NETWORK_EXCEPTION), ("b", ErrorCode.NETWORK_EXCEPTION)]


def test_items_without_a_broker_are_omitted(world: World) -> None:
    world.at["b"] = None
    assert world.ask("a", "b") == {"a": "of 1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.at.update(b=-1), "<b>: the partition has no leader"),
        (lambda w: w.fates.update(b=[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 99), "<b>: .*LOAD_IN_PROGRESS"),
        (lambda w: w.fates.update(b=[None] * 99), "the response of broker 1 does not contain <b>"),
        (lambda w: w.lost.add(1), "hung up"),
    ],
    ids=["no leader", "loading", "left out", "lost"],
)
def test_retriable_error_that_persists_is_raised(world: World, change: Callable[[World], object], said: str) -> None:
    change(world)
    with pytest.raises(errors.KafkaError, match=said):
        world.ask("a", "b", "c")
    assert 5 < len([name for name, _ in world.moved if name == "b"]) < 30, "with growing pauses"
    assert [name for node, names in world.asked for name in names if node == 2] == ["c"], (
        "known items are not requested"
    )


def test_permanent_error_is_raised_at_once(world: World) -> None:
    world.fates["b"] = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(errors.AuthorizationError, match="<b>"):
        world.ask("a", "b", "c")
    assert len(world.asked) == 2


def test_answers_of_other_brokers_are_kept_if_one_fails(world: World) -> None:
    world.fates["a"] = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    world.known["b"] = 2
    found: dict[str, str] = {}
    with pytest.raises(errors.AuthorizationError):
        world.ask("a", "b", "c", into=found)
    assert found == {"c": "of 2"}
    assert world.moved == [("b", ErrorCode.NOT_COORDINATOR)], "the moved items are known to have moved"
