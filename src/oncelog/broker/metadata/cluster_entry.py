"""Enter the cluster: create it if it does not exist, and open the log directories that belong to it.

A broker calls `enter`, `check_directories` and `open_directories`, in this order. It reads the metadata before it opens
the directories, and changes nothing else of the cluster before that.
"""

from __future__ import annotations

import asyncio
import secrets
from uuid import UUID

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.membership import Membership
from oncelog.broker.metadata.import_kafka import LogDirectoryImport, check_all_unchanged, initial_levels, mark_imported
from oncelog.broker.metadata.topics import new_cluster_id, new_topic_id
from oncelog.broker.storage import log_dir_registry
from oncelog.broker.storage.log_dir_registry import Lost
from oncelog.broker.storage.log_directories import NAMED, LogDirectories
from oncelog.broker.workers import Runtime
from oncelog.cluster import features
from oncelog.cluster.brokers import BROKER_EPOCHS
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.image_nodes import cluster_id, create_cluster, is_new, prepare
from oncelog.cluster.login_secret import SECRET_BYTES, login_secret
from oncelog.cluster.store import MetadataStore, NodeExistsError
from oncelog.log.disk import Disk
from oncelog.protocol.texts import first_named

FOUNDER = "/oncelog/founder"
"""The ephemeral node of the broker that creates the cluster."""
FOUNDING_POLL_S = 0.02


class ClusterEntry:
    """The first steps of a broker in its cluster. The broker's session must be open."""

    def __init__(
        self,
        store: MetadataStore,
        membership: Membership,
        directories: LogDirectories,
        config: BrokerConfig,
        disk: Disk,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._membership = membership
        self._directories = directories
        self._config = config
        self._disk = disk
        self._workers = runtime.workers
        self._random_bits = runtime.random_bits
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger

    async def enter(self) -> None:
        """Create the cluster if it does not exist, and read its id and the secret of its logins.

        If several brokers start at the same time, one of them creates it, and the others wait.
        """
        while True:
            found: tuple[str, bytes] | None = await self._workers.offload(self._find)
            if found is not None:
                self._membership.cluster_id, self._membership.login_secret = found
                return
            await asyncio.sleep(FOUNDING_POLL_S)

    def _find(self) -> tuple[str, bytes] | None:
        """Return the cluster's id and the secret of its logins. None: another broker creates it now. Blocks."""
        store = self._store
        prepare(store)
        levels = initial_levels(self._config)
        if is_new(store):
            try:
                store.create(FOUNDER, session=self._membership.session)
            except NodeExistsError:
                return None
            if is_new(store):
                levels = LogDirectoryImport(
                    self._directories, store, self._config, self._new_topic_id, self._logger
                ).run()
        features.initialize(store, levels)
        proposal = self._directories.cluster_id() or new_cluster_id(self._random_bits)
        create_cluster(store, proposal, self._now_ms())
        return cluster_id(store), login_secret(store, secrets.token_bytes(SECRET_BYTES))

    def check_directories(self) -> None:
        """Check that the log directories belong to the cluster, and that Kafka has not changed them. Blocks."""
        for directory in self._directories:
            directory.check(self._membership.cluster_id)
        check_all_unchanged(self._directories, self._store)

    def open_directories(self, image: MetadataImage) -> Lost:
        """Open the log directories. Store which ones this broker has, and which logs it has lost. Blocks.

        Return the lost logs. The broker must not lead them before it has copied them. Raises ConfigError if
        `lost.log.dirs` names an unknown path. For the other errors, see `LogDirectories.open`.

        A path in `lost.log.dirs` takes effect once. If it stays there, and the new disk is not mounted at a later
        start, the partitions of that disk must not start empty. After a start without the path, even one that fails,
        it takes effect again.
        """
        store, node_id, directories = self._store, self._config.node_id, self._directories
        named = frozenset(map(self._disk.absolute, self._config.lost_log_dirs))
        self._check_lost(named)
        before = log_dir_registry.read(store, node_id)
        lost = noted = log_dir_registry.read_lost(store, node_id)
        given_up = log_dir_registry.read_given_up(store, node_id)
        if given_up - named:
            log_dir_registry.write(store, node_id, before, lost, given_up & named)
        for path in sorted(given_up & named):
            self._logger.warning(
                "lost.log.dirs has no effect on %s: an earlier start has given it up. Remove it from the setting. "
                "To give it up again, first start once without it",
                path,
            )
        own = [directory.absolute_path for directory in directories]
        former = log_dir_registry.kept(store, node_id, own, named)
        now = directories.open(self._membership.cluster_id, self._new_topic_id, former)
        mark_imported(store, directories.online)
        for path, (key, _) in log_dir_registry.at_present_paths(before, own).items():
            if key in now:
                continue
            self._logger.warning("log directory %s is lost. %s", path, _what_follows(image, node_id))
            lost |= log_dir_registry.lost_logs(image, node_id, directories.holds)
        lost |= self._gone(image, lost)
        if (now, lost, given_up & named) != (before, noted, named):
            log_dir_registry.write(store, node_id, now, lost, named)
        if len(store.children(BROKER_EPOCHS)) > 1:  # a broker that was always alone has already deleted these logs
            directories.set_strays_aside(image, node_id)
        directories.locate(image)
        return lost

    def _gone(self, image: MetadataImage, lost: Lost) -> Lost:
        """Return the replicated logs in whose ISR this broker is, and whose directory somebody has deleted."""
        node_id, lacks = self._config.node_id, self._directories.lacks
        gone = log_dir_registry.lost_logs(image, node_id, lambda topic, index: not lacks(topic, index)) - lost
        if gone:
            names = [f"{topic}-{index}" for topic, index in sorted(log_dir_registry.named(image, gone))]
            self._logger.error(
                "the directories of %d partitions are gone, although the checkpoints name them: %s. This broker "
                "copies the records from the leaders. If it is the last member of an ISR, restore the directory or "
                "allow an unclean election",
                len(names),
                first_named(names, len(names), NAMED),
            )
        return gone

    def _check_lost(self, named: frozenset[str]) -> None:
        """Raise ConfigError if no broker has or had such a log directory. A mistyped path would have no effect."""
        own = {directory.absolute_path for directory in self._directories}
        former = log_dir_registry.read_paths(self._store) - own if named - own else frozenset()
        if unknown := named - own - former:
            more = f"; the cluster also has, or had, {', '.join(sorted(former))}" if former else ""
            raise ConfigError(
                f"lost.log.dirs names {', '.join(sorted(unknown))}, but no broker has or had such a log directory. "
                f"log.dirs is {','.join(self._config.log_dirs)}{more}. Correct the path, or remove it"
            )

    def _new_topic_id(self) -> UUID:
        return new_topic_id(self._random_bits)


def _what_follows(image: MetadataImage, node_id: int) -> str:
    """Say what happens to the partitions of a lost log directory."""
    if any(image.replicated(node_id)):
        return "Partitions with other replicas are copied from them, and all other partitions start without records"
    return "Its partitions start without records"
