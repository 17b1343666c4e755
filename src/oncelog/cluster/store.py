"""The interface of the metadata store: a versioned tree that several brokers share.

The tree has the layout and the semantics of Kafka's ZooKeeper tree (`/brokers/ids`, `/latest_producer_id_block`, ...).
A node holds bytes and a version. Each `Set` increments the version. A write may require a version. `multi` makes all
of several changes, or none. An ephemeral node is deleted when its session ends. A path starts with `/`, does not end
with `/`, and has no empty part. The root always exists.

All methods block. `store_memory.MemoryStore` serves tests and the simulation. `store_sqlite.SqliteStore` serves the
brokers of one machine; they call it from worker threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ANY = -1
"""The version that matches every version."""


class StoreError(Exception):
    """The store has rejected an operation, or has failed. `path` is the path of the node that was the reason."""

    path: str | None = None


class NodeError(StoreError):
    """The present state of a node rejects the operation."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNodeError(NodeError):
    """The node does not exist, or the parent of the node to create does not exist."""


class NodeExistsError(NodeError):
    """The node exists already."""


class BadVersionError(NodeError):
    """The node has another version than required, because another writer has changed it."""


class NotEmptyError(NodeError):
    """The node has children and cannot be deleted."""


class EphemeralParentError(NodeError):
    """The parent of the node to create is ephemeral, and ephemeral nodes cannot have children."""


class SessionExpiredError(StoreError):
    """The session has ended, and its ephemeral nodes are deleted.

    Its lease has expired, it was closed, or a new session of the same owner has replaced it. The argument is its
    number.
    """


class SessionHeldError(StoreError):
    """Another process has opened a session of this owner, and has not closed the store. The argument is the owner."""


class OutcomeUnknownError(StoreError):
    """The store failed in the middle of a write. The write may or may not have happened."""


class UnavailableError(StoreError):
    """The store cannot be read or written now. Nothing has changed."""


