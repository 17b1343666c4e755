"""When connections are reopened, and when idle ones are closed, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from oncelog.client.connections.pool import NEXT_ADDRESS_S, Connections
from oncelog.client.consumer.options import consumer_options
from oncelog.net.failures import ConnectionLostError
from oncelog.sim.loop import SimLoop

A, B = ("a", 1), ("b", 1)
GROWING = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


class Made:
    """A connection that the test can close."""

    def __init__(self, now: float) -> None:
        self.made_at = self.used_at = now
        self.closed = False
        self.in_flight = 0
        self.reason = ""

    def close(self, reason: str = "") -> None:
        self.closed, self.reason = True, self.reason or reason


class Network:
    """Which addresses are reachable, and when each was tried."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: int) -> None:
        self.tried: list[tuple[float, tuple[str, int]]] = []
        self.made: list[Made] = []
        self.up = {A, B}
        self.takes = 0.0
        self.hang: set[tuple[str, int]] = set()
        self.loop = loop
        given = {"reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 1_000, "max_idle_ms": 540_000, **options}
        self.connections = Connections(
            client_id="c", request_timeout_ms=1, connect_timeout_ms=1, chance=random.random, **given
        )
        self.connections._connect_once = self.connect  # type: ignore[assignment]

    async def connect(self, host: str, port: int) -> Made:
        self.tried.append((self.loop.time(), (host, port)))
        assert len(self.tried) < 1_000, "tried without a pause"
        await asyncio.sleep(10 if (host, port) in self.hang else self.takes)
        if (host, port) not in self.up or (host, port) in self.hang:
            raise ConnectionLostError("refused")
        self.made.append(Made(self.loop.time()))
        return self.made[-1]

    async def fail(self, purpose: str = "") -> None:
        with pytest.raises(ConnectionLostError):
            await self.connections.get((1, purpose), A)

    def rests(self) -> list[float]:
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.tried)]


def run(body: Callable[[Network], Coroutine[Any, Any, None]], **options: int) -> None:
    loop = SimLoop()

    async def main() -> None:
        network = Network(loop, **options)
        await body(network)
        await network.connections.close()

    with closing(loop):
        loop.run_until_complete(main())


def grow(rests: list[float]) -> bool:
    return all(0.79 * due <= rest <= 1.21 * due for rest, due in zip(rests, GROWING, strict=False))


def test_refused_connections_are_retried_with_growing_pauses() -> None:
    async def body(network: Network) -> None:
        network.up.clear()
        for _ in range(8):
            await network.fail()
        assert grow(network.rests()), network.rests()
        network.up.add(A)
        first = await network.connections.get((1, ""), A)
        network.up.clear()
        first.close()
        begun = len(network.tried) - 1
        for _ in range(3):
            await network.fail()
        assert grow(network.rests()[begun:][1:]), "the pauses start small again"

    run(body)


def test_no_pause_if_the_backoff_is_zero() -> None:
    async def body(network: Network) -> None:
        network.up.clear()
        for _ in range(4):
            await network.fail()
        assert network.rests() == [0, 0, 0]

    run(body, reconnect_backoff_ms=0, reconnect_backoff_max_ms=0)


def test_connections_for_different_purposes_do_not_wait_for_each_other() -> None:
    async def body(network: Network) -> None:
        for purpose in ("", "fetch", "group"):
            await network.connections.get((1, purpose), A)
        assert [at for at, _ in network.tried] == [0, 0, 0]
        network.up.clear()
        await network.fail("more")
        network.up.add(A)
        await network.connections.get((1, "still more"), A)
        assert network.tried[-1][0] >= 0.04, "the pause belongs to the address"

    run(body)


def test_connection_lost_at_once_is_retried_after_a_pause_and_an_old_one_without() -> None:
    async def body(network: Network) -> None:
        (await network.connections.get((1, ""), A)).close()
        again = await network.connections.get((1, ""), A)
        await asyncio.sleep(10)
        again.close()
        await network.connections.get((1, ""), A)
        early, late = network.rests()
        assert 0.039 <= early <= 0.061
        assert late == 10

    run(body)


def test_address_that_pauses_is_skipped_if_there_are_others() -> None:
    async def body(network: Network) -> None:
        network.up = {B}
        await network.fail()
        found = await network.connections.get_any((-1, ""), [A, B])
        assert [address for _, address in network.tried] == [A, B]
        found.close()
        network.up = set()
        for _ in range(10):
            with pytest.raises(ConnectionLostError):
                await network.connections.get_any((-1, ""), [A, B])
        assert network.loop.time() > 1, "all pause: no hurry"
        assert network.connections.find((-1, "")) is None

    run(body)


