"""Which connections are accepted, wait, or are refused, without sockets and with a clock of our own."""

from __future__ import annotations

import random

import pytest

from oncelog.net import admission
from oncelog.net.admission import GONE, INSIDE, REFUSED, WAITS, Admission, Arrival, ConnectionQuotas, ListenerQuota
from oncelog.net.creation_rates import Rate


class Door:
    """An `Admission` with a clock."""

    def __init__(self, protected: str = "", **quotas: object) -> None:
        self.admission = Admission(ConnectionQuotas(**quotas))  # type: ignore[arg-type]
        self.admission.protected = protected
        self.now = 1000.0

    def arrive(self, listener: str = "OUT", address: str = "10.0.0.1") -> Arrival:
        arrival = Arrival(listener, address, lambda _: None)
        self.admission.arrive(self.now, arrival)
        return arrival

    def leave(self, arrival: Arrival) -> list[Arrival]:
        return self.admission.leave(self.now, arrival)

    def sleep(self, seconds: float) -> list[Arrival]:
        self.now += seconds
        return self.admission.settle(self.now)


def states(arrivals: list[Arrival]) -> list[int]:
    return [each.state for each in arrivals]


def test_oldest_waiting_connection_gets_the_free_slot() -> None:
    door = Door(max_connections=2)
    first, second, third, fourth = [door.arrive(listener) for listener in ("OUT", "IN", "IN", "OUT")]
    assert states([first, second, third, fourth]) == [INSIDE, INSIDE, WAITS, WAITS]
    assert third.reason == "max.connections=2 is reached"
    assert door.leave(first) == [third]
    assert door.leave(third) == [fourth]
    assert door.leave(third) == []
    assert (third.state, door.admission.inside) == (GONE, 2)


def test_waiting_connection_may_leave() -> None:
    door = Door(max_connections=1)
    inside, gone, next_one = [door.arrive() for _ in range(3)]
    assert door.leave(gone) == []
    assert door.leave(inside) == [next_one]
    assert door.admission.waiting == 0


def test_listener_has_a_limit_of_its_own() -> None:
    """Another listener's connections do not wait behind it."""
    door = Door(max_connections=3, of_listeners={"OUT": ListenerQuota(max_connections=1)})
    out = [door.arrive("OUT") for _ in range(2)]
    assert states(out) == [INSIDE, WAITS]
    assert out[1].reason == "listener.name.out.max.connections=1 is reached"
    assert states([door.arrive("IN") for _ in range(3)]) == [INSIDE, INSIDE, WAITS]


def test_brokers_replace_connections_of_other_listeners() -> None:
    """Only the listener's own limit, by default that of the broker, stops them."""
    door = Door("IN", max_connections=2)
    out = [door.arrive("OUT") for _ in range(3)]
    assert states(out) == [INSIDE, INSIDE, WAITS]
    assert [(door.arrive("IN").state, door.admission.excess) for _ in range(3)] == [
        (INSIDE, 1),
        (INSIDE, 2),
        (WAITS, 2),
    ]
    for each in out[:2]:
        door.leave(each)
    assert (out[2].state, door.admission.excess) == (WAITS, 0)


def test_only_listener_is_not_protected() -> None:
    door = Door("", max_connections=1)
    assert states([door.arrive("IN") for _ in range(2)]) == [INSIDE, WAITS]


def test_lower_limit_makes_connections_superfluous() -> None:
    door = Door("IN", max_connections=5)
    for listener in ("OUT", "OUT", "IN", "IN"):
        door.arrive(listener)
    door.admission.quotas = ConnectionQuotas(max_connections=3)
    assert door.admission.excess == 1
    door.admission.quotas = ConnectionQuotas(max_connections=1)
    assert door.admission.excess == 2


def test_address_has_a_number_of_connections() -> None:
    door = Door(per_address=1, of_addresses={"10.0.0.2": 2, "10.0.0.3": 0})
    found = [door.arrive(address=f"10.0.0.{number}") for number in (1, 1, 2, 2, 2, 3)]
    assert states(found) == [INSIDE, REFUSED, INSIDE, INSIDE, REFUSED, REFUSED]
    assert "10.0.0.1 has 1 connections, and max.connections.per.ip allows 1" in found[1].reason
    door.leave(found[1])
    assert door.arrive(address="10.0.0.1").state == REFUSED
    door.leave(found[0])
    assert door.arrive(address="10.0.0.1").state == INSIDE


