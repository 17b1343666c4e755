"""Decide whether a new connection is accepted now, waits, or is refused. No I/O.

As in Kafka, connections above `max.connections` or `max.connection.creation.rate` wait, and those above
`max.connections.per.ip` are refused. The listener of the brokers is protected if there is another one: the broker's
limits do not stop its connections, and the server closes idle connections of other listeners instead. In Kafka, waiting
connections are in the kernel's backlog. Here, a few of each listener wait, and further ones are refused.

Source: Kafka's `ConnectionQuotas` (KIP-402, KIP-612).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from oncelog.net.creation_rates import Rate

UNLIMITED = 2**31 - 1
MOST_WAITING = 128
"""The number of connections of a listener that may wait."""
MOST_RATES = 10_000
"""The number of addresses whose rates are measured. The one that has connected least recently is forgotten first."""

WAITS = 0
INSIDE = 1
REFUSED = 2
GONE = 3
"""The states of an arrival."""


@dataclass(frozen=True, slots=True)
class ListenerQuota:
    """The limits of one listener. None means that of the broker."""

    max_connections: int | None = None
    creation_rate: int | None = None


@dataclass(frozen=True, slots=True)
class ConnectionQuotas:
    """The limits of a server. Rates are connections per second. Addresses are IP addresses as texts."""

    max_connections: int = UNLIMITED
    creation_rate: int = UNLIMITED
    of_listeners: Mapping[str, ListenerQuota] = field(default_factory=dict)
    per_address: int = UNLIMITED
    of_addresses: Mapping[str, int] = field(default_factory=dict)
    """The limits of addresses that override `per_address`."""
    address_rate: int = UNLIMITED
    address_rates: Mapping[str, int] = field(default_factory=dict)
    """The rates of addresses that override `address_rate`."""
    descriptors: int = UNLIMITED
    """The number of connections, with the waiting ones, for which the process has file descriptors."""

    def most_of(self, listener: str) -> int:
        """Return the largest number of connections of a listener."""
        own = self.of_listeners.get(listener)
        return self.max_connections if own is None or own.max_connections is None else own.max_connections

    def rate_of(self, listener: str) -> int:
        """Return the largest rate of a listener."""
        own = self.of_listeners.get(listener)
        return self.creation_rate if own is None or own.creation_rate is None else own.creation_rate


class Arrival:
    """One connection, from its arrival to its end."""

    __slots__ = ("address", "decided", "delay_s", "listener", "number", "ready_at", "reason", "state")

    def __init__(self, listener: str, address: str, decided: Callable[[Arrival], None]) -> None:
        """`decided(arrival)` is called when it no longer waits."""
        self.listener = listener
        self.address = address
        self.decided = decided
        self.state = WAITS
        self.number = 0
        self.ready_at = -1.0
        """When the rate allows it, by the clock of the caller; negative before it is first in its queue."""
        self.reason = ""
        """Why it waits or is refused."""
        self.delay_s = 0.0
        """How long to wait with the refusal, so that the client does not try again at once."""


class Admission:
    """The connections of a server, and those that wait. Times are seconds, by any clock that does not go back.

    The methods that get a time return the arrivals that no longer wait: each one is INSIDE or REFUSED.
    """

    __slots__ = ("_addresses", "_arrivals", "_inside", "_queues", "_rate", "_rates", "_rates_of", "protected", "quotas")

    def __init__(self, quotas: ConnectionQuotas) -> None:
        self.quotas = quotas
        self.protected = ""
        """The listener of the brokers, if there is another one; otherwise empty."""
        self._arrivals = 0
        self._inside: Counter[str] = Counter()
        """The number of accepted connections of each listener."""
        self._addresses: dict[str, int] = {}
        """The number of accepted connections of each address."""
        self._queues: dict[str, deque[Arrival]] = {}
        self._rate = Rate()
        self._rates: dict[str, Rate] = {}
        """By listener."""
        self._rates_of: OrderedDict[str, Rate] = OrderedDict()
        """By address."""

    @property
    def inside(self) -> int:
        """The number of accepted connections."""
        return sum(self._inside.values())

    @property
    def waiting(self) -> int:
        """The number of waiting connections."""
        return sum([len(queue) for queue in self._queues.values()])

    @property
    def excess(self) -> int:
        """How many connections of listeners that are not protected must be closed."""
        most = min(self.quotas.max_connections, self.quotas.descriptors)
        return min(max(self.inside - most, 0), self._unprotected)

    def next_at(self, now: float) -> float | None:
        """Return when the rate next allows a waiting connection; None if none waits for that."""
        times = [queue[0].ready_at for queue in self._queues.values() if queue and queue[0].ready_at > now]
        return min(times, default=None)

    def arrive(self, now: float, arrival: Arrival) -> list[Arrival]:
        """Add a new connection."""
        self._arrivals += 1
        arrival.number = self._arrivals
        if self.inside + self.waiting >= self.quotas.descriptors and not self._makes_room(arrival):
            return [_refused(arrival, f"the process has file descriptors for {self.quotas.descriptors} connections")]
        queue = self._queues.setdefault(arrival.listener, deque())
        queue.append(arrival)
        decided = self.settle(now)
        if arrival.state == WAITS:
            arrival.reason = self._obstacle(arrival.listener)
            if len(queue) > MOST_WAITING:
                queue.remove(arrival)
                decided.append(_refused(arrival, f"{arrival.reason}, and {MOST_WAITING} connections wait"))
        return decided

    def leave(self, now: float, arrival: Arrival) -> list[Arrival]:
        """Remove a connection that has ended, or that waited. Do nothing if it was removed before."""
        state, arrival.state = arrival.state, GONE
        if state == WAITS:
            queue = self._queues[arrival.listener]
            if arrival in queue:
                queue.remove(arrival)
        elif state == INSIDE:
            self._inside[arrival.listener] -= 1
            left = self._addresses[arrival.address] - 1
            if left:
                self._addresses[arrival.address] = left
            else:
                del self._addresses[arrival.address]
        else:
            return []
        return self.settle(now)

    def settle(self, now: float) -> list[Arrival]:
        """Decide about the waiting connections, the oldest first. Call this at `next_at`, and after other quotas."""
        decided: list[Arrival] = []
        while True:
            first: Arrival | None = None
            for queue in self._queues.values():
                if queue and self._is_next(queue[0], now) and (first is None or queue[0].number < first.number):
                    first = queue[0]
            if first is None:
                return decided
            self._queues[first.listener].popleft()
            self._decide(first, now)
            decided.append(first)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _is_next(self, head: Arrival, now: float) -> bool:
        if head.ready_at < 0:
            head.ready_at = now + self._wait_s(head.listener, now)
        return now >= head.ready_at and self._has_slot(head.listener)

    def _wait_s(self, listener: str, now: float) -> float:
        """Count a connection, and return how long it must wait for the rates of the broker and the listener."""
        quotas = self.quotas
        wait_s = 0.0
        if listener != self.protected:
            self._rate.record(now)
            wait_s = self._rate.wait_s(now, quotas.creation_rate)
        rate = self._rates.setdefault(listener, Rate())
        rate.record(now)
        return max(wait_s, rate.wait_s(now, quotas.rate_of(listener)))

    def _has_slot(self, listener: str) -> bool:
        if self._inside[listener] >= self.quotas.most_of(listener):
            return False
        return listener == self.protected or self.inside < self.quotas.max_connections

    def _obstacle(self, listener: str) -> str:
        """Return why a connection waits."""
        if self._has_slot(listener):
            return f"max.connection.creation.rate={min(self.quotas.rate_of(listener), self.quotas.creation_rate)}"
        own = self.quotas.of_listeners.get(listener)
        if own is not None and own.max_connections is not None and self._inside[listener] >= own.max_connections:
            return f"listener.name.{listener.lower()}.max.connections={own.max_connections} is reached"
        return f"max.connections={self.quotas.max_connections} is reached"

    def _decide(self, arrival: Arrival, now: float) -> None:
        address, quotas = arrival.address, self.quotas
        arrival.delay_s = self._address_wait_s(arrival, now)
        if arrival.delay_s:
            _refused(arrival, f"the connection rate of {address} is above its quota")
            return
        count = self._addresses.get(address, 0)
        most = quotas.of_addresses.get(address, quotas.per_address)
        if count >= most:
            _refused(arrival, f"{address} has {count} connections, and max.connections.per.ip allows {most}")
            return
        arrival.state = INSIDE
        self._addresses[address] = count + 1
        self._inside[arrival.listener] += 1

    def _address_wait_s(self, arrival: Arrival, now: float) -> float:
        """Return how far an address is above its rate. If it is, the connection does not count for any rate."""
        limit = self.quotas.address_rates.get(arrival.address, self.quotas.address_rate)
        if limit >= UNLIMITED:
            return 0.0
        rate = self._rates_of.setdefault(arrival.address, Rate())
        self._rates_of.move_to_end(arrival.address)
        if len(self._rates_of) > MOST_RATES:
            self._rates_of.popitem(last=False)
        rate.record(now)
        wait_s = rate.wait_s(now, limit)
        if wait_s:
            rate.record(now, -1)
            self._rates[arrival.listener].record(now, -1)
            if arrival.listener != self.protected:
                self._rate.record(now, -1)
        return wait_s

    @property
    def _unprotected(self) -> int:
        return self.inside - self._inside[self.protected]

    def _makes_room(self, arrival: Arrival) -> bool:
        """Return whether the server can close another connection for one of the brokers."""
        return arrival.listener == self.protected and self._unprotected > 0


def _refused(arrival: Arrival, reason: str) -> Arrival:
    arrival.state, arrival.reason = REFUSED, reason
    return arrival
