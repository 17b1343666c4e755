"""Options and methods that the blocking `Admin` and the one for asyncio share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.metrics.results import ClientMetrics
from oncelog.client.notebooks import client_html
from oncelog.client.options import COMMON, cluster_options, read_options
from oncelog.client.other_names import ADMIN, OtherNames
from oncelog.errors import UsageError

FIRST_CONTACT_MS = 10_000
"""How long an Admin tries to reach a first broker, unless default_api_timeout_ms is given."""


def admin_options(
    config: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> tuple[str | Sequence[str], dict[str, Any]]:
    """Return (addresses, the keyword arguments of `ClusterClient`). Raises ConfigError."""
    found, explicit = read_options(COMMON, config, given)
    arguments = cluster_options(found)
    if "default_api_timeout_ms" not in explicit:
        arguments["first_contact_ms"] = FIRST_CONTACT_MS
    return found["bootstrap_servers"], arguments


def names(given: str | Iterable[str]) -> list[str]:
    """Return a list of names, from one name or several. Raises UsageError for anything else."""
    found: list[Any] = [given] if isinstance(given, str) else list(given)
    for name in found:
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is not a name: it must be str, not {type(name).__name__}")
    return found


class AdminBase(OtherNames):
    """What both admin clients share."""

    _other_names = ADMIN
    cluster: ClusterClient

    def metrics(self) -> ClientMetrics:
        """Return what this client counts: requests, bytes, latencies and connections.

        Sends no request. Any thread may call this, also after `close`.
        """
        return self.cluster.metrics()

    def _repr_html_(self) -> str:
        return client_html(self)