def test_concurrent_requests_for_any_broker_share_a_connection() -> None:
    async def body(network: Network) -> None:
        network.takes = 0.5
        first, *others = await asyncio.gather(*(network.connections.get_any((-1, ""), [A, B]) for _ in range(5)))
        assert all(other is first for other in others)
        assert not first.closed, "another request may be in flight"
        assert len(network.tried) == 1
        network.up.clear()
        first.close()
        answers = await asyncio.gather(
            *(network.connections.get_any((-1, ""), [A, B]) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(answer, ConnectionLostError) for answer in answers), answers
        assert len(network.tried) == 3

    run(body)


def test_cancelled_caller_does_not_close_the_connection_of_others() -> None:
    async def body(network: Network) -> None:
        network.takes = 1.0
        one, other = (asyncio.ensure_future(network.connections.get_any((-1, ""), [A])) for _ in range(2))
        await asyncio.sleep(0.5)
        one.cancel()
        assert not (await other).closed
        assert len(network.tried) == 1

    run(body)


def test_next_address_is_tried_while_one_does_not_respond() -> None:
    async def body(network: Network) -> None:
        network.hang = {A}
        firsts = set()
        for number in range(12):
            begun, tried = network.loop.time(), len(network.tried)
            found = await network.connections.get_any((-1, str(number)), [A, B])
            assert not found.closed
            firsts.add(network.tried[tried][1])
            assert network.loop.time() - begun <= NEXT_ADDRESS_S
        assert firsts == {A, B}, "in any order"
        network.hang = {A, B}
        with pytest.raises(ConnectionLostError):
            await network.connections.get_any((-1, "none"), [A, B])

    run(body)


def test_only_one_of_two_slow_connections_is_kept() -> None:
    async def body(network: Network) -> None:
        network.takes = NEXT_ADDRESS_S * 1.5
        found = await network.connections.get_any((-1, ""), [A, B])
        assert len(network.tried) == 2
        await asyncio.sleep(network.takes)
        assert [made for made in network.made if not made.closed] == [found]
        waiting = asyncio.ensure_future(network.connections.get_any((-1, "other"), [A, B]))
        await asyncio.sleep(NEXT_ADDRESS_S * 1.2)
        await network.connections.close()
        await asyncio.wait([waiting])
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()], "nothing continues"

    run(body)


@pytest.mark.parametrize("which", ["get", "get_any"])
def test_no_connection_is_opened_after_close(which: str) -> None:
    async def body(network: Network) -> None:
        network.takes = 1.0
        connections = network.connections
        made = connections.get((1, ""), A) if which == "get" else connections.get_any((-1, ""), [A])
        waiting = asyncio.ensure_future(made)
        await asyncio.sleep(0.5)
        await connections.close()
        await asyncio.wait([waiting])
        assert all(connection.closed for connection in network.made), "it would never be closed"
        assert connections.least_loaded() is None

    run(body)


def test_idle_connections_are_closed() -> None:
    async def body(network: Network) -> None:
        made: Any = await network.connections.get((1, ""), A)
        await asyncio.sleep(3)
        made.used_at = network.loop.time()
        await asyncio.sleep(4)
        assert not made.closed
        await asyncio.sleep(1.1)
        assert made.closed
        assert "connections_max_idle_ms" in made.reason
        assert network.connections.find((1, "")) is None
        assert await network.connections.get((1, ""), A) is not made

    run(body, max_idle_ms=5_000)


def test_connection_with_a_request_in_flight_is_not_idle() -> None:
    async def body(network: Network) -> None:
        made: Any = await network.connections.get((1, ""), A)
        made.in_flight = 1
        await asyncio.sleep(60)
        assert not made.closed
        made.in_flight = 0
        await asyncio.sleep(5.1)
        assert made.closed

    run(body, max_idle_ms=5_000)


def test_idle_connections_are_kept_if_the_limit_is_off() -> None:
    async def body(network: Network) -> None:
        made = await network.connections.get((1, ""), A)
        await asyncio.sleep(1e6)
        assert not made.closed

    run(body, max_idle_ms=-1)


def test_connection_options_follow_kafka() -> None:
    given = {"bootstrap_servers": "n:1"}
    options = consumer_options({"reconnect.backoff.ms": 10, "connections.max.idle.ms": -1}, given)
    assert (options["reconnect_backoff_ms"], options["reconnect_backoff_max_ms"]) == (10, 10)
    assert options["connections_max_idle_ms"] == -1
    options = consumer_options(None, given)
    assert (options["reconnect_backoff_ms"], options["reconnect_backoff_max_ms"]) == (50, 1_000)
    assert options["connections_max_idle_ms"] == 540_000


def test_requests_for_any_broker_go_to_one_of_the_least_loaded() -> None:
    """A client that always asks the same broker would depend on it even if its metadata is outdated."""

    async def body(network: Network) -> None:
        chances = iter([0.0, 0.34, 0.67, 0.99])
        connections = network.connections
        connections._chance = lambda: next(chances)
        made = [await connections.get((node, purpose), A) for node, purpose in ((1, ""), (2, ""), (3, "produce"))]
        for purpose in ("fetch", "group"):
            await connections.get((4, purpose), A)
        assert [connections.least_loaded() for _ in range(4)] == [made[0], made[1], made[2], made[2]]
        made[0].in_flight = made[2].in_flight = 1  # type: ignore[misc]
        chances = iter([0.0, 0.99])
        assert [connections.least_loaded() for _ in range(2)] == [made[1], made[1]]
        made[1].close()
        chances = iter([0.0, 0.99])
        assert [connections.least_loaded() for _ in range(2)] == [made[0], made[2]]

    run(body)
