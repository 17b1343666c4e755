"""Decide which log directories may have lost records that this broker had acknowledged. No I/O.

A log directory has lost nothing if the last process that opened it has closed it cleanly, or if the machine has not
restarted since it was opened: the page cache survives `kill -9`. A failed disk counts as a loss. So does a recovery
that ends below the high watermark.
A directory that was replaced by an older copy counts as lost, too. To detect it, each directory has a generation, a
number that only grows. The broker writes it into the directory, and then into the tree.
The broker notes a loss until it has left the ISRs of all partitions that may have been in that directory. A directory
whose state is unknown counts as lost. Kafka (KIP-966) counts losses by broker: it expects the same broker epoch in the
clean-shutdown marks of all log directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from oncelog.protocol.topics import TopicPartition


class LossNode(msgspec.Struct, frozen=True):
    """What a broker notes about its log directories, by `directory.id`."""

    boots: dict[str, str]
    """The boot of the machine in which each directory was last opened."""
    lost: list[str] = []
    """The directories that may lack records, in order."""
    intact: frozenset[TopicPartition] | None = None
    """The partitions that lack no record, although a directory is lost. None if all were intact before the loss.

    The next start cannot find this out: by then, a checkpoint also names a log that was moved from a lost directory.
    """
    generations: dict[str, int] = {}
    """A lower limit of each directory's generation. A directory with a lower generation is an older copy."""


class _StoredNode(msgspec.Struct):
    """A `LossNode` in the tree. Older versions of oncelog read and write only the first two fields."""

    boot: str
    lost: bool
    boots: dict[str, str] | None = None
    lost_directories: list[str] = []
    intact: list[TopicPartition] | None = None
    generations: dict[str, int] = {}


class DirectoryState(NamedTuple):
    """A log directory after it was opened, or after that has failed."""

    id: str
    online: bool
    is_clean: bool
    """Whether it was cleanly closed. False if it is offline."""
    is_identified: bool
    """Whether it had the id. Otherwise, the id is that of its path. False if it is offline."""
    is_new: bool
    """Whether no broker has used it before."""
    generation: int = 0
    """A number that grows at each start and stop, and while records are committed. 0 if the directory has none."""


def encode(node: LossNode, boot: str) -> bytes:
    """Encode a node. `boot` is the present boot of the machine."""
    intact = None if node.intact is None else sorted(node.intact)
    return msgspec.json.encode(_StoredNode(boot, bool(node.lost), node.boots, node.lost, intact, node.generations))


def decode(data: bytes, directories: Iterable[DirectoryState]) -> LossNode:
    """Decode a node. If an older version has written it, it counts for all of the given directories."""
    stored = msgspec.json.decode(data, type=_StoredNode)
    if stored.boots is not None:
        intact = None if stored.intact is None else frozenset(stored.intact)
        return LossNode(stored.boots, stored.lost_directories, intact, stored.generations)
    ids = sorted(each.id for each in directories)
    return LossNode(dict.fromkeys(ids, stored.boot), ids if stored.lost else [])


def lost_directories(found: LossNode | None, directories: Sequence[DirectoryState], boot: str) -> frozenset[str]:
    """Return the directories that may lack records, at the start of a process.

    `found` is the node that the last process has written, or None at the first start of the broker. `boot` is the
    present boot of the machine, or empty if it is unknown. A directory that the broker no longer has counts as lost,
    because its logs may have been moved to another one.
    """
    if found is None:
        return frozenset()
    kept = {each.id for each in directories if each.is_new or _is_kept(found, each, boot)} - {*found.lost}
    return frozenset({*found.boots, *found.lost, *(each.id for each in directories)} - kept)


def _is_kept(found: LossNode, directory: DirectoryState, boot: str) -> bool:
    """Return whether a directory lacks nothing that it had when a process last opened it."""
    if directory.online and (not directory.is_identified or is_old_copy(found, directory)):
        return False
    before = found.boots.get(directory.id)
    return before is not None and (directory.is_clean or (boot != "" and boot == before))


def is_old_copy(found: LossNode, directory: DirectoryState) -> bool:
    """Return whether a directory was replaced by a copy that lacks what was written since then."""
    return directory.online and directory.generation < found.generations.get(directory.id, 0)


def opened(found: LossNode | None, directories: Iterable[DirectoryState], boot: str) -> dict[str, str]:
    """Return `boots` after the start of a process. An offline directory keeps its boot, because it is not open."""
    before = found.boots if found is not None else {}
    boots = {each.id: boot if each.online else before.get(each.id) for each in directories}
    return {key: value for key, value in sorted(boots.items()) if value is not None}
