"""Assemble one broker from its parts: metadata, storage, coordinators, and the server.

This module only creates the parts and connects them. The caller passes the disk, metadata store, clock, random numbers
and way to run blocking code, so that the simulation runs the same class.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.coordinators.groups import GroupService, group_shell
from oncelog.broker.coordinators.partition_markers import PartitionMarkers
from oncelog.broker.coordinators.producer_ids import ProducerIdBlocks
from oncelog.broker.coordinators.terms import Terms
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.membership import Membership
from oncelog.broker.metadata.cluster_entry import ClusterEntry
from oncelog.broker.metadata.controller import Controller, led_elsewhere
from oncelog.broker.metadata.loader import SHARED_POLL_S, MetadataLoader
from oncelog.broker.metadata.registration import Identity, Registration
from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.peers import Peers
from oncelog.broker.replication.fetchers import Replication
from oncelog.broker.replication.in_sync import InSyncReplicas
from oncelog.broker.replication.start_offsets import StartOffsets
from oncelog.broker.requests.dispatch import Dispatcher, describe_request, import_record_handlers
from oncelog.broker.requests.fetch_sessions import FetchSessions
from oncelog.broker.requests.nodes import DepartedBrokers, Nodes
from oncelog.broker.requests.operations import ALLOW_EVERYTHING
from oncelog.broker.requests.parts import Parts
from oncelog.broker.storage.clean_mark import at_stop
from oncelog.broker.storage.disk_failures import DiskFailures
from oncelog.broker.storage.housekeeping import Housekeeping
from oncelog.broker.storage.log_cleaner import LogCleaner
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.retention import Retention
from oncelog.broker.turns import ITEMS_A_TURN
from oncelog.broker.workers import Offload, Runtime, Workers
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import MetadataStore, StoreError
from oncelog.log.disk import Disk
from oncelog.net.pieces import needs_join
from oncelog.net.server import Handler, Limits, Listener, Server
from oncelog.net.stalls import StallWatch
from oncelog.net.unsent import Unsent

HANDOVER_POLLS = 100
"""How often a broker that stops looks whether others lead its partitions: for 5 s."""


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
    ) -> None:
        """Create a broker that is not yet started.

        `metadata_dir` is the log directory that holds the tree, if any. If that directory fails, the broker stops.
        `most_clients` bounds `max.connections`, so that a connection cannot take the last file descriptor from a log.
        `boot_id` differs after each start of the machine, and is empty if it is unknown. `now_ms` returns the
        wall-clock time. `offload(fn, *args)` runs blocking code in another thread. `offload_renewal` does the same for
        the renewals of the session, which should not wait for a thread that other work blocks.
        """
        self.node_id = config.node_id
        self.disk = disk
        self.now_ms = now_ms
        self.log = logger or logging.getLogger("oncelog.broker")
        self.failed: asyncio.Future[str]
        """Done when the broker cannot continue. The result is the reason, and the caller must stop the broker."""
        self.store = store
        self._rng = rng or random.SystemRandom()
        self._most_clients = most_clients
        self._listeners = {listener.name: listener for listener in config.client_listeners}
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
        self._make_server(config)
        self._make_replication()
        self._make_upkeep(metadata_dir)
        for subscriber in (
            self._settings_changed,
            self.registration.metadata_changed,
            self.peers.metadata_changed,
            self.departed.metadata_changed,
            self.partitions.metadata_changed,
            self.transactions.metadata_changed,
            self.groups.metadata_changed,
            self.controller.metadata_changed,
        ):
            self.loader.subscribe(subscriber)
        self._subscribe()

    def _make_metadata(self, config: BrokerConfig, boot_id: str) -> None:
        runtime = self._runtime
        identity = Identity(
            config.broker_rack or None,
            config.broker_session_timeout_ms,
            config.broker_heartbeat_interval_ms,
            boot_id,
        )
        self.loader = MetadataLoader(self.store, self.metadata, self.workers, self.log)
        self.registration = Registration(
            self.store, identity, self.directories, self.partitions, self.loader.publishing, runtime
        )
        self.entry = ClusterEntry(self.store, self.membership, self.directories, config, self.disk, runtime)
        self.controller = Controller(self.store, self.metadata, self.loader, self.membership, self.config, runtime)
        self.topics = TopicAdministration(self.store, self.loader, self.metadata, self.config, runtime)
        self.settings = SettingsAdministration(
            self.loader, self.metadata, self.config, self.workers, node_id=self.node_id, logger=self.log
        )

    def _make_storage(self, config: BrokerConfig) -> None:
        self.directories = LogDirectories(self.disk, config.log_dirs, self.node_id, self.log)
        self.partitions = Partitions(self.metadata, self.config, self.directories, self.membership, self._runtime)
        self.checkpoints = self.partitions.checkpoints
        self.new_logs = NewLogs(self.directories, self.partitions.unlinker, self.workers, self.now_ms)

    def _make_upkeep(self, metadata_dir: str | None) -> None:
        self.disk_failures = DiskFailures(
            self.directories, self.partitions, metadata_dir, self.registration.update, self._runtime
        )
        retention = Retention(self.checkpoints, self._runtime)
        self.cleaner = LogCleaner(self.partitions, self.directories, retention, self.config, self._runtime)
        self.housekeeping = Housekeeping(
            self.partitions, self.directories, retention, self.registration.note_generations, self._runtime
        )

    def _make_coordinators(self, config: BrokerConfig) -> None:
        self.peers = Peers(
            self.metadata,
            self.workers,
            node_id=self.node_id,
            listener=config.inter_broker_listener_name or config.client_listeners[0].name,
            logger=self.log,
        )
        self.producer_ids = ProducerIdBlocks(self.store, self.node_id, self.workers, self.log)
        shell = group_shell(config, self.metadata, self.partitions, self._runtime)
        self.transactions = TransactionService(
            self.metadata,
            self.store,
            self.partitions,
            self.peers,
            PartitionMarkers(self.partitions, self.new_logs, shell, self.now_ms),
            self.producer_ids,
            config,
            self._runtime,
        )
        self.groups = GroupService(
            shell, self.config, self.metadata, self.store, self.partitions, self.transactions, self._runtime
        )
        self._terms: dict[str, Terms[Any]] = {
            shell.topic: shell.terms for shell in (self.groups.shell, self.transactions.shell)
        }

    def _make_server(self, config: BrokerConfig) -> None:
        limits = Limits(
            max_request_size=config.socket_request_max_bytes,
            idle_ms=config.connections_max_idle_ms,
            max_connections=min(config.max_connections, self._most_clients),
            backlog=config.socket_listen_backlog_size,
        )
        unsent = Unsent(config.queued_max_response_bytes, copies=needs_join(asyncio.get_running_loop()))
        self.departed = DepartedBrokers(config.broker_session_timeout_ms)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, lambda: self._rng.randrange(1, 2**31)
        )
        self.parts = Parts(
            membership=self.membership,
            nodes=Nodes(self.node_id, self.metadata, self.partitions, self.departed),
            controller=self.controller,
            authorizer=ALLOW_EVERYTHING,
            config=self.config,
            cache=self.metadata,
            topics=self.topics,
            settings=self.settings,
            partitions=self.partitions,
            directories=self.directories,
            new_logs=self.new_logs,
            groups=self.groups,
            transactions=self.transactions,
            fetch_sessions=self.fetch_sessions,
            unsent=unsent,
            workers=self.workers,
            now_ms=self.now_ms,
            logger=self.log,
        )
        handler: Handler = Dispatcher(self.parts)
        if self._stalls is not None:
            handler = self._stalls.handler(handler)
        self.server = Server(handler, limits, unsent)

    def _make_replication(self) -> None:
        starts = StartOffsets(self.checkpoints, self.directories, self.workers, self.log)
        self.replication = Replication(
            self.partitions, self.peers, self.config, starts, self.server.abort_all, self._runtime
        )
        self.in_sync = InSyncReplicas(self.store, self.partitions, self.config, self._runtime)

    def _subscribe(self) -> None:
        """Connect each event to what it causes in later parts, in this order."""
        incomplete, roles = self.partitions.incomplete, self.partitions.roles
        self.directories.failed.subscribe(self.disk_failures.report)
        incomplete.records_missing.subscribe(self.registration.records_missing)
        incomplete.changed.subscribe(self.registration.correct)
        self.registration.session_lost.subscribe(self.partitions.session_lost)
        roles.term_ended.subscribe(self._term_ended)
        roles.changed.subscribe(self.replication.role_changed, self._role_changed)
        roles.isr_change_due.subscribe(self.in_sync.check)
        self.replication.truncations.ended.subscribe(self._truncated)

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Return the port of the first listener, after `start`."""
        return self.server.port

    def endpoint(self, listener: str) -> Endpoint:
        """Return the address that the clients of a listener must use, after `start`."""
        found, bound = self._listeners[listener], self.server.listeners[listener]
        port = found.advertised_port or bound.port
        return Endpoint(found.advertised_host or bound.host, port, bound.protocol)

    async def start(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Read the metadata, open the log directories and accept requests. Coordinators load in the background.

        `prepare` runs when the other brokers know this one, and before it accepts requests.
        """
        self.failed = self.disk_failures.start()
        await self.workers.offload(self.registration.open)
        self.registration.start()
        await self.entry.enter()
        await self.workers.offload(self._load_metadata)
        lost = await self.workers.offload(self.entry.open_directories, self.metadata.image)
        self.loader.start()
        if self._stalls is not None:
            self._stalls.start()
        protected = self.config.static.inter_broker_listener_name
        await self.server.bind(
            [
                Listener(each.host, each.port, name, each.protocol, protected=name == protected)
                for name, each in self._listeners.items()
            ]
        )
        endpoints = {name: self.endpoint(name) for name in self._listeners}
        suspects = self.partitions.incomplete.suspects()
        await self.registration.register(endpoints, self.metadata.image, lost, starting=bool(suspects))
        await self.loader.catch_up()
        await self.controller.start()
        if prepare is not None:
            await prepare()
        await self.server.serve()
        self.in_sync.start()
        self.workers.spawn(self._warm_up(suspects), "open logs")
        self.housekeeping.start(self.config.current)
        if self.config.current.log_cleaner_enable:
            self.workers.spawn(self.cleaner.run(), "log cleaner")

    async def stop(self, *, together: bool = False) -> None:
        """Hand over the partitions, answer the requests in progress, close all logs, and mark them as clean.

        `together`: all brokers stop. Then hand nothing over, and leave the ISRs as they are for the next start.
        """
        if together:
            self.controller.close()
            self.in_sync.close()
        elif self.config.current.controlled_shutdown_enable:
            await self._hand_over()
        await self.server.close()
        self.peers.close()
        await self.workers.close()
        await self.registration.close()
        self.loader.close()
        self.transactions.close()
        self.groups.shell.terms.close()
        clean = await self.partitions.close()
        written = await self.checkpoints.write()
        self.directories.end_generations(clean)
        await self.registration.note_failure()
        if self._stalls is not None:
            self._stalls.close()
        for directory in clean:
            if directory in written and directory.online:
                try:
                    opened = self.partitions.opened(directory)
                    directory.mark_clean(at_stop(directory.at_stop, opened, self.partitions.roles.hosts))
                except OSError as error:
                    self.log.error("cannot mark log directory %s as cleanly closed: %s", directory.path, error)

    async def _hand_over(self) -> None:
        """Ask the controller to let others lead, and wait until they do, for a limited time."""
        if not self.server.listeners or len(self.metadata.image.brokers) <= 1:
            return
        try:
            await self.registration.update(shutting_down=True)
            for _ in range(HANDOVER_POLLS):
                await self.loader.refresh()
                if not led_elsewhere(self.metadata.image, self.node_id):
                    break
                await asyncio.sleep(SHARED_POLL_S)
        except StoreError as error:
            self.log.error("cannot hand over the partitions of this broker: %r", error)

    def _load_metadata(self) -> None:
        """Read the metadata. Before anything changes, check that the log directories belong to it. Blocks."""
        self.entry.check_directories()
        self.loader.load()
        self._admit_settings()

    async def _warm_up(self, suspects: Sequence[tuple[str, int]]) -> None:
        """Open the logs that this broker may have to lead, and say that it may be elected.

        Then load the coordinators, because clients wait for them. Open all other logs at the end.
        """
        for first in range(0, len(suspects), ITEMS_A_TURN):
            turn = suspects[first : first + ITEMS_A_TURN]
            for topic, keys in groupby(turn, itemgetter(0)):
                await self.workers.offload(self.directories.prefetch, topic, [partition for _, partition in keys])
            await self.partitions.open_suspects(turn)
        await self.registration.opened()
        import_record_handlers()
        await self.transactions.load()
        await self.groups.shell.terms.load()
        for topic in tuple(self.metadata.image.topics()):
            for partition in range(topic.partition_count):
                if partition % ITEMS_A_TURN == 0:
                    some = range(partition, min(partition + ITEMS_A_TURN, topic.partition_count))
                    await self.workers.offload(self.directories.prefetch, topic.name, some)
                await self.partitions.open_all([(topic.name, partition)])

    # -- changes ----------------------------------------------------------------------------------------------------

    def _admit_settings(self) -> None:
        configs = self.metadata.image.broker_configs
        for name in self.config.replace_dynamic(of_all=configs.get(None, {}), own=configs.get(self.node_id, {})):
            self.log.error("ignoring a broker setting of the metadata, because its name or value is invalid: %s", name)
        most = min(self.config.current.max_connections, self._most_clients)
        self.server.limits = replace(self.server.limits, max_connections=most)

    def _settings_changed(self, delta: MetadataDelta) -> None:
        """Apply changed settings of brokers before other subscribers read them."""
        if delta.broker_configs_changed(self.node_id):
            self._admit_settings()

    def _term_ended(self, topic: str, partition: int) -> None:
        """Resign the coordinator of a partition that this broker no longer leads."""
        if topic in self._terms:
            self._terms[topic].resign(partition)

    def _role_changed(self, replica: Replica) -> None:
        if terms := self._terms.get(replica.topic):
            terms.role_changed(replica)

    def _truncated(self, replica: Replica) -> None:
        """Load the coordinator of a partition whose truncation has ended.

        Before that, this broker could not lead the partition.
        """
        if terms := self._terms.get(replica.topic):
            self.workers.spawn(terms.load_partition(replica.partition), "load a coordinator after a truncation")
