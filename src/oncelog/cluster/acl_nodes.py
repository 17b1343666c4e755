"""Store ACLs in the versioned tree. Reads and writes block.

Each ACL is a node `/kafka-acl/HASH`, whose name is a hash of the ACL. (Kafka's ZooKeeper tree has one node for each
resource, but a name of a group may have characters that no path allows.)
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from oncelog.cluster.acls import UNREADABLE, Acl, AclSet, Unreadable
from oncelog.cluster.changes import ChangeLog, cannot_write
from oncelog.cluster.store import (
    BadVersionError,
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    StoreError,
    read_children,
)

ACLS = "/kafka-acl"
"""The parent of all ACLs."""
MOST_NAMED = 1_000
"""If one change touches more ACLs, it logs only `ACLS`, and all brokers compare the names of all nodes."""

_log = logging.getLogger("oncelog.cluster")


_VERSION = 1


class _AclNode(msgspec.Struct):
    """The numbers are those on the wire."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int
    version: int = _VERSION


def node_name(acl: Acl) -> str:
    """Return the name of an ACL's node."""
    return hashlib.sha256(msgspec.json.encode(acl)).hexdigest()[:32]


def read_all(store: MetadataStore) -> dict[str, Acl | Unreadable]:
    """Return all ACLs by the names of their nodes. A damaged node is logged."""
    return {name: _read(name, node) for name, node in read_children(store, ACLS).items()}


def read_changed(store: MetadataStore, names: Sequence[str]) -> dict[str, Acl | Unreadable | None]:
    """Return the ACLs in these nodes. The value of a node that does not exist is None."""
    nodes = store.get_many([_path(name) for name in names])
    return {name: None if node is None else _read(name, node) for name, node in zip(names, nodes, strict=True)}


def read_newest(store: MetadataStore, known: AclSet) -> dict[str, Acl | Unreadable | None]:
    """Return what has changed since `known`, as `read_changed` does.

    The name of a node depends on its content, so only new nodes and damaged ones are read. To read 100,000 nodes, and
    to free as many former ACLs, would block the event loop for 60 ms.
    """
    names = store.children(ACLS)
    present = frozenset(names)
    gone = [name for name in (*known.by_node, *known.unreadable) if name not in present]
    return {
        **read_changed(store, [name for name in names if name not in known.by_node]),
        **dict.fromkeys(gone),
    }


def touched(paths: Iterable[str]) -> list[str] | None:
    """Return the names of the nodes that changes touched, or None if `read_newest` must find them."""
    names = []
    for path in paths:
        if path == ACLS:
            return None
        if path.startswith(f"{ACLS}/"):
            names.append(path[len(ACLS) + 1 :])
    return names


def create(log: ChangeLog, acls: Mapping[str, Acl]) -> None:
    """Create all these ACLs or none, by the names of their nodes. Existing ones are left, and damaged ones repaired.

    Raises REQUEST_TIMED_OUT.
    """

    def change(name: str, node: Node | None) -> Operation | None:
        if node is None:
            return Create(_path(name), _encode(acls[name]))
        if _decode(name, node) is UNREADABLE:
            return Set(_path(name), _encode(acls[name]), node.version)
        return None

    _write(log, list(acls), change)


def delete(log: ChangeLog, names: Iterable[str]) -> None:
    """Delete the ACLs in all these nodes or none. Missing ones are ignored. Raises REQUEST_TIMED_OUT."""
    _write(log, list(names), lambda name, node: None if node is None else Delete(_path(name)))


def _write(log: ChangeLog, names: Sequence[str], change: Callable[[str, Node | None], Operation | None]) -> None:
    """Write the changes that `change` returns for these nodes and their present contents."""
    while True:
        nodes = log.store.get_many([_path(name) for name in names])
        found = [change(name, node) for name, node in zip(names, nodes, strict=True)]
        due = [operation for operation in found if operation is not None]
        if not due:
            return
        paths = [operation.path for operation in due] if len(due) <= MOST_NAMED else [ACLS]
        try:
            log.write(due, *paths)
        except (NodeExistsError, NoNodeError, BadVersionError) as error:  # another writer was faster
            if error.path == ACLS or not log.store.exists(ACLS):
                raise cannot_write("ACLs", error) from error
        except StoreError as error:
            raise cannot_write("ACLs", error) from error
        else:
            return


def _path(name: str) -> str:
    return f"{ACLS}/{name}"


def _encode(acl: Acl) -> bytes:
    return msgspec.json.encode(_AclNode(*acl))


def _read(name: str, node: Node) -> Acl | Unreadable:
    """Return the ACL in a node, and log if the node is damaged."""
    acl = _decode(name, node)
    if acl is UNREADABLE:
        _log.error(
            "cannot read the ACL in %s: the node is damaged. Until it is repaired, only super users may do anything. "
            "To repair it, create the same ACL again, or delete all ACLs and create them again",
            _path(name),
        )
    return acl


def _decode(name: str, node: Node) -> Acl | Unreadable:
    """Return the ACL in a node. The name of the node depends on the whole ACL, so it shows if a value is damaged."""
    try:
        found = msgspec.json.decode(node.data, type=_AclNode)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return UNREADABLE
    acl = Acl(found.resource, found.name, found.pattern, found.principal, found.host, found.operation, found.permission)
    return acl if found.version == _VERSION and node_name(acl) == name else UNREADABLE
