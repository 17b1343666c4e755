"""The metadata store: a versioned tree that several brokers share, behind one small interface.

The tree is laid out as Kafka's ZooKeeper tree (`/brokers/ids`, `/latest_producer_id_block`, ...) and behaves like it.
A node holds bytes and a version, which every set raises by one. A write may require a version. `multi` makes several
changes or none. An ephemeral node lives as long as its session. A path starts with `/`, has no empty part and no `/` at
its end. The root exists.

All methods block. `store_memory.MemoryStore` serves tests and the simulation. `store_sqlite.SqliteStore` serves the
brokers of one machine; they call it from worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ANY = -1
"""The version that matches every version."""


class StoreError(Exception):
    """A refused operation; `path` says at which node (or, for SessionExpiredError, which session)."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNodeError(StoreError):
    """The node, or the parent of one to be made, does not exist."""


class NodeExistsError(StoreError):
    """The node exists already."""


class BadVersionError(StoreError):
    """The node has another version: somebody else wrote it."""


class NotEmptyError(StoreError):
    """The node has children and cannot be deleted."""


class EphemeralParentError(StoreError):
    """Ephemeral nodes have no children."""


class SessionExpiredError(StoreError):
    """The session's lease is over or somebody opened one of the same owner; its ephemeral nodes are gone."""


class OutcomeUnknownError(StoreError):
    """The store failed in the middle of a write, which may or may not have happened."""


class UnavailableError(StoreError):
    """The store cannot be reached or written now; nothing happened."""


class Node(NamedTuple):
    """What a node holds. A new node has version 0; `session` is that of an ephemeral node."""

    data: bytes
    version: int
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; with `session` an ephemeral one. NodeExistsError, NoNodeError (parent),
    EphemeralParentError.
    """

    path: str
    data: bytes = b""
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """Write a node that has this version. NoNodeError, BadVersionError."""

    path: str
    data: bytes
    version: int = ANY


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node that has this version and no children. NoNodeError, BadVersionError, NotEmptyError."""

    path: str
    version: int = ANY


@dataclass(frozen=True, slots=True)
class Check:
    """Go on only if the node has this version. NoNodeError, BadVersionError."""

    path: str
    version: int = ANY


Operation = Create | Set | Delete | Check


class MetadataStore(Protocol):
    """See the module; `StoreError`s are raised where methods say so.

    Any method that writes may also raise UnavailableError or OutcomeUnknownError.
    """

    def get(self, path: str) -> Node:
        """The node; NoNodeError."""

    def exists(self, path: str) -> bool:
        """Whether there is such a node."""

    def children(self, path: str) -> list[str]:
        """The names (not paths) of the node's children, sorted; NoNodeError."""

    def create(self, path: str, data: bytes = b"", *, session: int | None = None) -> None:
        """As `multi` of one Create."""

    def set(self, path: str, data: bytes, version: int = ANY) -> int:
        """As `multi` of one Set; gives the new version."""

    def delete(self, path: str, version: int = ANY) -> None:
        """As `multi` of one Delete."""

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        """All operations in order, or none: the first that is refused raises. Durable when it returns.

        With `session` the whole is refused (SessionExpiredError) unless that session lives: a zombie changes
        nothing.
        """

    def open_session(self, owner: str, ttl_ms: int) -> int:
        """Opens a session that lives `ttl_ms` from its last `renew`; ends an earlier one of the same owner."""

    def renew(self, session: int) -> None:
        """Prolongs a session; SessionExpiredError."""

    def close_session(self, session: int) -> None:
        """Ends a session and deletes its ephemeral nodes; nothing happens if it is over already."""

    def watch(self, path: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """Lets `poll` call `callback(path)` when the node came, went, was set, or its children came or went.

        Changes since the last `poll` are one call; gives a function that ends the watch. The node need not
        exist.
        """

    def poll(self) -> None:
        """Ends sessions whose time is over, then calls the watches of what changed, in this thread."""

    def close(self) -> None:
        """Gives files back; ephemeral nodes stay until their session ends."""


def ensure(store: MetadataStore, path: str) -> None:
    """Makes the node and its ancestors, empty, where they are missing."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        ancestor = "/" + "/".join(parts[:depth])
        try:
            store.create(ancestor)
        except NodeExistsError:
            continue


def parent_of(path: str) -> str:
    """The path of the parent: `/` for `/a`."""
    return path.rpartition("/")[0] or "/"


class Row(NamedTuple):
    """A stored node: with the numbers of the changes that last touched it and the set of its children."""

    node: Node
    changed: int
    children_changed: int


class Rows(Protocol):
    """What `apply` needs from a store, inside one transaction of it."""

    def find(self, path: str) -> Row | None:
        """The row of a node, if it exists."""

    def put(self, path: str, row: Row) -> None:
        """Makes or replaces a row."""

    def remove(self, path: str) -> None:
        """Removes a row."""

    def names(self, path: str) -> list[str]:
        """The names of a node's children, sorted."""


def apply(rows: Rows, operation: Operation, change: int) -> None:
    """Carries out one operation as change number `change`; raises before it has touched anything."""
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
        raise ValueError(f"not a path of the tree: {path!r}")


class Watches:
    """The watches of one client of a tree: what each has seen last, and whom to call."""

    def __init__(self) -> None:
        self._watches: dict[int, tuple[str, Callable[[str], None], tuple[int, int] | None]] = {}
        self._next = 0

    def add(self, path: str, callback: Callable[[str], None], row: Row | None) -> Callable[[], None]:
        """Registers a watch that has seen `row`; gives a function that ends it."""
        number = self._next
        self._next += 1
        self._watches[number] = path, callback, _seen(row)

        def cancel() -> None:
            self._watches.pop(number, None)

        return cancel

    def changed(self, find: Callable[[str], Row | None]) -> list[tuple[Callable[[str], None], str]]:
        """The (callback, path) of every watch whose node is not what it saw last; they have now seen it."""
        calls = []
        for number, (path, callback, before) in list(self._watches.items()):
            seen = _seen(find(path))
            if seen != before:
                self._watches[number] = path, callback, seen
                calls.append((callback, path))
        return calls


def _seen(row: Row | None) -> tuple[int, int] | None:
    return None if row is None else (row.changed, row.children_changed)
