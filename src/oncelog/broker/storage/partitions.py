"""Open, find, delete and close the partitions of this broker.

A partition's log is opened at its first use, so that the start time does not grow with the number of partitions. The
broker opens the other logs in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.topics import log_config
from oncelog.broker.membership import Membership
from oncelog.broker.storage.checkpoints import Checkpoints, Written
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.deletions import Deletion, Deletions
from oncelog.broker.storage.flusher import Flusher, close_logs
from oncelog.broker.storage.incomplete_logs import IncompleteLogs
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.log_offsets import LogOffsetReader
from oncelog.broker.storage.log_opener import LogOpener
from oncelog.broker.storage.roles import Roles
from oncelog.broker.storage.unlinker import Unlinker
from oncelog.broker.turns import Yielder, in_turns
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.replica import Replica
from oncelog.cluster.topic_traffic import Traffic
from oncelog.cluster.topics import TopicInfo
from oncelog.log.recovery import LostRecordsError
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition

STEPS_AT_ONCE = 4
"""The recovery steps that the first request for a log waits for, about 20 ms."""
STEPS_A_TURN = 6
"""The recovery steps of all logs that requests wait for in one turn of the event loop. Later requests must retry."""


class Partitions:
    """The partitions of this broker."""

    def __init__(
        self,
        cache: MetadataCache,
        config: DynamicConfig,
        directories: LogDirectories,
        membership: Membership,
        runtime: Runtime,
    ) -> None:
        logger = runtime.logger
        self._cache = cache
        self._config = config
        self._directories = directories
        self.flusher, self.unlinker = Flusher(directories, runtime), Unlinker(runtime)
        self.traffic = Traffic()
        self._opener = LogOpener(cache, config, directories, self.flusher, self.unlinker, self.traffic, runtime)
        self._workers = runtime.workers
        self._node_id = membership.node_id
        self.roles = Roles(cache, config, membership)
        self._now_ms = runtime.now_ms
        self._logger = logger
        self._replicas: dict[TopicPartition, Replica] = {}
        offsets = LogOffsetReader(directories, self._replicas, self.roles)
        self.checkpoints = Checkpoints(directories, offsets.all, offsets.high_watermarks, runtime)
        self._deletions = Deletions(self._replicas, directories, logger)
        self._opening: dict[TopicPartition, Steps[Replica]] = {}
        """The remaining steps of the logs whose opening is in progress."""
        self._lowering_of: dict[TopicPartition, asyncio.Task[Written]] = {}
        """The writes of checkpoints that logs in `_opening` wait for."""
        self._steps_left = STEPS_A_TURN
        """The recovery steps that requests may still wait for in this turn of the event loop."""
        self._stepping = asyncio.Lock()
        """Held during a background step, so that all recoveries together run one step in a turn."""
        self.incomplete = IncompleteLogs(cache, directories, membership.node_id, logger)

    def __len__(self) -> int:
        return len(self._replicas)

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this broker leads the partition. An offline partition has no leader."""
        replica = self._replicas.get((topic, partition))
        if replica is not None:
            return replica.term is not None
        return self.roles.leads(topic, partition) and not self.is_offline(topic, partition)

    def _must_open(self, key: TopicPartition) -> bool:
        """Return whether this broker has a replica of the partition whose log is not open, but can be opened."""
        unopened = key not in self._opening and key not in self._replicas
        return unopened and self.roles.hosts(*key) and not self.is_offline(*key)

    def is_offline(self, topic: str, partition: int) -> bool:
        """Return whether the log lacks records, or is, or may be, in a log directory that has failed."""
        return (topic, partition) in self.incomplete.keys or self._directories.is_offline(topic, partition)

    def offline(self) -> frozenset[TopicPartition]:
        """Return the offline partitions that another broker could lead."""
        if all(directory.online for directory in self._directories):
            return frozenset()
        is_offline = self._directories.is_offline
        return frozenset(key for key in self._cache.image.replicated(self._node_id) if is_offline(*key))

    def get(self, topic: str, partition: int) -> Replica | None:
        """Return the replica, or None if this broker does not lead the partition. Open the log if necessary.

        If the log takes long to open, raises NOT_LEADER_OR_FOLLOWER, so that clients retry. The broker opens the log
        in the background. Raises the same error if other logs have used up `STEPS_A_TURN`. Raises
        KAFKA_STORAGE_ERROR.
        """
        key = topic, partition
        replica = self._replicas.get(key)
        if replica is not None:
            return replica if replica.term is not None else None
        if not self.leads(topic, partition):
            return None
        if key not in self._opening and self._steps_left:
            self._opening[key] = self._open(topic, partition)
            for _ in range(min(STEPS_AT_ONCE, self._steps_left)):
                replica = self._advance(key)
                if replica is not None:
                    return replica if replica.term is not None else None
                self._take_step()
            self._workers.spawn(self.open_in_turns(topic, partition), f"recovery of {topic}-{partition}")
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the broker is still recovering {topic}-{partition}")

    def _take_step(self) -> None:
        if self._steps_left == STEPS_A_TURN:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._steps_left -= 1

    def _begin_turn(self) -> None:
        self._steps_left = STEPS_A_TURN

    async def open_in_turns(self, topic: str, partition: int) -> None:
        """Open and recover a log step by step, unless it is open. Raises KAFKA_STORAGE_ERROR.

        The event loop runs other work between two steps.
        """
        key = topic, partition
        if self._must_open(key):
            self._opening[key] = self._open(topic, partition)
        while key in self._opening:
            async with self._stepping:
                if key not in self._opening or self._advance(key) is not None:
                    return
                await asyncio.sleep(0)
            if (writing := self._lowering_of.get(key)) is not None:
                await asyncio.wait([writing])

    def _advance(self, key: TopicPartition) -> Replica | None:
        """Run one step of opening a log. Return its replica after the last step, else None."""
        work = self._opening[key]
        try:
            next(work)
        except StopIteration as done:
            del self._opening[key]
            replica: Replica = done.value
            return replica
        except BaseException:
            del self._opening[key]
            raise
        return None

    def require(self, topic: str, partition: int) -> Replica:
        """Return the replica of a partition. Open its log if necessary.

        Raises UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist. Raises NOT_LEADER_OR_FOLLOWER if another
        broker leads it, or if opening takes long (see `get`). Raises KAFKA_STORAGE_ERROR.
        """
        replica = self.get(topic, partition)
        if replica is not None:
            return replica
        if (topic, partition) not in self._replicas and self.roles.leads(topic, partition):
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline on this broker")
        if self._cache.image.partition(topic, partition) is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} does not exist")
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {topic}-{partition}")

    def require_any(self, topic: str, partition: int) -> Replica:
        """Return the replica of a partition, also if it follows and its log is open. Raises the errors of `require`."""
        replica = self._replicas.get((topic, partition))
        if replica is None or (replica.term is None and self.leads(topic, partition)):
            return self.require(topic, partition)
        return replica

    def opened_replica(self, topic: str, partition: int) -> Replica | None:
        """Return the replica of a partition, whether it leads or not, or None if its log is not open."""
        return self._replicas.get((topic, partition))

    def opened(self, directory: DataDirectory | None = None) -> Iterator[Replica]:
        """Yield each replica whose log is open, or only those in one directory."""
        for key, replica in self._replicas.items():
            if directory is None or self._directories.find(*key) is directory:
                yield replica

    def _open(self, topic: str, partition: int) -> Steps[Replica]:
        key = topic, partition
        self._deletions.complete(key)
        try:
            replica, forgotten = yield from self._opener.open(topic, partition, self.roles.holes(*key))
        except LostRecordsError as error:
            self.incomplete.refused(key, error)
            raise
        self.incomplete.check(replica)
        lowered = yield from self._lowering(replica)
        self._replicas[key] = replica
        info = self._cache.image.topic(topic)
        if lowered and info is not None:  # settings may have changed in a pause
            self._reconfigure(info)
        self.forget_cleaned(replica)  # recovery may have dropped compacted records
        self.roles.apply(replica)
        if forgotten or self._deletions.is_stale(topic):  # the new log must not get the offsets of the old one
            self.checkpoints.write_now()
            self._deletions.checkpointed()
        return replica

    def _lowering(self, replica: Replica) -> Steps[bool]:
        """If recovery has dropped records, pause until the checkpoints no longer count them as synced or committed.

        Otherwise, after a second crash, recovery would skip records that were appended in their place, or show them to
        consumers before they are committed. Return whether that was necessary. Raises KAFKA_STORAGE_ERROR.
        """
        log, key = replica.log, (replica.topic, replica.partition)
        directory = self._directories.holding(log.directory)
        if not directory.lower(log.topic, log.partition, log.recovery_point, log.log_end_offset):
            return False
        try:
            writing = self._lowering_of[key] = self.checkpoints.start([directory])
            while not (writing.done() and writing.result()):
                if not directory.online:
                    raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {directory.path} is offline")
                if writing.done():  # there was no free file descriptor
                    writing = self._lowering_of[key] = self.checkpoints.start([directory])
                yield
        except BaseException:  # also if the topic is deleted in a pause
            log.discard()
            raise
        finally:
            self._lowering_of.pop(key, None)
        return True

    def dropping(self, topic: TopicInfo) -> Steps[Deletion]:
        """Detach the logs of a deleted topic at once, and return the steps that set their directories aside."""
        for partition in range(topic.partition_count):
            self._stop_opening((topic.name, partition))
        self.incomplete.forget(topic.name)
        self.traffic.forget(topic.name)
        return self._deletions.begin(topic)

    def _stop_opening(self, key: TopicPartition) -> None:
        work = self._opening.pop(key, None)
        if work is not None:
            work.close()

    def fail(self, directory: DataDirectory) -> None:
        """Take the open partitions of a failed directory offline, and fail their waiters.

        Later requests for any partition of the directory fail with KAFKA_STORAGE_ERROR.
        """
        lost = [key for key in self._replicas if self._directories.find(*key) is directory]
        for key in lost:
            self._replicas.pop(key).fail()
        for key in lost:
            self.roles.term_ended(*key)

    def forget_cleaned(self, replica: Replica) -> None:
        """Record that a log was truncated, so that the records of another leader do not count as compacted."""
        log = replica.log
        self._directories.holding(log.directory).note_truncated(
            log.topic, log.partition, log.segments.active.base_offset
        )

    def metadata_changed(self, delta: MetadataDelta) -> Callable[[], Awaitable[None]] | None:
        """Drop the logs of deleted topics. Apply new settings and states to the open ones.

        The deleted logs are detached before this returns, so that no request finds them under the name of a new topic.
        The returned function does the rest. Return None if nothing is left to do.
        """
        dropping = [(topic, self.dropping(topic)) for topic in delta.deleted_topics]
        everywhere = delta.broker_configs_changed(self._node_id)
        topics = (
            delta.after.topics_by_name.values() if everywhere else filter(delta.settings_changed, delta.changed_topics)
        )
        configured = [topic.name for topic in topics]
        changed, brokers = delta.changed_partitions, delta.brokers_changed
        if not (dropping or configured or changed or brokers):
            return None
        return partial(self._apply, dropping, configured, changed, brokers)

    async def _apply(
        self,
        dropping: Sequence[tuple[TopicInfo, Steps[Deletion]]],
        configured: Iterable[str],
        changed: Mapping[str, Iterable[int]],
        brokers_changed: bool,
    ) -> None:
        for topic, steps in dropping:
            await self._delete(topic, steps)
        yielder = Yielder()
        for name in configured:
            await yielder.next()
            newest = self._cache.image.topic(name)
            if newest is not None:
                self._reconfigure(newest)
        followed = []
        for key in ((name, partition) for name, partitions in changed.items() for partition in partitions):
            await yielder.next()
            self.incomplete.release(key)
            replica = self._replicas.get(key)
            if replica is not None:
                self._apply_role(replica)
            elif self._must_open(key) and not self.roles.leads(*key):  # this broker follows another leader
                followed.append(key)
        if brokers_changed:
            await self.apply_roles()
        if followed:
            self._workers.spawn(self.open_all(followed), "open followed partitions")

    def _apply_role(self, replica: Replica) -> None:
        """Apply the newest state to a replica. After an error, the next change of that state tries again."""
        try:
            self.roles.apply(replica)
        except Exception:  # the roles of other replicas do not depend on it
            self._logger.exception("%r: cannot apply the newest state", replica)

    async def apply_roles(self) -> None:
        """Lead and follow as the newest image and the registration of this broker say."""
        yielder = Yielder()
        for replica in tuple(self._replicas.values()):
            await yielder.next()
            self._apply_role(replica)
            self.roles.brokers_changed(replica)

    def session_lost(self) -> None:
        """End the terms that this broker may not have without a session."""
        self._workers.spawn(self.apply_roles(), "end terms without a session")

    async def open_all(self, partitions: Iterable[TopicPartition]) -> None:
        """Open logs one after the other, and log the errors."""
        for topic, partition in partitions:
            try:
                await self.open_in_turns(topic, partition)
            except ProtocolError as error:  # each request for this log reports the error too
                self._logger.error("%s", error)
            except Exception:  # the other logs do not depend on it
                self._logger.exception("cannot open the log of %s-%d", topic, partition)
            await asyncio.sleep(0)

    async def open_suspects(self, partitions: Sequence[TopicPartition]) -> None:
        """Open logs of `IncompleteLogs.suspects`. If one cannot be opened, this broker leaves its ISR."""
        await self.open_all(partitions)
        for key in partitions:
            if self._must_open(key):
                self.incomplete.add(key)

    async def _delete(self, topic: TopicInfo, steps: Steps[Deletion]) -> None:
        """Drop the partitions of a deleted topic, and schedule the removal of their directories."""
        try:
            dropped = await in_turns(steps)
        except Exception:
            self._logger.exception("cannot drop topic %s", topic.name)
            return
        delay_ms = self._config.current.log_segment_delete_delay_ms
        for disk, folders in dropped.folders.items():
            self.unlinker.folders(disk, folders, delay_ms)
        if dropped.stale:
            self._workers.spawn(self._write_checkpoints(dropped), "write checkpoints after a deletion")

    async def _write_checkpoints(self, dropped: Deletion) -> None:
        """Replace the checkpoints that have offsets of a deleted topic. If necessary, `_open` does it sooner."""
        if await self.checkpoints.write() >= set(self._directories.online):
            self._deletions.checkpointed(dropped)

    def _reconfigure(self, topic: TopicInfo) -> None:
        """Apply the current settings of a topic to its open logs, without a pause."""
        config, least = log_config(self._config.current, topic.configs), self.roles.min_insync_replicas(topic)
        for partition in range(topic.partition_count):
            replica = self._replicas.get((topic.name, partition))
            if replica is not None:
                replica.log.reconfigure(config)
                self.roles.reconfigure(replica, least)

    async def close(self) -> list[DataDirectory]:
        """Close all open logs. Return the online directories whose logs need no recovery at the next start.

        A directory is excluded if one of its logs could not be closed. After an unclean shutdown, it is also excluded
        if the broker has not opened all its logs, because the others are not recovered yet.
        """
        self.flusher.close()
        self.unlinker.close()
        for key in tuple(self._opening):
            self._stop_opening(key)
        self._deletions.complete_all()
        clean = set()
        for directory in self._directories.online:
            left = directory.found - self._replicas.keys()
            if directory.clean or not any(self.roles.hosts(*key) for key in left):
                clean.add(directory)
        for replica, error in (await close_logs(self._replicas.values(), self._workers)).items():
            self._logger.error("cannot close %r: %s", replica, error)
            clean -= {self._directories.find(replica.topic, replica.partition)}
        return [directory for directory in self._directories.online if directory in clean]
