"""One request to all brokers while one of them is unavailable. In virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.broker_fanout import gather_brokers
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from oncelog.sim.loop import SimLoop


class World(ClusterClient):
    """Brokers 1, 2 and 3; each answers with its id as the only unknown filter."""

    def __init__(self) -> None:
        super().__init__("nowhere:1")
        self.registered = {1, 2, 3}
        self.addresses = {node: ("unknown", node) for node in self.registered}
        self.dead: set[int] = set()
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.asked: list[int] = []
        self.now = 0.0

    async def refresh(self, topics: Iterable[str] | None = None, **options: Any) -> None:
        self.topology.brokers = {node: self.addresses[node] for node in self.registered}

    async def connection(self, node_id: int, purpose: str = "") -> Any:
        if node_id not in self.topology.brokers:
            raise errors.ConnectionFailedError(f"broker {node_id} is not in the cluster's metadata")
        if self.topology.brokers[node_id][1] in self.dead:
            raise errors.ConnectionFailedError(f"broker {node_id}: refused")
        return Node(self, node_id)

    def gather(
        self, nodes: Sequence[int] | None = None, unanswered: dict[int, errors.RetriableError] | None = None
    ) -> dict[int, list[str]]:
        with closing(SimLoop()) as loop:
            for when, event in self.events:
                loop.call_later(when, event)
            try:
                answers = loop.run_until_complete(gather_brokers(self, ListTransactionsRequest, nodes, unanswered))
            finally:
                self.now = loop.time()
        return {node: answer.unknown_state_filters for node, answer in answers.items()}


class Node:
    """A connection."""

    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node
        self.address = f"unknown:{node}"

    async def call(self, request: Any, version: int | None, *, timeout_ms: float) -> ListTransactionsResponse:
        self.world.asked.append(self.node)
        return ListTransactionsResponse(unknown_state_filters=[str(self.node)])


@pytest.fixture
def world() -> World:
    return World()


def test_each_broker_is_asked_once(world: World) -> None:
    assert world.gather() == {1: ["1"], 2: ["2"], 3: ["3"]}
    assert world.asked == [1, 2, 3]


def test_broker_that_is_unregistered_fails_the_request(world: World) -> None:
    """The metadata say that other brokers took over, but their answers may lag."""
    world.dead = {2}
    world.events = [(9.0, lambda: world.registered.discard(2))]
    with pytest.raises(errors.ConnectionFailedError, match="broker 2 is not in"):
        world.gather()
    assert world.asked == [1, 3]


def test_broker_that_restarts_at_another_address_is_found(world: World) -> None:
    world.dead = {2}

    def back() -> None:
        world.addresses[2] = ("unknown", 20)

    world.events = [(9.0, back)]
    assert world.gather() == {1: ["1"], 2: ["2"], 3: ["3"]}
    assert 9 <= world.now < 12


def test_gather_waits_for_a_restarting_broker(world: World) -> None:
    world.dead = {2}
    world.events = [(9.0, lambda: world.dead.discard(2))]
    assert world.gather() == {1: ["1"], 2: ["2"], 3: ["3"]}
    assert world.asked == [1, 3, 2]


def test_broker_that_stays_registered_but_dead_fails_in_the_end(world: World) -> None:
    world.dead = {2}
    with pytest.raises(errors.ConnectionFailedError, match="broker 2: refused"):
        world.gather()
    assert 55 < world.now <= 60


def test_answers_of_the_others_are_returned_if_the_caller_accepts_missing_ones(world: World) -> None:
    world.dead = {2}
    world.events = [(5.0, lambda: world.registered.discard(2))]
    unanswered: dict[int, errors.RetriableError] = {}
    assert world.gather(unanswered=unanswered) == {1: ["1"], 3: ["3"]}
    assert list(unanswered) == [2]
    assert "broker 2 is not in the cluster's metadata" in str(unanswered[2])


def test_at_least_one_broker_must_answer(world: World) -> None:
    world.dead = {1, 2, 3}
    with pytest.raises(errors.ConnectionFailedError, match="refused"):
        world.gather(unanswered={})


def test_broker_requested_by_id_is_waited_for_although_it_is_unregistered(world: World) -> None:
    world.dead = {2}
    world.events = [
        (1.0, lambda: world.registered.discard(2)),
        (20.0, lambda: (world.registered.add(2), world.dead.discard(2))),
    ]
    assert world.gather([2]) == {2: ["2"]}
    assert 20 <= world.now < 25
