"""The metrics that clients have pushed, as Prometheus reads them. Times are seconds of a monotonic clock.

Clients push the differences of counters, and this broker adds them up. So the sum over all brokers is what a client has
counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from oncelog.broker.telemetry.names import CLIENT, INSTANCE, TOTAL, NamedMetrics, NamedPoint, Series
from oncelog.broker.telemetry.otlp import Attributes

MOST_SERIES_OF_CLIENT = 2_000
MOST_SERIES = 50_000
"""The maximum number of series of all clients. The client whose last push is the oldest is removed first."""
MOST_CHARACTERS = 16 << 20
"""The maximum number of characters in the names and labels of all series."""
MOST_CLIENTS = 10_000
"""The maximum number of clients with metrics."""

INFO_LABELS = (INSTANCE, CLIENT, "client_software_name", "client_software_version", "client_source_address")
RESOURCE_LABELS = ("client_rack", "group_id", "group_instance_id", "group_member_id", "transactional_id")
"""What Java's clients say about themselves."""


class _Client:
    """What one client instance has pushed."""

    __slots__ = ("characters", "expires", "info", "labels", "series", "subscription_id")

    def __init__(self, labels: tuple[str, str]) -> None:
        self.labels = labels
        self.info: tuple[str, ...] = ()
        self.series: set[Series] = set()
        self.characters = 0
        self.expires = 0.0
        self.subscription_id = 0


class Family(NamedTuple):
    """All series of one exported name."""

    counter: bool
    values: dict[tuple[str, Attributes], float]
    """By client instance id and labels."""


class Sample(NamedTuple):
    """One line of the text."""

    labels: tuple[str, ...]
    values: tuple[str, ...]
    value: float


class ExportedMetrics:
    """The series of all clients of one broker."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._families: dict[str, Family] = {}
        self.series = 0
        """The number of series."""
        self.characters = 0
        self.dropped = 0
        """The number of points that were not exported: a limit, another type, or not requested."""

    def __len__(self) -> int:
        return len(self._clients)

    def update(
        self, attributes: Mapping[str, str], pushed: NamedMetrics, subscription_id: int, now: float, lasts_s: float
    ) -> None:
        """Take what a client has pushed. Keep it for `lasts_s`, until the next push.

        `attributes` are those of the client instance. A gauge that is missing in the push is gone. After a change of
        the subscription, a counter that is missing is gone, too.
        """
        self.expire(now)
        client = self._client(attributes)
        client.expires = now + lasts_s
        client.info = _info(attributes, pushed.resource)
        seen: set[Series] = set()
        self.dropped += pushed.dropped
        for point in pushed.points:
            if self._put(client, point):
                seen.add(point.series)
            else:
                self.dropped += 1
        changed = client.subscription_id != subscription_id
        client.subscription_id = subscription_id
        for series in client.series - seen:
            if changed or not self._families[series[0]].counter:
                self._remove(client, series)
        if not client.series:
            self._forget(client.labels[0])

    def _client(self, attributes: Mapping[str, str]) -> _Client:
        instance_id = attributes[INSTANCE]
        client = self._clients.get(instance_id)
        if client is None:
            client = self._clients[instance_id] = _Client((instance_id, attributes[CLIENT]))
            if len(self._clients) > MOST_CLIENTS:
                self._forget(next(iter(self._clients)))
        self._clients.move_to_end(instance_id)
        return client

    def _put(self, client: _Client, point: NamedPoint) -> bool:
        """Store a point. Return False if the limits do not allow it."""
        name, labels = series = point.series
        key = client.labels[0], labels
        if series in client.series:
            values = self._families[name].values
            values[key] = point.value + (values[key] if point.delta else 0)
            return True
        size = _size(series)
        if len(client.series) >= MOST_SERIES_OF_CLIENT or not self._has_room(client, size):
            return False
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(name.endswith(TOTAL), {})
        family.values[key] = point.value
        client.series.add(series)
        client.characters += size
        self.characters += size
        self.series += 1
        return True

    def _has_room(self, client: _Client, size: int) -> bool:
        """Remove the clients with the oldest pushes until there is room. Return False if only this one is left."""
        while self.series >= MOST_SERIES or self.characters + size > MOST_CHARACTERS:
            oldest = next(iter(self._clients))
            if self._clients[oldest] is client:
                return False
            self._forget(oldest)
        return True

    def expire(self, now: float) -> None:
        """Remove the clients that have not pushed in time, from the one with the oldest push on."""
        while self._clients and next(iter(self._clients.values())).expires <= now:
            self._forget(next(iter(self._clients)))

    def _forget(self, instance_id: str) -> None:
        client = self._clients.pop(instance_id)
        for series in client.series.copy():
            self._remove(client, series)

    def _remove(self, client: _Client, series: Series) -> None:
        name, labels = series
        size = _size(series)
        client.series.remove(series)
        client.characters -= size
        self.characters -= size
        self.series -= 1
        values = self._families[name].values
        del values[client.labels[0], labels]
        if not values:
            del self._families[name]

    def families(self) -> Iterator[tuple[str, bool, Iterator[Sample]]]:
        """Yield the name, whether it is a counter, and the samples of each family that exists at the first step."""
        for name, family in tuple(self._families.items()):
            yield name, family.counter, self._samples(family)

    def _samples(self, family: Family) -> Iterator[Sample]:
        for (instance_id, labels), value in tuple(family.values.items()):
            client = self._clients.get(instance_id)
            if client is not None:
                names, values = zip(*labels, strict=True) if labels else ((), ())
                yield Sample((INSTANCE, CLIENT, *names), (*client.labels, *values), value)

    def infos(self) -> Iterator[tuple[str, ...]]:
        """Yield the values of INFO_LABELS and RESOURCE_LABELS of each client."""
        for client in tuple(self._clients.values()):
            yield client.info


def _info(attributes: Mapping[str, str], resource: Attributes) -> tuple[str, ...]:
    said = dict(resource)
    return (*(attributes[name] for name in INFO_LABELS), *(said.get(name, "") for name in RESOURCE_LABELS))


def _size(series: Series) -> int:
    name, labels = series
    return len(name) + sum(len(key) + len(value) for key, value in labels)
