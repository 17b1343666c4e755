"""One broker that acts as two: it rejects requests for what is at the other one, as brokers do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.net.connection import ClientConnection
from oncelog.protocol.errors import ErrorCode

OTHER = 2


class TwoBrokers:
    """Answer metadata and requests as two brokers.

    `moved`: topics, partitions and transactional ids at the other broker. Metadata show this at once; an earlier client
    still uses the old metadata. `asked`: requests by (kind, node). With `port`, the other broker is there instead.
    """

    def __init__(self, patch: pytest.MonkeyPatch, port: int | None = None) -> None:
        self._port = port
        self.moved: set[tuple[str, int] | str] = set()
        self.asked: Counter[tuple[str, int]] = Counter()
        self._nodes: dict[ClientConnection, int] = {}
        connect, call = ClusterClient.connection, ClientConnection.call

        async def connection(cluster: ClusterClient, node_id: int, purpose: str = "") -> ClientConnection:
            found = await connect(cluster, node_id, purpose)
            self._nodes[found] = node_id
            return found

        async def answered(made: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
            response = await call(made, request, *rest, **more)
            node = self._nodes.get(made, 1)
            kind = type(request).__name__.removesuffix("Request")
            self.asked[kind, node] += 1
            if kind in ALTERED:
                ALTERED[kind](self, response, node)
            return response

        patch.setattr(ClusterClient, "connection", connection)
        patch.setattr(ClientConnection, "call", answered)

    def _metadata(self, response: Any, node: int) -> None:
        (broker,) = response.brokers
        other = type(broker)(node_id=OTHER, host=broker.host, port=self._port or broker.port)
        response.brokers.append(other)
        for topic in response.topics:
            for part in topic.partitions:
                if (topic.name, part.partition_index) in self.moved:
                    part.leader_id = OTHER

    def _coordinators(self, response: Any, node: int) -> None:
        for found in response.coordinators:
            if found.key in self.moved:
                found.node_id = OTHER

    def _producers(self, response: Any, node: int) -> None:
        for topic in response.topics:
            for part in topic.partitions:
                if (OTHER if (topic.name, part.partition_index) in self.moved else 1) != node:
                    part.error_code, part.active_producers = ErrorCode.NOT_LEADER_OR_FOLLOWER, []

    def _transactions(self, response: Any, node: int) -> None:
        for state in response.transaction_states:
            if (OTHER if state.transactional_id in self.moved else 1) != node:
                state.error_code = ErrorCode.NOT_COORDINATOR


ALTERED = {
    "Metadata": TwoBrokers._metadata,
    "FindCoordinator": TwoBrokers._coordinators,
    "DescribeProducers": TwoBrokers._producers,
    "DescribeTransactions": TwoBrokers._transactions,
}
