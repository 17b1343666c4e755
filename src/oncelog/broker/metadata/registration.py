"""Keep this broker registered in the tree: its session, its broker epoch, and the node that describes it.

Each registration sets `/oncelog/broker_epochs/B`, whose version is the broker epoch, and creates the ephemeral node
`/brokers/ids/B`. If the broker learns that its session has ended, because it was paused, it registers again, with the
next epoch. It never concludes this from its own clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from oncelog.broker.events import Event
from oncelog.broker.membership import Membership
from oncelog.broker.retrying import STORE_RETRY_S, Problem
from oncelog.broker.storage import log_dir_registry
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.losses import LossNode, decode, encode, lost_directories, opened
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Runtime
from oncelog.cluster.brokers import BOOTS, BrokerInfo, Endpoint, broker_path, encode_broker, epoch_path
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataDelta, MetadataImage
from oncelog.cluster.store import (
    ANY,
    Create,
    MetadataStore,
    NoNodeError,
    Operation,
    SessionExpiredError,
    SessionHeldError,
    Set,
    StoreError,
)
from oncelog.cluster.topics import NO_LEADER
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Identity:
    """What a registration says about a broker apart from its addresses."""

    rack: str | None
    session_ms: int
    heartbeat_ms: int
    boot_id: str
    """Another value after each start of the machine, or empty if it is unknown."""


class Registration:
    """The session and the registration of one broker. `open` comes first, then `start`, then `register`."""

    def __init__(
        self,
        store: MetadataStore,
        identity: Identity,
        directories: LogDirectories,
        partitions: Partitions,
        publishing: asyncio.Lock,
        membership: Membership,
        runtime: Runtime,
    ) -> None:
        """Create a registration that `open` begins. `publishing`: see `MetadataLoader`."""
        self._own = membership
        """Only this class changes its session and its info."""
        self.session_lost: Event[[]] = Event()
        """The broker has learned that its session has ended, and has not registered again."""
        self._store = store
        self._changes = ChangeLog(store)
        self._identity = identity
        self._directories = directories
        self._partitions = partitions
        self._publishing = publishing
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._image = MetadataImage()
        self._noted = LossNode({})
        """The node in the store."""
        self._lost: frozenset[str] = frozenset()
        """The log directories that `info` counts as lost."""
        self._lacking: frozenset[str] = frozenset()
        """Log directories that `info` does not count as lost yet, although recovery has found fewer records."""
        self._lost_logs: log_dir_registry.Lost = frozenset()
        """The lost logs that the broker may not replace yet."""
        self._is_starting = True
        """Whether not all logs in whose ISR the broker is have been opened."""
        self._wake = asyncio.Event()
        self._updating = asyncio.Lock()

    def open(self) -> None:
        """Open a session. Blocks. Raises DUPLICATE_BROKER_REGISTRATION if another living process has this broker id."""
        node_id = self._own.node_id
        try:
            self._own.session = self._store.open_session(f"broker-{node_id}", self._identity.session_ms)
        except SessionHeldError as error:
            raise ProtocolError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"another running process is broker {node_id} of this cluster. Stop it, or set another node.id",
            ) from error

    async def register(
        self, endpoints: Mapping[str, Endpoint], image: MetadataImage, lost: log_dir_registry.Lost, *, starting: bool
    ) -> None:
        """Register this broker with its addresses, and with the partitions that it cannot lead. Raises StoreError.

        `lost` are the lost logs that it may not replace yet. `starting`: it must open logs before it may be elected.
        Call `opened` afterwards.
        """
        self._image, self._lost_logs, self._is_starting = image, lost, starting
        info = BrokerInfo(
            -1,
            endpoints,
            self._identity.rack,
            offline=self._partitions.offline(),
            lost_logs=log_dir_registry.named(image, lost),
            starting=starting,
        )
        async with self._updating:
            try:
                await self._enter(info, first=True)
            except SessionExpiredError:  # the start was paused
                await self._workers.write_store(self.open)
                await self._enter(info, first=True)

    def start(self) -> None:
        """Renew the session in the background, also before the registration."""
        self._workers.spawn(self._keep(), "renew the session")

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Renew the session at once if the image lacks this registration, and note when lost records are replaced."""
        self._image = delta.after
        known = delta.after.brokers.get(self._own.node_id)
        if delta.brokers_changed and (known is None or known.epoch != self._own.epoch):
            self._wake.set()
        if self._with_less_lost() != self._own.info:
            self._workers.spawn(self._forget_lost(), "note that lost records are replaced")
        if self._lost_logs:
            self._workers.spawn(self._forget_lost_logs(), "note that lost logs may be replaced")

    async def _enter(self, info: BrokerInfo, *, first: bool = False) -> None:
        """Write the registration, and hold back new images until this broker knows its epoch.

        Otherwise, the broker would ignore an image in which it leads under the new epoch.
        """
        async with self._publishing:
            self._own.info = await self._workers.write_store(self._register, info, first)

    async def update(self, *, shutting_down: bool = False) -> None:
        """Update the offline partitions in the registration. With `shutting_down`, also announce the shutdown.

        If nothing has changed, write nothing. If the session has ended, the next one has the change. Raises StoreError.
        """
        async with self._updating:
            offline = await self._workers.offload(self._partitions.offline)
            stops = shutting_down or self._own.info.shutting_down
            info = replace(
                self._own.info,
                offline=offline,
                shutting_down=stops,
                starting=self._is_starting,
                incomplete=self._partitions.incomplete.keys,
            )
            lacking = self._lacking
            lost = self._lost | lacking
            if lost != self._lost:
                image, node_id = self._image, self._own.node_id
                intact = await self._workers.offload(self._directories.intact, image, node_id, lost)
                if info.lost_unsynced:
                    intact &= info.intact
                info = replace(info, lost_unsynced=True, intact=intact)
            await self._write(info, lost=lost)
            self._lacking -= lacking  # another log may have been opened during the write

    def records_missing(self, directory: DataDirectory) -> None:
        """Leave the ISRs of a log directory, because recovery has found fewer records than were committed."""
        self._lacking |= {str(directory.directory_id)}
        self.correct()

    def correct(self) -> None:
        """Update the registration in the background."""
        self._workers.spawn(self._try_update(), "correct the registration")

    async def opened(self) -> None:
        """Let this broker be elected, because all logs in whose ISR it is are open, or named in the registration."""
        if self._is_starting:
            self._is_starting = False
            await self._try_update()
        self._workers.spawn(self._forget_stop(), "forget the last clean stop")

    async def _forget_stop(self) -> None:
        """Forget the last clean stop of each log, when the registration names it if it differs.

        A log that differs may wait long for the other replicas. Meanwhile, the others change.
        """
        left: frozenset[TopicPartition] | None = None
        while left is None or left:
            incomplete = self._partitions.incomplete.keys
            is_known = self._own.epoch >= 0 and not self._own.info.starting and self._own.info.incomplete == incomplete
            if is_known and not self._lacking and incomplete != left:
                await self._workers.offload(self._directories.checked, incomplete)
                left = incomplete
            else:
                await asyncio.sleep(STORE_RETRY_S)

    async def _try_update(self) -> None:
        with suppress(StoreError):  # the next renewal tries again
            await self.update()

    async def note_at_stop(self) -> None:
        """Note for the next start that a log directory has failed, if `update` could not, and the last generations.

        Call this after `close`.

        A failed sync may have dropped records that others have seen, although the machine runs on. If the tree cannot
        be written before the process ends, the next start in the same boot does not know about the failure. Then the
        broker is safe only if an election or the controller has removed it from the ISRs meanwhile.
        """
        node = self._node(self._noted.boots, self._lost, self._own.info)
        if node != self._noted:
            try:
                await self._workers.write_store(self._store.multi, [self._note(node)])
            except StoreError as error:
                if node.lost == self._noted.lost:
                    return  # a generation in the store may be lower than in the directory
                self._logger.error(
                    "cannot write to the metadata that a log directory has failed: %s. If no partition in it has other "
                    "replicas, free space on its disk or repair it, then start the broker again. Otherwise, move the "
                    "directory away, and start this broker once with it in lost.log.dirs. The broker then copies its "
                    "partitions, and does not use records that the disk may have damaged", error,
                )  # fmt: skip

    def _node(self, boots: dict[str, str], lost: frozenset[str], info: BrokerInfo) -> LossNode:
        """Return the node that the next start reads. It lists `lost` and the directories that have failed."""
        intact = info.intact if info.lost_unsynced else None
        return LossNode(boots, sorted(lost | self._directories.failed_in_use()), intact, self._newest_generations())

    def _newest_generations(self) -> dict[str, int]:
        """Return the greatest known generation of each log directory. An older copy still has an earlier one."""
        newest = dict(self._noted.generations)
        for directory, generation in self._directories.generations().items():
            newest[directory] = max(generation, newest.get(directory, 0))
        return newest

    def _note(self, node: LossNode) -> Operation:
        return Set(f"{BOOTS}/{self._own.node_id}", encode(node, self._identity.boot_id))

    async def note_generations(self) -> None:
        """Write the generations of the log directories to the store. If that fails, the next call has newer ones."""
        async with self._updating:
            noted, generations = self._noted, self._newest_generations()
            if self._own.epoch >= 0 and generations != noted.generations:
                node = LossNode(noted.boots, noted.lost, noted.intact, generations)
                with suppress(StoreError):
                    await self._workers.write_store(self._store.multi, [self._note(node)])
                    self._noted = node

    async def close(self) -> None:
        """End the session, and with it the registration."""
        with suppress(StoreError):
            await self._workers.write_store(self._store.close_session, self._own.session)

    # -- blocking ---------------------------------------------------------------------------------------------------

    def _register(self, info: BrokerInfo, first: bool) -> BrokerInfo:
        """Write the registration under the next epoch, and return it.

        The first registration of a process counts the log directories that may have lost records. Later registrations
        keep the losses in `info`.
        """
        node_id, session, boot_id = self._own.node_id, self._own.session, self._identity.boot_id
        directories = self._directories.states() if first else []
        operations: list[Operation] = []
        rack = (info.rack or "").encode()
        found: LossNode | None = None
        try:
            version = self._store.get(epoch_path(node_id)).version
            found = decode(self._store.get(f"{BOOTS}/{node_id}").data, directories)
        except NoNodeError:
            epoch = 0
            operations += [Create(epoch_path(node_id), rack), Create(f"{BOOTS}/{node_id}")]
        else:
            epoch = version + 1
            operations.append(Set(epoch_path(node_id), rack, version))
        lost, boots = self._lost, self._noted.boots
        if first:
            lost |= lost_directories(found, directories, boot_id)
            boots = opened(found, directories, boot_id)
            intact = self._directories.intact(self._image, node_id, lost) if lost else info.intact
            if found is not None and found.intact is not None:
                intact &= found.intact
            info = replace(info, lost_unsynced=bool(lost), intact=intact)
            self._noted = LossNode(self._noted.boots, generations=found.generations if found is not None else {})
            self._directories.begin_generations(self._noted.generations, older=False)
        node = self._node(boots, lost, info)
        operations.append(self._note(node))
        info = replace(info, epoch=epoch)
        operations.append(Create(broker_path(node_id), encode_broker(info), session))
        self._store.multi(operations)
        if first:
            self._directories.begin_generations(node.generations, older=True)
        self._lost, self._noted = lost, node
        return info

    def _write_lost_logs(self, image: MetadataImage, info: BrokerInfo) -> tuple[log_dir_registry.Lost, BrokerInfo]:
        """Write which lost logs the broker may not replace yet, if these have changed. Return them."""
        node_id = self._own.node_id
        left = log_dir_registry.still_lost(image, self._lost_logs, node_id, info.epoch)
        if left != self._lost_logs:
            info, path = replace(info, lost_logs=log_dir_registry.named(image, left)), broker_path(node_id)
            operations = [Set(path, encode_broker(info), ANY), log_dir_registry.lost_change(node_id, left)]
            self._changes.write(operations, path, session=self._own.session)
        return left, info

    # -- while the broker runs --------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        pause_s = self._identity.heartbeat_ms / 1000
        problem = Problem(self._logger)
        while True:
            with suppress(TimeoutError):  # `wait_for` can swallow a cancellation
                async with asyncio.timeout(STORE_RETRY_S if problem.lasts else pause_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._renew()
            except Exception as error:  # noqa: BLE001 - without renewals, the session ends
                problem.failed("cannot renew the session: %r", error)
            else:
                problem.over()

    async def _renew(self) -> None:
        """Renew the session. If it has ended, register again.

        Before the first registration, only open a new session.
        """
        session = self._own.session
        try:
            await self._workers.offload_renewal(self._store.renew, session)
            if not self._updating.locked():  # a write may wait for long, and the next renewal must not
                self._workers.spawn(self._repeat(), "correct the registration")
        except SessionExpiredError:
            if session != self._own.session:  # the broker has opened another session meanwhile
                return
            if self._own.epoch >= 0:
                self._lose()
            elif not self._own.info.endpoints and not self._updating.locked():  # else, `register` opens a session
                async with self._updating:
                    await self._workers.write_store(self.open)

    def _lose(self) -> None:
        self._logger.warning("the session of this broker has ended, because it was paused or could not be renewed")
        self._own.info = replace(self._own.info, epoch=-1)
        self.session_lost()
        self._workers.spawn(self._register_again(), "register again")

    async def _register_again(self) -> None:
        """Register until it succeeds. It may have to wait, so `_keep` renews the new session meanwhile."""
        problem = Problem(self._logger)
        while self._own.epoch < 0:
            try:
                async with self._updating:
                    await self._workers.write_store(self.open)
                    await self._enter(self._own.info)
            except Exception as error:  # noqa: BLE001 - other brokers cannot use this one until it is registered
                problem.failed("cannot register again: %r", error)
                await asyncio.sleep(STORE_RETRY_S)
        self._logger.info("registered again, with broker epoch %d", self._own.epoch)

    async def _forget_lost(self) -> None:
        async with self._updating:
            info = self._with_less_lost()  # a loss may have been found in the meantime
            if info != self._own.info:
                with suppress(StoreError):  # the next change of the metadata, or the next renewal, tries again
                    await self._write(info, lost=self._lost if info.lost_unsynced else frozenset())

    def _with_less_lost(self) -> BrokerInfo:
        """Return the registration without the partitions whose ISR and ELR this broker has left.

        Change nothing until this broker has been removed from all these ISRs and ELRs, because each change may name all
        partitions. Do not wait if there is no leader, or if this broker leads and only eligible replicas are left:
        the other members may be down for long. Meanwhile, the broker must be able to join other ISRs. Ignore partitions
        that have no other member.
        """
        node_id, own, lacking, hosted = self._own.node_id, self._own.info, set(), set()
        if not own.lost_unsynced:
            return own
        for topic in self._image.topics():
            for index, info in enumerate(topic.partitions):
                if node_id in info.replicas:
                    hosted.add((topic.name, index))
                if node_id in info.complete and len(info.complete) > 1 and own.may_lack(topic.name, index):
                    if info.leader != NO_LEADER and info.isr != (node_id,):
                        return own
                    lacking.add((topic.name, index))
        return replace(own, lost_unsynced=bool(lacking), intact=frozenset(hosted - lacking if lacking else ()))

    async def _forget_lost_logs(self) -> None:
        """Let this broker replace the lost logs of the partitions whose ISR it has left."""
        async with self._updating:
            if self._lost_logs and self._own.epoch >= 0:
                with suppress(StoreError):  # the next change of the metadata, or the next renewal, tries again
                    self._lost_logs, info = await self._workers.write_store(
                        self._write_lost_logs, self._image, self._own.info
                    )
                    self._own.info = replace(info, epoch=self._own.epoch)

    async def _repeat(self) -> None:
        """Correct the registration, if an earlier attempt has failed or a topic was created again."""
        if self._own.epoch >= 0:
            await self._forget_lost()
            await self._forget_lost_logs()
            with suppress(StoreError):
                await self.update()

    async def _write(self, info: BrokerInfo, *, lost: frozenset[str]) -> None:
        """Write the registration, and which log directories are lost, if these have changed. Raises StoreError.

        If the session has ended, write nothing: the next registration includes the change.
        """
        node = self._node(self._noted.boots, lost, info)
        if self._own.epoch >= 0 and (info != self._own.info or node != self._noted):
            path = broker_path(self._own.node_id)
            operations: list[Operation] = [Set(path, encode_broker(info), ANY)]
            if node != self._noted:
                operations.append(self._note(node))
            with suppress(SessionExpiredError, NoNodeError):
                await self._workers.write_store(
                    lambda: self._changes.write(operations, path, session=self._own.session)
                )
                self._noted = node
        self._own.info, self._lost = replace(info, epoch=self._own.epoch), lost
