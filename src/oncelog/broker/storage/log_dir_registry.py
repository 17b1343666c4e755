"""Store the log directories of each broker in the versioned tree, and which logs it has lost with a disk.

Without this registry, a disk that is not mounted, or a forgotten entry of `log.dirs`, would look like empty partitions.
Their offsets would start at 0 again, and consumers would be reset. Kafka detects this with `meta.properties`, and with
the directory ids in its metadata (KIP-858).

If a user gives up a lost directory (`lost.log.dirs`), the broker may be in the ISR of partitions whose log was there.
The registry keeps these partitions, also across restarts, until the broker has left the ISR. Otherwise it could be
elected without its records, and the other brokers would truncate theirs.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from oncelog.cluster.image import MetadataImage
from oncelog.cluster.partition_state import UNKNOWN_BROKER_EPOCH
from oncelog.cluster.store import ANY, MetadataStore, Node, NoNodeError, Set, ensure, read_children
from oncelog.cluster.topics import TopicInfo
from oncelog.protocol.topics import TopicPartition

PATH = "/oncelog/log_dirs"
LOST_PATH = "/oncelog/lost_logs"

Known = dict[UUID, str]
"""directory.id -> absolute path."""
Lost = frozenset[tuple[UUID, int]]
"""Topic id and partition of each lost log."""


class FormerDirectory(NamedTuple):
    """A log directory that the broker had at its last start."""

    directory_id: UUID
    stored_path: str

    def without_logs(self, path: str, *, exists: bool) -> str:
        """Say that the directory, whose path should be `path` now, is missing or empty, and what to do."""
        moved = ""
        if path != self.stored_path:
            moved = (
                f". The metadata has its former path, {self.stored_path}: if the data was copied or moved from there, "
                "bring this directory, too"
            )
        return (
            f"it is {'empty' if exists else 'missing'}, but this broker had logs in it. Mount its disk, or move the "
            f"directory back{moved}. If it is lost for good, start once with lost.log.dirs={path}"
        )


class _Node(msgspec.Struct):
    log_dirs: dict[str, str]
    version: int = 1
    given_up: list[str] = []
    """The paths in `lost.log.dirs` at the last start. The broker does not give them up again while they stay there."""


class _LostNode(msgspec.Struct):
    partitions: dict[str, list[int]]
    """Topic id -> partitions."""
    version: int = 1


def read(store: MetadataStore, node_id: int) -> Known:
    """Return the log directories of a broker, or an empty dict before its first start. Blocks."""
    return _known(_read(store, node_id))


def kept(
    store: MetadataStore, node_id: int, log_dirs: Sequence[str], lost: Iterable[str]
) -> dict[str, FormerDirectory]:
    """Return the log directories that a broker had and has not lost, by their present paths. Blocks.

    `log_dirs` and `lost` are the absolute paths of the settings. A path of `lost` has no effect if an earlier start has
    given it up.
    """
    given_up = set(lost) - read_given_up(store, node_id)
    former = at_present_paths(read(store, node_id), log_dirs)
    return {path: each for path, each in former.items() if given_up.isdisjoint((path, each.stored_path))}


def at_present_paths(known: Known, log_dirs: Sequence[str]) -> dict[str, FormerDirectory]:
    """Return the known directories by the paths that they should have now.

    If all data was moved or copied, `log_dirs` does not have the stored path, but a new one with the same last part. If
    several directories have that last part, the stored path is returned.
    """
    absent = Counter(posixpath.basename(path) for path in known.values() if path not in log_dirs)
    new = [path for path in log_dirs if path not in known.values()]
    by_name = {posixpath.basename(path): path for path in new}
    single = {name for name, count in Counter(map(posixpath.basename, new)).items() if count == absent[name] == 1}
    found = {}
    for key, stored in known.items():
        name = posixpath.basename(stored)
        path = by_name[name] if stored not in log_dirs and name in single else stored
        found[path] = FormerDirectory(key, stored)
    return found


def read_given_up(store: MetadataStore, node_id: int) -> frozenset[str]:
    """Return the paths that the broker has given up, and that `lost.log.dirs` has named at each start since. Blocks."""
    return frozenset(_read(store, node_id).given_up)


def _read(store: MetadataStore, node_id: int) -> _Node:
    try:
        return _decode(store.get(f"{PATH}/{node_id}"))
    except NoNodeError:
        return _Node({})


def _decode(node: Node) -> _Node:
    return msgspec.json.decode(node.data, type=_Node)


def _known(node: _Node) -> Known:
    return {UUID(text): path for text, path in node.log_dirs.items()}


def read_all(store: MetadataStore) -> dict[int, Known]:
    """Return the log directories of all brokers that have ever run, by broker id. Blocks."""
    if not store.exists(PATH):
        return {}
    return {int(name): _known(_decode(node)) for name, node in read_children(store, PATH).items()}


def read_paths(store: MetadataStore) -> frozenset[str]:
    """Return the paths of the log directories that any broker has, or has given up. Blocks."""
    if not store.exists(PATH):
        return frozenset()
    nodes = [_decode(node) for node in read_children(store, PATH).values()]
    return frozenset(path for node in nodes for path in (*node.log_dirs.values(), *node.given_up))


def write(store: MetadataStore, node_id: int, known: Mapping[UUID, str], lost: Lost, given_up: Iterable[str]) -> None:
    """Store the log directories and the lost logs of a broker, in one step. Only that broker may call this. Blocks.

    `given_up` are the paths that `read_given_up` returns at the next start.
    """
    path = f"{PATH}/{node_id}"
    ensure(store, path)
    ensure(store, f"{LOST_PATH}/{node_id}")
    node = _Node({str(key): value for key, value in known.items()}, given_up=sorted(given_up))
    store.multi([Set(path, msgspec.json.encode(node), ANY), lost_change(node_id, lost)])


def read_lost(store: MetadataStore, node_id: int) -> Lost:
    """Return the logs that a broker has lost and must not replace yet. Blocks."""
    try:
        node = store.get(f"{LOST_PATH}/{node_id}")
    except NoNodeError:
        return frozenset()
    found = msgspec.json.decode(node.data, type=_LostNode).partitions
    return frozenset((UUID(text), partition) for text, partitions in found.items() for partition in partitions)


def lost_change(node_id: int, lost: Lost) -> Set:
    """Return the operation that stores the lost logs of a broker. `write` must have created the node."""
    node = _LostNode({})
    for topic_id, partition in sorted(lost):
        node.partitions.setdefault(str(topic_id), []).append(partition)
    return Set(f"{LOST_PATH}/{node_id}", msgspec.json.encode(node), ANY)


def lost_logs(image: MetadataImage, node_id: int, is_held: Callable[[TopicInfo, int], bool]) -> Lost:
    """Return the replicated partitions whose ISR or ELR includes the broker although the broker has lost their log.

    `is_held` returns whether one of the remaining log directories has the log.
    """
    found = set()
    for name, index in image.replicated(node_id):
        topic = image.topics_by_name[name]
        if node_id in topic.partitions[index].complete and not is_held(topic, index):
            found.add((topic.topic_id, index))
    return frozenset(found)


def still_lost(image: MetadataImage, lost: Lost, node_id: int, broker_epoch: int) -> Lost:
    """Return those of the lost logs that the broker may not replace yet, because it is still in the ISR or ELR.

    If this process leads such a partition, it has won an unclean election, and its records count from now on.
    """
    left = set()
    for topic_id, index in lost:
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            info = topic.partitions[index]
            elected = info.leader == node_id and info.state.leader_broker_epoch == broker_epoch != UNKNOWN_BROKER_EPOCH
            if node_id in info.complete and not elected:
                left.add((topic_id, index))
    return frozenset(left)


def named(image: MetadataImage, lost: Lost) -> frozenset[TopicPartition]:
    """Return the lost logs by the names of their topics."""
    topics = ((image.topic_by_id(topic_id), index) for topic_id, index in lost)
    return frozenset((topic.name, index) for topic, index in topics if topic is not None)
