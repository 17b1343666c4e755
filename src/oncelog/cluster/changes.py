"""Log metadata changes in the tree. Each write logs the paths that it touched, and readers read only those paths.

The node `/oncelog/changes` holds the last `KEPT` changes, or fewer if their paths are longer than `KEPT_LENGTH`. It is
set in the same `multi` as the change itself. A reader that has missed more changes reads the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from oncelog.cluster.store import (
    BadVersionError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    StoreError,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError

T = TypeVar("T")

PATH = "/oncelog/changes"
KEPT = 256
"""Brokers look for changes every 50 ms. Within that time, an election may write more than 100 changes."""
KEPT_LENGTH = 128 << 10
"""The maximum length of all kept paths together. Each write decodes and encodes them."""


class _ChangesNode(msgspec.Struct):
    last: int = 0
    paths: list[list[str]] = []
    version: int = 1


class Changes(NamedTuple):
    """The changes that a reader has not seen. `last` is the number of the newest change."""

    last: int
    paths: frozenset[str] | None
    """The touched paths, or None if the reader must read the whole tree."""


class ChangeLog:
    """Write to the tree, and read which paths other writers have touched. All methods block."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def write(self, operations: Sequence[Operation], *touched: str, session: int | None = None) -> None:
        """Carry out all operations or none, and log the touched paths. Raises StoreError as `MetadataStore.multi` does.

        If another writer has logged a change in the meantime, `write` retries. With `session`, that session must live.
        """
        while True:
            node = self.store.get(PATH)
            log = _decode(node.data)
            log.paths = _newest([*log.paths, list(touched)])
            log.last += 1
            try:
                self.store.multi([*operations, Set(PATH, msgspec.json.encode(log), node.version)], session=session)
            except BadVersionError as error:
                if error.path != PATH:
                    raise
            else:
                return

    def since(self, sequence: int) -> Changes:
        """Return the changes after number `sequence`."""
        log = _decode(self.store.get(PATH).data)
        missed = log.last - sequence
        if not 0 <= missed <= len(log.paths) or sequence < 0:
            return Changes(log.last, None)
        newest = log.paths[len(log.paths) - missed :]
        return Changes(log.last, frozenset(path for paths in newest for path in paths))


def _newest(changes: list[list[str]]) -> list[list[str]]:
    """Return the changes to keep: at most `KEPT`, with paths of at most `KEPT_LENGTH`, but always the newest change."""
    length = 0
    for kept, touched in enumerate(reversed(changes)):
        length += sum(map(len, touched))
        if kept == KEPT or (kept and length > KEPT_LENGTH):
            return changes[-kept:]
    return changes


def until_written(what: str, attempt: Callable[[], T]) -> T:
    """Return the result of `attempt`, which reads and then writes. Repeat it if another writer was faster.

    Raises REQUEST_TIMED_OUT for other errors of the store.
    """
    try:
        while True:
            with suppress(BadVersionError, NodeExistsError, NoNodeError, NotEmptyError):
                return attempt()
    except StoreError as error:
        raise cannot_write(what, error) from error


def cannot_write(what: str, error: StoreError) -> ProtocolError:
    """Return REQUEST_TIMED_OUT, which clients retry. Kafka's brokers send it if the controller does not answer."""
    return ProtocolError(ErrorCode.REQUEST_TIMED_OUT, f"cannot write the {what}: {error!r}")


def _decode(data: bytes) -> _ChangesNode:
    return msgspec.json.decode(data, type=_ChangesNode) if data else _ChangesNode()
