"""Store ACLs in the versioned tree. Reads and writes block.

Each ACL is a node `/kafka-acl/HASH`, whose name is a hash of the ACL. (Kafka's ZooKeeper tree has one node for each
resource, but a name of a group may have characters that no path allows.)
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from oncelog.cluster.acls import Acl
from oncelog.cluster.changes import ChangeLog, cannot_write
from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    StoreError,
    read_children,
)

ACLS = "/kafka-acl"
"""The parent of all ACLs."""
MOST_NAMED = 1_000
"""If one change touches more ACLs, it logs only `ACLS`, and all brokers read all ACLs."""

_log = logging.getLogger("oncelog.cluster")


class _AclNode(msgspec.Struct):
    """The numbers are those on the wire."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int
    version: int = 1


def node_name(acl: Acl) -> str:
    """Return the name of an ACL's node."""
    return hashlib.sha256(msgspec.json.encode(acl)).hexdigest()[:32]


def read_all(store: MetadataStore) -> dict[str, Acl]:
    """Return all ACLs by the names of their nodes. An ACL that cannot be read is logged and omitted."""
    found = {name: _decode(name, node) for name, node in read_children(store, ACLS).items()}
    return {name: acl for name, acl in found.items() if acl is not None}


def read_changed(store: MetadataStore, names: Sequence[str]) -> dict[str, Acl | None]:
    """Return the ACLs in these nodes. The value of a node that does not exist is None."""
    nodes = store.get_many([_path(name) for name in names])
    return {name: None if node is None else _decode(name, node) for name, node in zip(names, nodes, strict=True)}


def touched(paths: Iterable[str]) -> list[str] | None:
    """Return the names of the nodes that changes touched, or None if all ACLs must be read."""
    names = []
    for path in paths:
        if path == ACLS:
            return None
        if path.startswith(f"{ACLS}/"):
            names.append(path[len(ACLS) + 1 :])
    return names


def create(log: ChangeLog, acls: Mapping[str, Acl]) -> None:
    """Create all these ACLs or none, by the names of their nodes. Existing ones are left. Raises REQUEST_TIMED_OUT."""
    _write(log, {name: Create(_path(name), _encode(acl)) for name, acl in acls.items()})


def delete(log: ChangeLog, names: Iterable[str]) -> None:
    """Delete the ACLs in all these nodes or none. Missing ones are ignored. Raises REQUEST_TIMED_OUT."""
    _write(log, {name: Delete(_path(name)) for name in names})


def _write(log: ChangeLog, wanted: Mapping[str, Operation]) -> None:
    while True:
        nodes = log.store.get_many([operation.path for operation in wanted.values()])
        due = [
            operation
            for operation, node in zip(wanted.values(), nodes, strict=True)
            if (node is None) == isinstance(operation, Create)
        ]
        if not due:
            return
        paths = [operation.path for operation in due] if len(due) <= MOST_NAMED else [ACLS]
        try:
            log.write(due, *paths)
        except (NodeExistsError, NoNodeError) as error:  # another writer has created or deleted one meanwhile
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


def _decode(name: str, node: Node) -> Acl | None:
    try:
        found = msgspec.json.decode(node.data, type=_AclNode)
    except msgspec.MsgspecError as error:
        _log.error("cannot read the ACL in %s: %s", _path(name), error)
        return None
    return Acl(
        found.resource, found.name, found.pattern, found.principal, found.host, found.operation, found.permission
    )
