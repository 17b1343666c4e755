"""What handlers use of a broker. Each handler gets only what its `bind` function takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.coordinators.partition_markers import PartitionMarkers
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.membership import Membership
from oncelog.broker.metadata.acls import AclAdministration
from oncelog.broker.metadata.controller import Controller
from oncelog.broker.metadata.delegation_tokens import TokenAdministration
from oncelog.broker.metadata.quotas import QuotaAdministration
from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.quotas.metering import Metering
from oncelog.broker.requests.fetch_sessions import FetchSessions
from oncelog.broker.requests.nodes import Nodes
from oncelog.broker.requests.operations import Authorizer
from oncelog.broker.requests.readers import Sessions
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.telemetry.telemetry import Telemetry
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.net.unsent import Unsent

Handler = Callable[[Any, Any], Any]
"""`handler(request, context)` returns the response, an awaitable of it, a `Deferred`, or None for no response."""


@dataclass(frozen=True, slots=True)
class HandlerServices:
    """All services that handlers may use."""

    membership: Membership
    nodes: Nodes
    controller: Controller
    authorizer: Authorizer
    config: DynamicConfig
    cache: MetadataCache
    topics: TopicAdministration
    settings: SettingsAdministration
    acls: AclAdministration
    quotas: QuotaAdministration
    metering: Metering
    telemetry: Telemetry
    tokens: TokenAdministration
    partitions: Partitions
    directories: LogDirectories
    new_logs: NewLogs
    groups: GroupService
    transactions: TransactionService
    markers: PartitionMarkers
    fetch_sessions: FetchSessions
    unsent: Unsent
    """The memory of responses that clients have not read yet."""
    sessions: Sessions
    """Yields the open connections."""
    runtime: Runtime
