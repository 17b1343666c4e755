"""One broker, put together: metadata, partitions, coordinators, and the server in front of them.

It is given its disk, tree, clock, randomness and way to run blocking code, so that the simulation runs this very class.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.config.topics import effective, log_config
from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.metadata.administration import Administration
from oncelog.broker.metadata.deadline import Deadline
from oncelog.broker.metadata.import_kafka import Adoption, check_all_seen
from oncelog.broker.requests.apis import SUPPORTED_FEATURES, TRANSACTION_VERSION_FEATURE
from oncelog.broker.requests.dispatch import Dispatcher, describe_request
from oncelog.broker.requests.fetch_sessions import FetchSessions
from oncelog.broker.storage import housekeeping
from oncelog.broker.storage import log_dir_registry as known_directories
from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.flusher import Flusher
from oncelog.broker.storage.log_cleaner import LogCleaner
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Dropped, Partitions
from oncelog.broker.storage.unlinker import Unlinker
from oncelog.broker.turns import ITEMS_A_TURN, in_turns
from oncelog.cluster.features import Change, Features
from oncelog.cluster.metadata import INTERNAL_TOPICS, PartitionInfo, TopicInfo, Topics, assign
from oncelog.cluster.tree import Tree
from oncelog.log.disk import Disk
from oncelog.log.steps import at_once
from oncelog.net.server import Handler, Limits, Server, serve
from oncelog.net.stalls import StallWatch
from oncelog.net.unsent import Unsent
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import CONSUMER_OFFSETS

T = TypeVar("T")
Offload = Callable[..., Awaitable[Any]]
COMPUTING = 1
"""Worker threads that compute for requests at the same time."""


class Broker:
    """A broker; `start` binds its port, `stop` leaves a data directory that needs no recovery."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        tree: Tree,
        now_ms: Callable[[], int],
        offload: Offload = asyncio.to_thread,
        rng: random.Random | None = None,
        logger: logging.Logger | None = None,
        metadata_dir: str | None = None,
        most_clients: int = 2**31 - 1,
    ) -> None:
        """Make a broker that is not yet started.

        `metadata_dir` is the log directory that holds the tree, if any; the broker stops if that directory fails.
        `most_clients` bounds `max.connections`, so that a connection cannot take the last file descriptor from a log.
        `now_ms` returns the wall-clock time; `offload(fn, *args)` runs blocking code in another thread.
        """
        self.config = config
        """The settings of now: some change while the broker runs, and this attribute with them."""
        self.node_id = config.node_id
        self.now_ms = now_ms
        self.offload = offload
        self.rng = rng or random.SystemRandom()
        self.log = logger or logging.getLogger("oncelog.broker")
        self.loop: asyncio.AbstractEventLoop
        self.tree = tree
        self.cluster_id = ""
        self.metadata = Topics(tree)
        self.features = Features(tree, SUPPORTED_FEATURES)
        self.administration = Administration(self)
        self.directories = LogDirectories(disk, config.log_dirs, config.node_id, self.log, self._on_disk_failure)
        self.cleaner = LogCleaner(self)
        self.flusher = Flusher(self)
        self.new_logs = NewLogs(self)
        self.unlinker = Unlinker(self)
        self.checkpoints = Checkpoints(self)
        self.partitions: Partitions
        self._has_partitions = False
        self._computing = asyncio.Semaphore(COMPUTING)
        self.transactions: TransactionService
        self.groups: GroupService
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, lambda: self.rng.randrange(1, 2**31)
        )
        self.disk = disk
        self._metadata_dir = metadata_dir
        self._most_clients = most_clients
        self._server: Server | None = None
        self._stalls: StallWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._creating: dict[str, asyncio.Task[TopicInfo]] = {}
        self.failed: asyncio.Future[str]
        """Done, with the reason, when the broker cannot go on: it has to be stopped then."""

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port that the server is bound to."""
        assert self._server is not None
        return self._server.port

    @property
    def unsent(self) -> Unsent:
        """The memory of responses that clients have not read yet."""
        assert self._server is not None
        return self._server.unsent

    @property
    def advertised_host(self) -> str:
        """The host that clients are told."""
        return self.config.advertised_host or self.config.host

    @property
    def advertised_port(self) -> int:
        """The port that clients are told."""
        return self.config.advertised_port or self.port

    async def start(self) -> None:
        """Reads metadata, opens the data directory and accepts requests; coordinators load in the background."""
        self.loop = asyncio.get_running_loop()
        self.failed = self.loop.create_future()
        await self.offload(self._load_metadata)
        await self.offload(self._open_directories)
        self.directories.locate(self.metadata)
        self.partitions = Partitions(
            topics=self.metadata,
            node_id=self.node_id,
            directories=self.directories,
            log_config=lambda topic: log_config(self.config, topic.configs),
            min_insync_replicas=lambda topic: int(effective(self.config, topic.configs, "min.insync.replicas")),
            now_ms=self.now_ms,
            checkpoint=self.checkpoint,
            flush=self.flusher,
            unlink=self.unlinker.files,
            later=self.spawn,
            logger=self.log,
        )
        self.transactions = TransactionService(self)
        self.groups = GroupService(self)
        self.partitions.on_transaction_end = self.groups.transaction_completed
        self._has_partitions = True
        limits = Limits(
            max_request_size=self.config.socket_request_max_bytes,
            idle_ms=self.config.connections_max_idle_ms,
            max_connections=min(self.config.max_connections, self._most_clients),
            backlog=self.config.socket_listen_backlog_size,
            max_unsent_bytes=self.config.queued_max_response_bytes,
        )
        handler: Handler = Dispatcher(self)
        if self.config.loop_stall_log_ms:
            self._stalls = StallWatch(self.config.loop_stall_log_ms, describe_request)
            handler = self._stalls.handler(handler)
        self._server = await serve(handler, self.config.host, self.config.port, limits)
        for directory in self.directories.online:
            self.unlinker.folders(directory.disk, directory.deleted, 0)
        self.spawn(self._warm_up(), "load coordinators")
        housekeeping.start(self)
        if self.config.log_cleaner_enable:
            self.spawn(self.cleaner.run(), "log cleaner")

    async def stop(self) -> None:
        """Answers what is in progress, then closes every log cleanly."""
        if self._server is not None:
            await self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        for creation in self._creating.values():
            creation.cancel()
        await asyncio.gather(*self._tasks, *self._creating.values(), return_exceptions=True)
        self.transactions.close()
        self.groups.close()
        self.flusher.close()
        self.unlinker.close()
        clean = self.partitions.close()
        written = await self.checkpoints.write()
        if self._stalls is not None:
            self._stalls.close()
        for directory in clean:
            if directory in written and directory.online:
                try:
                    directory.mark_clean()
                except OSError as error:
                    self.log.error("cannot mark %s as closed: %s", directory.path, error)

    def spawn(self, work: Any, name: str) -> None:
        """Run a coroutine until it returns or the broker stops; log its failure."""
        if self._stalls is not None:
            work = self._stalls.timed(work, name)
        task: asyncio.Task[None] = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def compute(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that needs much processor time in a worker thread. Later calls wait for it in order.

        Each computing thread makes the event loop wait up to 5 ms for the interpreter, so the number of threads is
        small. Raises KAFKA_STORAGE_ERROR if there is not enough memory: clients retry, as after too many open files.
        """
        async with self._computing:
            try:
                result: T = await self.offload(work, *arguments)
            except MemoryError as error:
                self.log.error("not enough memory for a request: %s", error)
                code, message = ErrorCode.KAFKA_STORAGE_ERROR, f"the broker does not have enough memory: {error}"
            else:
                return result
        raise ProtocolError(code, message)  # without the other error, whose frames hold the request

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.error("%s failed", task.get_name(), exc_info=task.exception())

    def _load_metadata(self) -> None:
        self.metadata.prepare()
        features: Mapping[str, int] = {TRANSACTION_VERSION_FEATURE: self.config.initial_transaction_version}
        if self.metadata.is_new():
            features = Adoption(
                self.directories, self.metadata, self.tree, self.config, self._new_topic_id, self.log
            ).run()  # fmt: skip
        self.features.load(features)
        self.cluster_id = self.metadata.cluster_id(self.directories.cluster_id() or self._random_id())
        check_all_seen(self.directories, self.tree)
        self.metadata.load()
        self.administration.load()

    def _open_directories(self) -> None:
        gone = {self.disk.absolute(path) for path in self.config.lost_log_dirs}
        before = known_directories.read(self.tree, self.node_id)
        known = {key: path for key, path in before.items() if path not in gone}
        now = self.directories.open(self.cluster_id, self._new_topic_id, known)
        if now != before:
            known_directories.write(self.tree, self.node_id, now)

    async def _warm_up(self) -> None:
        """Load the coordinators first, because clients wait for them. Then open the other logs."""
        await self.transactions.load()
        await self.groups.load()
        for topic in tuple(self.metadata.topics()):
            for partition in range(topic.partition_count):
                if partition % ITEMS_A_TURN == 0:
                    some = range(partition, min(partition + ITEMS_A_TURN, topic.partition_count))
                    await self.offload(self.partitions.prefetch, topic.name, some)
                try:
                    await self.partitions.open_in_turns(topic.name, partition)
                except ProtocolError as error:  # one log that cannot be opened; its users are told each time
                    self.log.error("%s", error)
                await asyncio.sleep(0)

    def checkpoint(self) -> None:
        """Write the checkpoints at once, and sync them soon afterwards.

        A new log must not find the offsets of an older log of its name, even if the broker dies.
        """
        for directory in self.directories.online:
            try:
                directory.checkpoint_now(self.partitions.offsets(directory))
            except OSError as error:
                self.log.error("cannot write the checkpoints of %s: %s", directory.path, error)
        self.checkpoints.start()

    # -- failure of a disk ------------------------------------------------------------------------------------------

    def _on_disk_failure(self, directory: DataDirectory, error: OSError) -> None:
        """A log directory is offline; called in the middle of whatever failed, perhaps in a worker thread."""
        self.loop.call_soon_threadsafe(self._take_offline, directory, error)

    def _take_offline(self, directory: DataDirectory, error: OSError) -> None:
        """Its partitions have no leader from now on, its coordinators resign; with none left the broker has to end."""
        self.log.error("log directory %s has failed and is offline: %s", directory.path, error)
        if not self.failed.done():
            if not self.directories.online:
                paths = ", ".join(each.path for each in self.directories)
                self.failed.set_result(f"all log directories have failed: {paths}: {error}")
            elif directory.path == self._metadata_dir:
                self.failed.set_result(f"the log directory with the metadata has failed: {directory.path}: {error}")
        if not self._has_partitions:
            return
        for topic, partition in self.partitions.fail(directory):
            if topic in INTERNAL_TOPICS:
                self._service_of(topic).shell.resign(partition)

    async def update_features(self, changes: Sequence[Change], *, validate_only: bool) -> None:
        """Changes levels of features, all or none; INVALID_UPDATE_VERSION, REQUEST_TIMED_OUT."""
        levels, epoch = await self.offload(lambda: self.features.update(changes, validate_only=validate_only))
        if epoch > self.features.epoch:  # two that come at once may return in either order
            self.features.admit(levels, epoch)
            self.log.info("features are now %s, epoch %d", levels, epoch)
            self.transactions.features_changed()

    def limit_connections(self, most: int) -> None:
        """Limit the number of clients from now on. Existing connections stay open."""
        assert self._server is not None
        self._server.limits = replace(self._server.limits, max_connections=min(most, self._most_clients))

    # -- topics -----------------------------------------------------------------------------------------------------

    def broker_ids(self) -> list[int]:
        """The ids of all brokers that are up."""
        return [self.node_id]

    def assign(self, partitions: int, replication_factor: int, *, first: int = 0) -> list[tuple[int, ...]]:
        """Brokers for each new partition from number `first` on; INVALID_REPLICATION_FACTOR."""
        return assign(partitions, replication_factor, self.broker_ids(), first=first)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int = 1,
        configs: dict[str, str] | None = None,
        assignment: list[tuple[int, ...]] | None = None,
    ) -> TopicInfo:
        """Creates a topic whose name and configs were checked; TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR."""
        replicas = assignment or self.assign(partitions, replication_factor)
        infos = tuple(PartitionInfo(ids[0], 0, ids, ids) for ids in replicas)
        topic = TopicInfo(name, self._new_topic_id(), infos, configs or {})
        try:
            async with self.administration.changing:  # the partitions of a deleted topic of this name are dropped first
                await self.offload(self.metadata.write, topic)
                self.metadata.admit(topic)
        except ProtocolError:
            await self._catch_up(name)
            raise
        self.log.info("created topic %s with %d partitions", name, len(infos))
        if topic.internal:
            await self._service_of(name).load()
        return topic

    async def _catch_up(self, name: str) -> None:
        """Takes over a topic that is in the tree only: it was made, and nobody could tell us."""
        found = None if self.metadata.topic(name) else await self.offload(self.metadata.read, name)
        if found is not None and self.metadata.topic(name) is None:
            self.metadata.admit(found)
            if found.internal:
                await self._service_of(name).load()

    async def ensure_internal_topic(self, name: str) -> TopicInfo:
        """The coordinators' topic of that name, made now (with its coordinators) if it does not exist."""
        topic = self.metadata.topic(name)
        if topic is not None:
            return topic
        task = self._creating.get(name)
        if task is None:
            task = self._creating[name] = self.loop.create_task(self._create_internal_topic(name))
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _create_internal_topic(self, name: str) -> TopicInfo:
        service = self._service_of(name)
        segment_bytes = self.config.transaction_state_log_segment_bytes
        if service is self.groups:
            segment_bytes = self.config.offsets_topic_segment_bytes
        configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
        try:
            return await self.create_topic(name, partitions=service.partition_count, configs=configs)
        except ProtocolError:
            topic = self.metadata.topic(name)
            if topic is None:
                raise
            return topic  # a user was quicker

    def _service_of(self, internal_topic: str) -> GroupService | TransactionService:
        assert internal_topic in INTERNAL_TOPICS
        return self.groups if internal_topic == CONSUMER_OFFSETS else self.transactions

    async def delete_topic(self, topic: TopicInfo, deadline: Deadline | None = None) -> None:
        """Delete a topic and its data.

        Raises REQUEST_TIMED_OUT, and UNKNOWN_TOPIC_OR_PARTITION if another request has deleted it.
        """
        if topic.internal:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{topic.name} is the coordinators' own topic")
        async with self.administration.changing:
            if deadline is not None:
                deadline.check()
            topic = self.metadata.topic_by_id(topic.topic_id) or topic  # it may have grown meanwhile
            await self.offload(self.metadata.erase, topic)
            self.metadata.forget(topic)
            dropped = await self._drop(topic)
        if dropped.stale:
            self.checkpoint()  # a new topic of this name must neither begin nor count as compacted where this one did
        self.log.info("deleted topic %s", topic.name)
        for disk, folders in dropped.folders.items():
            self.unlinker.folders(disk, folders, self.config.log_segment_delete_delay_ms)
        await self.groups.topic_deleted(topic.name, topic.topic_id)

    async def _drop(self, topic: TopicInfo) -> Dropped:
        """Drop the partitions of a deleted topic in turns with other work.

        If the broker stops meanwhile, drop the rest at once: the next start would not know whose folders they are.
        """
        work = self.partitions.dropping(topic)
        try:
            return await in_turns(work)
        except asyncio.CancelledError:
            at_once(work)
            raise

    def _new_topic_id(self) -> UUID:
        topic_id = UUID(int=self.rng.getrandbits(128), version=4)
        return topic_id if topic_id.bytes[0] >> 2 != 62 else self._new_topic_id()  # no leading '-' as text

    def _random_id(self) -> str:
        return base64.urlsafe_b64encode(self._new_topic_id().bytes).rstrip(b"=").decode()
