"""Options and names that the blocking `Admin` and the one for asyncio share, and the calls that they lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.metrics.results import ClientMetrics
from oncelog.client.options import COMMON, cluster_options, read_options
from oncelog.errors import UsageError

FIRST_CONTACT_MS = 10_000
"""How long an Admin tries to reach a first broker, unless default_api_timeout_ms is given."""

NOT_YET = {
    "alter_replica_log_dirs": "moving replicas between log directories (KIP-113)",
    "alter_partition_reassignments": "moving replicas between brokers (KIP-455)",
    "list_partition_reassignments": "moving replicas between brokers (KIP-455)",
    "elect_leaders": "electing leaders (KIP-460)",
    "describe_metadata_quorum": "the KRaft quorum (KIP-836)",
    "list_config_resources": "listing config resources (KIP-1142)",
    "create_acls": "ACLs (KIP-140)",
    "describe_acls": "ACLs (KIP-140)",
    "delete_acls": "ACLs (KIP-140)",
    "describe_client_quotas": "quotas (KIP-546)",
    "alter_client_quotas": "quotas (KIP-546)",
    "describe_user_scram_credentials": "SCRAM users (KIP-554)",
    "alter_user_scram_credentials": "SCRAM users (KIP-554)",
    "create_delegation_token": "delegation tokens (KIP-48)",
    "describe_share_groups": "share groups (KIP-932)",
}
"""Calls of Kafka's Admin that this Admin lacks -> their subject."""

OTHER_NAMES = {
    "alter_consumer_group_offsets": "set_offsets",
    "list_consumer_group_offsets": "committed",
    "list_offsets": "offsets",
}
"""Calls of Kafka's Admin -> their names here, if the names are not similar."""


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


class AdminBase:
    """What both admin clients share. A method that Admin lacks raises an AttributeError with a suggestion."""

    cluster: ClusterClient

    def metrics(self) -> ClientMetrics:
        """Return what this client counts: requests, bytes, latencies and connections.

        Sends no request. Any thread may call this, also after `close`.
        """
        return self.cluster.metrics()

    if not TYPE_CHECKING:  # a type checker reports a mistyped name without this

        def __getattr__(self, name: str) -> NoReturn:
            if name in NOT_YET:
                raise AttributeError(
                    f"Admin does not support {name} yet ({NOT_YET[name]}); use Apache Kafka's tools with a cluster "
                    "that supports it"
                )
            known = [each for each in vars(type(self)) if not each.startswith("_")]
            near = get_close_matches(OTHER_NAMES.get(name, name), known, n=1)
            raise AttributeError(f"Admin has no {name}" + (f"; did you mean {near[0]}?" if near else ""))
