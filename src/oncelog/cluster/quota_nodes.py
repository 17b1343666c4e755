"""Store client quotas in the versioned tree. Reads and writes block.

The nodes are those of Kafka's ZooKeeper tree: `/config/users/U`, `/config/clients/C`, `/config/users/U/clients/C` and
`/config/ips/IP`, with `<default>` as the name of a default. In the path, a name is percent-encoded. A user's node also
has the user's SCRAM credentials, which this module leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import quote, unquote

import msgspec

from oncelog.cluster import configs
from oncelog.cluster.changes import ChangeLog, until_written
from oncelog.cluster.quotas import DEFAULT, QuotaEntity, check_entity, check_value
from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    Node,
    NoNodeError,
    Operation,
    Set,
    parent_of,
    read_children,
)
from oncelog.cluster.users import CLIENTS_OF_USER, DEFAULT_NODE, USERS
from oncelog.protocol.errors import ProtocolError

CLIENTS = "/config/clients"
IPS = "/config/ips"
MOST_NAMED = 1_000
"""If one change touches more entities, it logs only `CLIENTS`, and all brokers read all quotas."""

Wanted = Mapping[QuotaEntity, Mapping[str, float | None]]
"""By entity: the quotas to set by their keys, None to remove one."""

_log = logging.getLogger("oncelog.cluster")


def _encoded(name: str) -> str:
    return DEFAULT_NODE if name == DEFAULT else quote(name, safe="")


def _decoded(name: str) -> str:
    return DEFAULT if name == DEFAULT_NODE else unquote(name)


def path_of(entity: QuotaEntity) -> str:
    """Return the path of an entity's quotas. The entity is legal."""
    if entity.ip is not None:
        return f"{IPS}/{_encoded(entity.ip)}"
    if entity.user is None:
        assert entity.client_id is not None
        return f"{CLIENTS}/{_encoded(entity.client_id)}"
    path = f"{USERS}/{_encoded(entity.user)}"
    return path if entity.client_id is None else f"{path}/{CLIENTS_OF_USER}/{_encoded(entity.client_id)}"


def entity_at(path: str) -> QuotaEntity | None:
    """Return the entity with its quotas at this path, or None if the path can have none."""
    match path.split("/"):
        case ["", "config", "users", user]:
            return QuotaEntity(user=_decoded(user))
        case ["", "config", "users", user, "clients", client_id]:
            return QuotaEntity(user=_decoded(user), client_id=_decoded(client_id))
        case ["", "config", "clients", client_id]:
            return QuotaEntity(client_id=_decoded(client_id))
        case ["", "config", "ips", ip]:
            return QuotaEntity(ip=_decoded(ip))
    return None


def touched(paths: Iterable[str]) -> list[str] | None:
    """Return those of the paths that may have quotas, or None if all quotas must be read."""
    found = []
    for path in paths:
        if path == CLIENTS:
            return None
        if entity_at(path) is not None:
            found.append(path)
    return found


def read_all(store: MetadataStore) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of all entities. Those that cannot be read are logged and omitted."""
    found: dict[QuotaEntity, dict[str, float]] = {}
    for parent in (USERS, CLIENTS, IPS):
        found |= _below(store, parent)
    users = [f"{USERS}/{name}/{CLIENTS_OF_USER}" for name in store.children(USERS)]
    for path, node in zip(users, store.get_many(users), strict=True):
        if node is not None:
            with suppress(NoNodeError):  # deleted meanwhile
                found |= _below(store, path)
    return found


def _below(store: MetadataStore, parent: str) -> dict[QuotaEntity, dict[str, float]]:
    nodes = ((f"{parent}/{name}", node) for name, node in read_children(store, parent).items())
    read = ((entity_at(path), _values(path, node)) for path, node in nodes)
    return {entity: values for entity, values in read if entity is not None and values}


def read_changed(store: MetadataStore, paths: list[str]) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas at these paths. An entity without quotas has none."""
    nodes = store.get_many(paths)
    read = ((entity_at(path), _values(path, node)) for path, node in zip(paths, nodes, strict=True))
    return {entity: values for entity, values in read if entity is not None}


def _values(path: str, node: Node | None) -> dict[str, float]:
    """Return the legal quotas in a node, and log the others. Settings that are no quotas are ignored."""
    entity = entity_at(path)
    if node is None or entity is None or not node.data:
        return {}
    try:
        check_entity(entity)
        settings = configs.decode(node)
    except (msgspec.MsgspecError, ProtocolError):
        _log.error("cannot read the quotas in %s", path)
        return {}
    found = {}
    for key, text in settings.items():
        if key.startswith("SCRAM-"):
            continue
        try:
            value = float(text)
            check_value(entity, key, value)
        except (ValueError, ProtocolError):
            _log.error("ignoring the setting %r in %s, because its name or value is invalid", key, path)
        else:
            found[key] = value
    return found


def update(changes: ChangeLog, wanted: Wanted) -> None:
    """Set and remove all these quotas, or none. Raises REQUEST_TIMED_OUT."""

    def write() -> None:
        operations, paths = _operations(changes.store, wanted)
        if operations:
            changes.write(operations, *(paths if len(paths) <= MOST_NAMED else [CLIENTS]))

    until_written("quotas", write)


def _operations(store: MetadataStore, wanted: Wanted) -> tuple[list[Operation], list[str]]:
    """Return how to make the changes, and the paths of the entities that change."""
    paths = {path_of(entity): values for entity, values in wanted.items()}
    nodes = dict(zip(paths, store.get_many([*paths]), strict=True))
    before = {path: configs.decode_for_change(path, nodes[path]) for path in paths}
    after = {path: _after(before[path] or {}, values) for path, values in paths.items()}
    due = [path for path in paths if after[path] != before[path]]
    parents = _missing_parents(store, [path for path in due if nodes[path] is None])
    needed = {parent_of(parent_of(path)) for path in due if nodes[path] is None} | {*parents}
    operations: list[Operation] = [
        Create(path, configs.encode({})) for path in parents if not (path in nodes and path in due)
    ]
    for path in sorted(due, key=len):  # a user before the user's clients
        node, settings = nodes[path], after[path]
        if node is None:
            operations.append(Create(path, configs.encode(settings)))
        elif settings or path in needed or _has_clients(store, path):
            operations.append(Set(path, configs.encode(settings), node.version))
        else:
            operations.append(Delete(path, node.version))
    return sorted(operations, key=lambda each: (not isinstance(each, Create), len(each.path.split("/")))), due


def _after(before: Mapping[str, str], values: Mapping[str, float | None]) -> dict[str, str]:
    after = dict(before)
    for key, value in values.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = str(round(value)) if value == round(value) else repr(value)
    return after


def _missing_parents(store: MetadataStore, paths: Iterable[str]) -> list[str]:
    """Return the ancestors of new nodes that do not exist, parents before children."""
    ancestors: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        ancestors.update({"/".join(parts[:depth]): None for depth in range(2, len(parts))})
    nodes = store.get_many([*ancestors])
    return [path for path, node in zip(ancestors, nodes, strict=True) if node is None]


def _has_clients(store: MetadataStore, path: str) -> bool:
    return path.startswith(f"{USERS}/") and store.exists(f"{path}/{CLIENTS_OF_USER}")
