"""Assemble one broker from its parts: metadata, storage, coordinators, and the server.

This module only creates the parts and connects them. The caller passes the disk, metadata store, clock, random numbers
and way to run blocking code, so that the simulation runs the same class.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.certificates import Certificates
from oncelog.broker.config.authorizers import parse_super_users
from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.coordinators.coordinators import Coordinators
from oncelog.broker.coordinators.deleted_topics import DeletedTopics
from oncelog.broker.coordinators.group_shell import group_shell
from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.coordinators.markers import MarkerWriter
from oncelog.broker.coordinators.partition_markers import PartitionMarkers
from oncelog.broker.coordinators.producer_ids import ProducerIdBlocks
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.lifecycle import Lifecycle
from oncelog.broker.logins import find_scram
from oncelog.broker.membership import Membership
from oncelog.broker.metadata.acls import AclAdministration
from oncelog.broker.metadata.cluster_entry import ClusterEntry
from oncelog.broker.metadata.cluster_member import ClusterMember
from oncelog.broker.metadata.controller import Controller
from oncelog.broker.metadata.delegation_tokens import TokenAdministration
from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.metadata.quotas import QuotaAdministration
from oncelog.broker.metadata.registration import Identity, Registration
from oncelog.broker.metadata.settings import BrokerSettings, SettingsAdministration
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.network import Network
from oncelog.broker.peers import Peers
from oncelog.broker.quotas.client_quotas import ClientQuotas
from oncelog.broker.quotas.metering import Metering
from oncelog.broker.quotas.rates import Windows
from oncelog.broker.replication.fetchers import Replication
from oncelog.broker.replication.in_sync import InSyncReplicas
from oncelog.broker.replication.start_offsets import StartOffsets
from oncelog.broker.requests.authorizer import StandardAuthorizer
from oncelog.broker.requests.dispatch import Dispatcher, describe_request
from oncelog.broker.requests.fetch_sessions import FetchSessions
from oncelog.broker.requests.nodes import DepartedBrokers, Nodes
from oncelog.broker.requests.operations import ALLOW_EVERYTHING, Authorizer
from oncelog.broker.requests.request_times import RequestTimes
from oncelog.broker.requests.services import HandlerServices
from oncelog.broker.storage.all_logs import AllLogs
from oncelog.broker.storage.disk_failures import DiskFailures
from oncelog.broker.storage.housekeeping import Housekeeping
from oncelog.broker.storage.log_cleaner import LogCleaner
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.retention import Retention
from oncelog.broker.telemetry.exported import ExportedMetrics
from oncelog.broker.telemetry.telemetry import Telemetry
from oncelog.broker.workers import Offload, Runtime, Workers
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.store import MetadataStore
from oncelog.coordinator.groups.registry import GroupStatistics
from oncelog.log.disk import Disk
from oncelog.net.pieces import needs_join
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.net.server import Handler, Limits, Server
from oncelog.net.session import Session
from oncelog.net.stalls import StallWatch
from oncelog.net.unsent import Unsent

if TYPE_CHECKING:
    from oncelog.broker.metrics.collect import Collector
    from oncelog.broker.metrics.endpoint import MetricsEndpoint
    from oncelog.broker.metrics.health import Health


class Broker:
    """A broker. `start` binds its ports. `stop` closes the logs, so that the next start recovers none."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        store: MetadataStore,
        now_ms: Callable[[], int],
        offload: Offload = asyncio.to_thread,
        offload_renewal: Offload | None = None,
        rng: random.Random | None = None,
        logger: logging.Logger | None = None,
        metadata_dir: str | None = None,
        most_clients: int = 2**31 - 1,
        boot_id: str = "",
        busy: Callable[[], float] | None = None,
    ) -> None:
        """Create a broker that is not yet started. Needs a running event loop.

        `metadata_dir` is the log directory that holds the tree, if any. If that directory fails, the broker stops.
        `most_clients` bounds `max.connections`, so that a connection cannot take the last file descriptor from a log.
        `boot_id` differs after each start of the machine, and is empty if it is unknown. `now_ms` returns the
        wall-clock time. `offload(fn, *args)` runs blocking code in another thread. `offload_renewal` does the same for
        the renewals of the session, which should not wait for a thread that other work blocks. `busy` is a clock in
        seconds that measures the work on a request; the event loop's clock, if it is None.
        """
        self.node_id = config.node_id
        self.disk = disk
        self.now_ms = now_ms
        self.log = logger or logging.getLogger("oncelog.broker")
        self.failed: asyncio.Future[str]
        """Done when the broker cannot continue. The result is the reason, and the caller must stop the broker."""
        self.store = store
        self.metrics: MetricsEndpoint | None = None
        """The server of the metrics, from the start on, if `metrics.port` is set."""
        self._busy = busy
        self._rng = rng or random.SystemRandom()
        stall_ms = config.loop_stall_log_ms
        self._stalls = StallWatch(stall_ms, describe_request) if stall_ms else None
        timed = self._stalls.timed if self._stalls is not None else None

        self.config = DynamicConfig(config)
        self.workers = Workers(offload, self.log, offload_renewal=offload_renewal, timed=timed)
        self._runtime = Runtime(self.workers, now_ms, self._rng.getrandbits, self.log)
        self.metadata = MetadataCache()
        self.membership = Membership(config.node_id)
        self._make_storage(config)
        self._make_metadata(config, boot_id)
        self._make_coordinators(config)
        self._make_server(config, most_clients)
        self._make_replication()
        self._make_upkeep(metadata_dir)
        self._subscribe()
        self._lifecycle = Lifecycle(
            self._member, self._network, self._logs, self._coordinators, self.in_sync, self.workers
        )

    def _make_metadata(self, config: BrokerConfig, boot_id: str) -> None:
        runtime = self._runtime
        identity = Identity(
            config.broker_rack or None,
            config.broker_session_timeout_ms,
            config.broker_heartbeat_interval_ms,
            boot_id,
        )
        self.loader = MetadataLoader(self.store, self.metadata, runtime)
        self.registration = Registration(
            self.store,
            identity,
            self.directories,
            self.partitions,
            self.loader.publishing,
            self.membership,
            runtime,
        )
        self.entry = ClusterEntry(self.store, self.membership, self.directories, config, self.disk, runtime)
        self.controller = Controller(self.store, self.metadata, self.loader, self.membership, self.config, runtime)
        self._broker_settings = BrokerSettings(self.config, self.metadata, self.log)
        self.tokens = TokenAdministration(self.loader, self.metadata, self.config, runtime)
        self._member = ClusterMember(
            self.registration, self.entry, self.loader, self._broker_settings, self.controller, self.tokens, runtime
        )
        self.topics = TopicAdministration(self.store, self.loader, self.metadata, self.config, runtime)
        self.certificates = Certificates(self.config, self.log)
        self.settings = SettingsAdministration(
            self.loader, self.metadata, self.config, self.certificates.check, runtime
        )

    def _make_storage(self, config: BrokerConfig) -> None:
        self.directories = LogDirectories(self.disk, config.log_dirs, self.node_id, self.log)
        self.partitions = Partitions(self.metadata, self.config, self.directories, self.membership, self._runtime)
        self.checkpoints = self.partitions.checkpoints
        self.new_logs = NewLogs(self.directories, self.partitions.unlinker, self._runtime)

    def _make_upkeep(self, metadata_dir: str | None) -> None:
        self.disk_failures = DiskFailures(
            self.directories, self.partitions, metadata_dir, self.registration.update, self._runtime
        )
        retention = Retention(self.checkpoints, self._runtime)
        self.cleaner = LogCleaner(self.partitions, self.directories, retention, self.config, self._runtime)
        note_generations = self.registration.note_generations
        housekeeping = Housekeeping(
            self.partitions, self.directories, retention, note_generations, self.config.static, self._runtime
        )
        self._logs = AllLogs(self.directories, self.partitions, housekeeping, self.cleaner, self._runtime)

    def _make_coordinators(self, config: BrokerConfig) -> None:
        certificates = self.certificates
        self.peers = Peers(self.metadata, self.node_id, certificates.of_brokers.name, certificates.peers, self._runtime)
        self.producer_ids = ProducerIdBlocks(self.store, self.node_id, self._runtime)
        self._group_statistics = GroupStatistics()
        shell = group_shell(self.config, self.metadata, self.partitions, self._runtime, self._group_statistics)
        self._markers = PartitionMarkers(self.partitions, self.new_logs, shell, self.now_ms)
        self.transactions = TransactionService(
            self.metadata, self.partitions, self.peers, self.producer_ids, config, self._runtime
        )
        self._marker_writer = MarkerWriter(
            self.transactions.shell, self.metadata, self.store, self._markers, self.peers, self._runtime
        )
        deleted_topics = DeletedTopics(shell, self.metadata, self.store, self._runtime)
        self.groups = GroupService(
            shell, self.config, self.metadata, self.partitions, self.transactions, deleted_topics, self.workers
        )
        self._coordinators = Coordinators(self.transactions, self.groups, self._marker_writer, self.workers)

    def _make_server(self, config: BrokerConfig, most_clients: int) -> None:
        limits = Limits(
            max_request_size=config.socket_request_max_bytes,
            idle_ms=config.connections_max_idle_ms,
            backlog=config.socket_listen_backlog_size,
        )
        unsent = Unsent(config.queued_max_response_bytes, copies=needs_join(asyncio.get_running_loop()))
        self.departed = DepartedBrokers(config.broker_session_timeout_ms)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, lambda: self._rng.randrange(1, 2**31)
        )
        self.services = HandlerServices(
            membership=self.membership,
            nodes=Nodes(self.node_id, self.metadata, self.partitions, self.departed),
            controller=self.controller,
            authorizer=self._authorizer(config),
            config=self.config,
            cache=self.metadata,
            topics=self.topics,
            settings=self.settings,
            acls=AclAdministration(self.loader, self.metadata, self._runtime),
            quotas=QuotaAdministration(self.loader, self.metadata, self._runtime),
            metering=self._metering(config),
            telemetry=self._telemetry(config),
            tokens=self.tokens,
            partitions=self.partitions,
            directories=self.directories,
            new_logs=self.new_logs,
            groups=self.groups,
            transactions=self.transactions,
            markers=self._markers,
            fetch_sessions=self.fetch_sessions,
            unsent=unsent,
            sessions=self._sessions,
            runtime=self._runtime,
        )
        self.times = RequestTimes()
        handler: Handler = Dispatcher(self.services, self.times)
        if self._stalls is not None:
            handler = self._stalls.handler(handler)
        self.server = Server(handler, limits, unsent)
        self._network = Network(
            self.server,
            self.peers,
            self.certificates,
            self.config,
            self.membership,
            partial(find_scram, self.metadata),
            self.tokens.login,
            self._runtime,
            most_clients,
        )

    def _sessions(self) -> Iterator[Session]:
        """Yield the open connections."""
        return (connection.session for connection in tuple(self.server.connections))

    def _make_collector(self) -> Collector:
        """Create what reads the metrics. Its modules are imported only if it is wanted."""
        from oncelog.broker.metrics.collect import Collector
        from oncelog.broker.metrics.coordinators import CoordinatorLines
        from oncelog.broker.metrics.loop_watch import LoopWatch
        from oncelog.broker.metrics.process import Process

        process, clock, loop_time = Process(), self.services.metering.busy, asyncio.get_running_loop().time
        return Collector(
            membership=self.membership,
            cache=self.metadata,
            config=self.config,
            partitions=self.partitions,
            directories=self.directories,
            coordinators=CoordinatorLines(
                self.groups, self.transactions, self._group_statistics, self.now_ms, loop_time
            ),
            in_sync=self.in_sync,
            controller=self.controller,
            server=self.server,
            times=self.times,
            telemetry=self.services.telemetry,
            watch=LoopWatch(clock, process.thread_cpu_s),
            process=process,
            clock=clock,
            loop_time=loop_time,
            now_ms=self.now_ms,
        )

    def _make_metrics(self) -> MetricsEndpoint:
        """Create the server of the metrics."""
        from oncelog.broker.metrics.endpoint import MetricsEndpoint
        from oncelog.broker.metrics.lag import Lags
        from oncelog.broker.metrics.on_demand import Questions
        from oncelog.broker.metrics.partition_ends import PartitionEnds
        from oncelog.broker.metrics.sinks import Sinks

        ends = PartitionEnds(self.metadata, self.partitions, self.membership, self.peers, self._sessions)
        lags = Lags(self.groups, self.metadata, ends, self._sessions)
        questions = Questions(lags, Sinks(self.metadata, self.partitions))
        return MetricsEndpoint(self._make_collector(), questions, self.health(), self.log)

    def health(self) -> Health:
        """Return what knows whether the broker is ready for clients."""
        from oncelog.broker.metrics.health import Health

        return Health(self.membership, self.metadata, self.partitions, self._coordinators)

    def counters(self) -> Counter[str]:
        """Return what this broker has counted, by the names of the metrics (`metrics.totals`)."""
        from oncelog.broker.metrics.totals import totals

        return totals(self._make_collector())

    def _telemetry(self, config: BrokerConfig) -> Telemetry:
        exported = ExportedMetrics() if config.metrics_port >= 0 else None
        now = asyncio.get_running_loop().time
        return Telemetry(self.metadata, config.telemetry_max_bytes, now, self._runtime, exported)

    def _metering(self, config: BrokerConfig) -> Metering:
        windows = Windows(config.quota_window_num, config.quota_window_size_seconds)
        mutations = Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds)
        now = asyncio.get_running_loop().time
        return Metering(ClientQuotas(self.metadata, windows, mutations, now), self._busy or now)

    def _authorizer(self, config: BrokerConfig) -> Authorizer:
        if not config.authorizer_class_name:
            return ALLOW_EVERYTHING
        lines = RepeatedLines(self.log, "requests")
        return StandardAuthorizer(
            self.metadata,
            lines,
            parse_super_users(config.super_users),
            allow_without_acls=config.allow_everyone_if_no_acl_found,
        )

    def _make_replication(self) -> None:
        starts = StartOffsets(self.checkpoints, self.directories, self._runtime)
        self.replication = Replication(
            self.partitions, self.peers, self.config, starts, self.server.abort_all, self._runtime
        )
        self.in_sync = InSyncReplicas(self.store, self.partitions, self.membership, self.config, self._runtime)

    def _subscribe(self) -> None:
        """Connect each event to what it causes in later parts, in this order."""
        for part in (
            self._broker_settings,
            self._network,
            self.registration,
            self.peers,
            self.departed,
            self.partitions,
            self.transactions,
            self.groups,
            self.controller,
        ):
            self.loader.subscribe(part.metadata_changed)
        incomplete, roles = self.partitions.incomplete, self.partitions.roles
        self.directories.failed.subscribe(self.disk_failures.report)
        incomplete.records_missing.subscribe(self.registration.records_missing)
        incomplete.changed.subscribe(self.registration.correct)
        self.registration.session_lost.subscribe(self.partitions.session_lost)
        roles.term_ended.subscribe(self._coordinators.term_ended)
        roles.changed.subscribe(self.replication.role_changed, self._coordinators.role_changed)
        roles.isr_change_due.subscribe(self.in_sync.check)
        self.transactions.shell.markers_due.subscribe(self._marker_writer.write)
        self.replication.truncations.ended.subscribe(self._coordinators.on_truncation_ended)

    @property
    def port(self) -> int:
        """Return the port of the first listener, after `start`."""
        return self.server.port

    def endpoint(self, listener: str) -> Endpoint:
        """Return the address that the clients of a listener must use, after `start`."""
        return self._network.endpoint(listener)

    async def start(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Read the metadata, open the log directories and accept requests. Coordinators load in the background.

        `prepare` runs when the other brokers know this one, and before it accepts requests.
        """
        self.failed = self.disk_failures.start()
        if self._stalls is not None:
            self._stalls.start()
        config = self.config.static
        if config.metrics_port >= 0:
            self.metrics = self._make_metrics()
            await self.metrics.start(config.metrics_host, config.metrics_port)
        await self._lifecycle.start(prepare)

    async def stop(self, *, together: bool = False) -> None:
        """Hand over the partitions, answer the requests in progress, close all logs, and mark them as clean.

        `together`: all brokers stop. Then hand nothing over, and leave the ISRs as they are for the next start.
        """
        await self._lifecycle.stop(together=together)
        if self.metrics is not None:
            await self.metrics.close()
        if self._stalls is not None:
            self._stalls.close()
