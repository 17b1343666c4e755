"""Count the requests and connections of a client."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TypedDict

from oncelog.client.metrics.results import ClientMetrics, NodeMetrics, RequestMetrics
from oncelog.client.metrics.stats import LatencyStat, Stat, Windows
from oncelog.protocol.apis import ApiKey


class Requests:
    """Count requests and responses, by broker and by API. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.windows = Windows(clock)
        self.connections = self.failed_connections = self.failed_logins = self.lost = 0
        """Counts of opened connections, failed attempts, failed logins, and requests without a response."""
        self.outgoing, self.incoming = self.windows.stat(), self.windows.stat()
        self.apis: dict[int, LatencyStat] = {}
        """API key -> the latencies of its requests."""
        self._nodes: dict[int, NodeTraffic] = {}

    def of_node(self, node: int) -> NodeTraffic:
        """Return the recorder of the connections to a broker. Node -1 is a bootstrap address."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = NodeTraffic(self)
        return found

    def of_api(self, api_key: int) -> LatencyStat:
        """Return the latencies of an API's requests."""
        found = self.apis.get(api_key)
        if found is None:
            found = self.apis[api_key] = self.windows.latency()
        return found

    def keep_nodes(self, nodes: Container[int]) -> None:
        """Drop the counts of all other brokers."""
        for node in [each for each in self._nodes if each not in nodes and each >= 0]:
            self.windows.drop(self._nodes.pop(node).stats)

    def metrics(self, client_id: str, open_connections: Iterable[tuple[int, int]]) -> ClientMetrics:
        """Return the client's metrics. `open_connections` has pairs (node, requests in flight)."""
        now = self.windows.clock()
        busy: dict[int, list[int]] = {}
        for node, in_flight in open_connections:
            busy.setdefault(node, []).append(in_flight)
        count = sum(map(len, busy.values()))
        return ClientMetrics(
            **_traffic(self.outgoing, self.incoming, now),
            client_id=client_id,
            connection_count=count,
            connection_creation_total=self.connections,
            connection_close_total=max(0, self.connections - count),
            connection_failure_total=self.failed_connections,
            failed_authentication_total=self.failed_logins,
            requests_in_flight=sum(map(sum, busy.values())),
            request_lost_total=self.lost,
            nodes={node: each.metrics(busy.get(node, []), now) for node, each in self._nodes.copy().items()},
            requests={ApiKey(key).name: _of_api(each, now) for key, each in self.apis.copy().items() if each.count},
        )


class NodeTraffic:
    """Count the requests to one broker. It is the `Traffic` of the broker's connections."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._windows = requests.windows
        self.stats = self._outgoing, self._incoming, self._latency = tuple(self._windows.stat() for _ in range(3))

    def sent(self, size: int) -> float:
        """Count a request of `size` bytes. Return the current time, for `answered`."""
        now = self._windows.now()
        self._outgoing.record(size)
        self._requests.outgoing.record(size)
        return now

    def answered(self, api_key: int, size: int, sent_at: float) -> None:
        """Count a response of `size` bytes, and its latency."""
        latency = (self._windows.now() - sent_at) * 1000
        self._incoming.record(size)
        self._requests.incoming.record(size)
        self._latency.record(latency)
        self._requests.of_api(api_key).record(latency)

    def lost(self, count: int) -> None:
        """Count requests that will get no response."""
        self._requests.lost += count

    def metrics(self, in_flight: list[int], now: float) -> NodeMetrics:
        """Return the broker's metrics. `in_flight` has the requests in flight of each open connection."""
        latency = self._latency.recent(now)
        return NodeMetrics(
            connection_count=len(in_flight),
            requests_in_flight=sum(in_flight),
            request_latency_avg=latency.average,
            request_latency_max=latency.maximum,
            **_traffic(self._outgoing, self._incoming, now),
        )


class _Traffic(TypedDict):
    """The fields that brokers and clients share."""

    request_total: int
    request_rate: float
    response_total: int
    response_rate: float
    request_size_avg: float | None
    request_size_max: float | None
    outgoing_byte_total: int
    outgoing_byte_rate: float
    incoming_byte_total: int
    incoming_byte_rate: float


def _traffic(outgoing: Stat, incoming: Stat, now: float) -> _Traffic:
    sent, got = outgoing.recent(now), incoming.recent(now)
    return {
        "request_total": outgoing.count,
        "request_rate": sent.count_per_second,
        "response_total": incoming.count,
        "response_rate": got.count_per_second,
        "request_size_avg": sent.average,
        "request_size_max": sent.maximum,
        "outgoing_byte_total": int(outgoing.total),
        "outgoing_byte_rate": sent.per_second,
        "incoming_byte_total": int(incoming.total),
        "incoming_byte_rate": got.per_second,
    }


def _of_api(latency: LatencyStat, now: float) -> RequestMetrics:
    recent = latency.recent(now)
    return RequestMetrics(latency.count, recent.average, recent.maximum, latency.histogram())
