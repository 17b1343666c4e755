"""Look up the coordinators of many groups or transactional ids with few requests (KIP-699)."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import KINDS, ClusterClient
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest

AT_ONCE = 1_000
"""Keys in one request."""


async def find_coordinators(cluster: ClusterClient, kind: str, keys: Iterable[str]) -> None:
    """Look up the coordinators (`kind` "group" or "transaction") that the client does not know yet.

    If a key has no coordinator at the moment, it stays unknown: `ClusterClient.coordinator` retries it. If a broker
    accepts only one key per request (before version 4), `ClusterClient.coordinator` looks up all keys.
    """
    unknown = [key for key in dict.fromkeys(keys) if cluster.known_coordinator(kind, key) is None]
    for start in range(0, len(unknown), AT_ONCE):
        response = await cluster.call_any(_asking(kind, unknown[start : start + AT_ONCE]))
        if not response.coordinators:
            return
        for answer in response.coordinators:
            if not answer.error_code:
                cluster.learn_coordinator(kind, answer.key, answer)


def _asking(kind: str, keys: list[str]) -> ByVersion:
    def make(version: int) -> FindCoordinatorRequest:
        request = FindCoordinatorRequest(key_type=KINDS[kind])
        if version < 4:
            request.key = keys[0]
        else:
            request.coordinator_keys = keys
        return request

    return ByVersion(FindCoordinatorRequest, make)