@pytest.mark.parametrize("of_listener", [True, False])
def test_rate_lets_a_burst_in_and_delays_the_rest(of_listener: bool) -> None:
    """Kafka's rate covers eleven seconds: at ten a second, about a hundred may come at once."""
    limit = {"of_listeners": {"OUT": ListenerQuota(creation_rate=10)}} if of_listener else {"creation_rate": 10}
    door = Door(**limit)
    burst = [door.arrive() for _ in range(110)]
    assert states(burst) == [INSIDE] * 100 + [WAITS] * 10
    assert burst[100].reason == "max.connection.creation.rate=10"
    at = door.admission.next_at(door.now)
    assert at is not None
    assert 0 < at - door.now <= 1
    assert door.sleep(0.01) == []
    inside = 100
    for _ in range(1000):
        inside += len(door.sleep(0.1))
        if inside == 110:
            break
    assert inside == 110
    assert door.admission.next_at(door.now) is None


def test_rate_of_the_broker_does_not_delay_brokers() -> None:
    door = Door("IN", creation_rate=1, of_listeners={"IN": ListenerQuota(creation_rate=1000)})
    assert states([door.arrive("OUT") for _ in range(11)])[-1] == WAITS
    assert set(states([door.arrive("IN") for _ in range(100)])) == {INSIDE}


def test_address_above_its_rate_is_refused_later_and_counts_for_no_rate() -> None:
    door = Door(address_rate=1, address_rates={"10.0.0.2": 1000}, creation_rate=2)
    found = [door.arrive() for _ in range(60)]
    assert states(found) == [INSIDE] * 10 + [REFUSED] * 50
    assert 0 < found[-1].delay_s <= 1
    assert states([door.arrive(address="10.0.0.2") for _ in range(10)]) == [INSIDE] * 10


def test_waiting_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_WAITING", 2)
    door = Door("IN", max_connections=1)
    found = [door.arrive("OUT") for _ in range(4)]
    assert states(found) == [INSIDE, WAITS, WAITS, REFUSED]
    door = Door("IN", descriptors=2)
    assert states([door.arrive("OUT") for _ in range(3)]) == [INSIDE, INSIDE, REFUSED]
    assert (door.arrive("IN").state, door.admission.excess) == (INSIDE, 1)


def test_measured_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_RATES", 3)
    door = Door(address_rate=5)
    for number in range(10):
        door.arrive(address=str(number))
    assert list(door.admission._rates_of) == ["7", "8", "9"]


def test_rate_forgets_what_is_long_ago() -> None:
    rate = Rate()
    rate.record(0, 1000)
    assert rate.wait_s(0, 10) == 1.0
    assert rate.wait_s(11, 10) == 0.0
    assert rate.wait_s(11, 0) == 0.0
    rate.record(12)
    assert rate.wait_s(12, 0) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_limits_hold_whatever_happens(seed: int) -> None:
    """Whoever waits has a reason, and counts do not drift."""
    chance = random.Random(seed)
    door = Door(
        "IN",
        max_connections=6,
        of_listeners={"OUT": ListenerQuota(max_connections=4, creation_rate=5)},
        per_address=3,
        descriptors=20,
    )
    known: list[Arrival] = []
    for _ in range(500):
        action = chance.random()
        if action < 0.5:
            known.append(door.arrive(chance.choice(["IN", "OUT", "LAN"]), chance.choice("abc")))
        elif action < 0.8 and known:
            door.leave(known.pop(chance.randrange(len(known))))
        else:
            door.sleep(chance.random())
        known = [each for each in known if each.state in (WAITS, INSIDE)]
        inside = [each for each in known if each.state == INSIDE]
        assert door.admission.inside == len(inside)
        assert door.admission.waiting == len(known) - len(inside)
        assert sum(each.listener == "OUT" for each in inside) <= 4
        assert all(sum(each.address == name for each in inside) <= 3 for name in "abc")
        assert len(known) <= 20 or any(each.listener == "IN" for each in inside)
    for each in known:
        door.leave(each)
    assert (door.admission.inside, door.admission.waiting, door.admission._addresses) == (0, 0, {})
