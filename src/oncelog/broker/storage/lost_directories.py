"""Open the log directories of a broker, and give up those that a user declares as lost (`lost.log.dirs`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.metadata.import_kafka import mark_imported
from oncelog.broker.storage import log_dir_registry
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.store import MetadataStore
from oncelog.log.disk import Disk


def open_directories(
    directories: LogDirectories,
    disk: Disk,
    store: MetadataStore,
    image: MetadataImage,
    config: BrokerConfig,
    cluster_id: str,
    new_directory_id: Callable[[], UUID],
    logger: logging.Logger,
) -> log_dir_registry.Lost:
    """Open the directories, and store which ones the broker has. Return the logs it has lost. Blocks.

    A path in `lost.log.dirs` counts once: if it stays there, and the new disk is not mounted at a later start, the
    partitions of that disk must not start empty. A start without the path ends that, even if it fails.
    For the errors, see `LogDirectories.open`.
    """
    node_id = config.node_id
    named = frozenset(map(disk.absolute, config.lost_log_dirs))
    before = log_dir_registry.read(store, node_id)
    lost = noted = log_dir_registry.read_lost(store, node_id)
    given_up = log_dir_registry.read_given_up(store, node_id)
    if given_up - named:
        log_dir_registry.write(store, node_id, before, lost, given_up & named)
    for path in sorted(given_up & named):
        logger.warning("lost.log.dirs has no effect on %s, which an earlier start has given up. Remove it", path)
    known = {key: path for key, path in before.items() if path not in named - given_up}
    now = directories.open(cluster_id, new_directory_id, known)
    mark_imported(store, directories.online)
    for key in before.keys() - now.keys():
        logger.warning("log directory %s is lost; its partitions start without records", before[key])
        lost |= log_dir_registry.lost_logs(image, node_id, directories.holds)
    if (now, lost, given_up & named) != (before, noted, named):
        log_dir_registry.write(store, node_id, now, lost, named)
    return lost