class Node(NamedTuple):
    """The content of a node. A new node has version 0. `session` is the owner of an ephemeral node."""

    data: bytes
    version: int
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. With `session`, the node is ephemeral.

    Raises NodeExistsError, NoNodeError if the parent does not exist, EphemeralParentError, SessionExpiredError.
    """

    path: str
    data: bytes = b""
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the data of a node if it has this version. Raises NoNodeError, BadVersionError."""

    path: str
    data: bytes
    version: int = ANY


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node if it has this version and no children. Raises NoNodeError, BadVersionError, NotEmptyError."""

    path: str
    version: int = ANY


@dataclass(frozen=True, slots=True)
class Check:
    """Require that the node has this version, without changing it. Raises NoNodeError, BadVersionError."""

    path: str
    version: int = ANY


Operation = Create | Set | Delete | Check


class Announcements(Protocol):
    """Hints that something may have changed. One may get lost, or arrive without a change."""

    @property
    def descriptor(self) -> int | None:
        """Return the descriptor that is readable after a hint, until `drain`. None if the system allows none."""

    def drain(self) -> None:
        """Forget the hints that have arrived. Does not wait."""


class MetadataStore(ABC):
    """A versioned tree. See the module for its semantics.

    Besides the errors named below, reads may raise UnavailableError, and writes UnavailableError or
    OutcomeUnknownError.
    """

    announcements: Announcements | None = None
    """Hints after each write of any process, from `open_session` on. None if the store announces no writes."""

    @abstractmethod
    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return the node of each path, or None if it does not exist. They may not be of the same moment."""

    def get(self, path: str) -> Node:
        """Return the node. Raises NoNodeError."""
        [node] = self.get_many([path])
        if node is None:
            raise NoNodeError(path)
        return node

    def exists(self, path: str) -> bool:
        """Return whether the node exists."""
        return self.get_many([path]) != [None]

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Return the sorted names (not paths) of the node's children. Raises NoNodeError."""

    def create(self, path: str, data: bytes = b"", *, session: int | None = None) -> None:
        """Create one node. Raises the errors of `Create`."""
        self.multi([Create(path, data, session)])

    def set(self, path: str, data: bytes, version: int = ANY) -> None:
        """Replace the data of one node. Raises the errors of `Set`."""
        self.multi([Set(path, data, version)])

    def delete(self, path: str, version: int = ANY) -> None:
        """Delete one node. Raises the errors of `Delete`."""
        self.multi([Delete(path, version)])

    @abstractmethod
    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        """Carry out all operations in order, or none. The changes are durable when this returns.

        Raises the error of the first operation that is rejected. With `session`, raises SessionExpiredError if that
        session has ended, so that a zombie cannot change the tree.
        """

    @abstractmethod
    def open_session(self, owner: str, ttl_ms: int) -> int:
        """Open a session, and return its number. It expires `ttl_ms` after its last `renew`.

        An earlier session of the same owner ends. If the store knows that the earlier session's process lives, it
        raises SessionHeldError instead, also if that session has ended.
        """

    @abstractmethod
    def renew(self, session: int) -> None:
        """Extend the lease of a session to its full `ttl_ms`. Waits for no writer, and wakes no watcher.

        Raises SessionExpiredError if the session has ended. It may miss that once, and then raises at the next call.
        """

    @abstractmethod
    def close_session(self, session: int) -> None:
        """End a session and delete its ephemeral nodes. A session that has ended already is ignored."""

    @abstractmethod
    def watch(self, path: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """Make `poll` call `callback(path)` if the node was created, set or deleted, or its list of children changed.

        Return a function that ends the watch. All changes between two `poll`s cause one call. The node need not exist.
        """

    @abstractmethod
    def poll(self) -> None:
        """End expired sessions, then call the callbacks of changed nodes in the current thread.

        If a writer hangs, sessions remain, and no node can change. After a time, `poll` raises UnavailableError.
        """

    @abstractmethod
    def is_quiet(self) -> bool:
        """Return True if `poll` would find no change. Return False if this is not known without blocking."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. The sessions end as if the process had died."""


def ensure(store: MetadataStore, *paths: str) -> None:
    """Create the nodes and their ancestors, without data, if they do not exist, in one change. Blocks."""
    wanted: dict[str, None] = {}
    for path in paths:
        parts = path.strip("/").split("/")
        wanted.update({"/" + "/".join(parts[:depth]): None for depth in range(1, len(parts) + 1)})
    while missing := [path for path, node in zip(wanted, store.get_many([*wanted]), strict=True) if node is None]:
        with suppress(NodeExistsError):  # another writer has created one meanwhile
            store.multi([Create(path) for path in missing])
            return


def read_children(store: MetadataStore, path: str) -> dict[str, Node]:
    """Return the children of a node by name, in order, without those that are deleted meanwhile. Raises NoNodeError."""
    names = store.children(path)
    nodes = store.get_many([f"{path}/{name}" for name in names])
    return {name: node for name, node in zip(names, nodes, strict=True) if node is not None}


def parent_of(path: str) -> str:
    """Return the path of the parent: `/` for `/a`."""
    return path.rpartition("/")[0] or "/"


class Row(NamedTuple):
    """A stored node, with the numbers of the last changes of the node and of its list of children."""

    node: Node
    changed: int
    children_changed: int


class Rows(Protocol):
    """The access to the nodes of a store that `apply` needs, within one transaction."""

    def find(self, path: str) -> Row | None:
        """Return the row of a node, or None if it does not exist."""

    def put(self, path: str, row: Row) -> None:
        """Create or replace a row."""

    def remove(self, path: str) -> None:
        """Remove a row."""

    def names(self, path: str) -> list[str]:
        """Return the sorted names of a node's children."""


def apply(rows: Rows, operation: Operation, change: int) -> None:
    """Carry out one operation as change number `change`. An operation that raises StoreError has changed nothing."""
    path = operation.path
    _check_path(path)
    row = rows.find(path)
    if isinstance(operation, Create):
        if row is not None:
            raise NodeExistsError(path)
        parent = rows.find(parent_of(path))
        if parent is None:
            raise NoNodeError(parent_of(path))
        if parent.node.session is not None:
            raise EphemeralParentError(parent_of(path))
        rows.put(path, Row(Node(operation.data, 0, operation.session), change, change))
        _touch_parent(rows, path, change)
        return
    if row is None:
        raise NoNodeError(path)
    if operation.version not in (ANY, row.node.version):
        raise BadVersionError(path)
    if isinstance(operation, Set):
        node = Node(operation.data, row.node.version + 1, row.node.session)
        rows.put(path, Row(node, change, row.children_changed))
    elif isinstance(operation, Delete):
        if path == "/" or rows.names(path):
            raise NotEmptyError(path)
        rows.remove(path)
        _touch_parent(rows, path, change)


def _touch_parent(rows: Rows, path: str, change: int) -> None:
    parent = rows.find(parent_of(path))
    if parent is not None:
        rows.put(parent_of(path), parent._replace(children_changed=change))


def _check_path(path: str) -> None:
    if path != "/" and (not path.startswith("/") or "" in path[1:].split("/")):
        raise ValueError(f"invalid path in the metadata tree: {path!r}")


class Watches:
    """The watches of one client of a tree: their callbacks, and the state that each has seen last."""

    def __init__(self) -> None:
        self._watches: dict[int, tuple[str, Callable[[str], None], tuple[int, int] | None]] = {}
        self._next = 0

    def add(self, path: str, callback: Callable[[str], None], row: Row | None) -> Callable[[], None]:
        """Register a watch that has seen `row`. Return a function that ends the watch."""
        number = self._next
        self._next += 1
        self._watches[number] = path, callback, _seen(row)

        def cancel() -> None:
            self._watches.pop(number, None)

        return cancel

    def changed(self, find: Callable[[str], Row | None]) -> list[tuple[Callable[[str], None], str]]:
        """Return (callback, path) of each watch whose node has changed, and record the new state as seen."""
        watches = list(self._watches.items())
        found = [_seen(find(path)) for _, (path, _, _) in watches]  # if this raises, nothing is recorded
        calls = []
        for (number, (path, callback, before)), seen in zip(watches, found, strict=True):
            if seen != before:
                self._watches[number] = path, callback, seen
                calls.append((callback, path))
        return calls

    def have_changed(self, find: Callable[[str], Row | None]) -> bool:
        """Return whether `changed` would return any watch."""
        return any(_seen(find(path)) != before for path, _, before in self._watches.values())


def _seen(row: Row | None) -> tuple[int, int] | None:
    return None if row is None else (row.changed, row.children_changed)
