"""Store the settings of topics and brokers in the versioned tree. Reads and writes block.

The nodes are `/config/topics/T`, `/config/brokers/N`, and `/config/brokers/<default>` for the settings of all brokers.
Kafka's ZooKeeper tree has the same nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from oncelog.cluster.changes import ChangeLog, cannot_write
from oncelog.cluster.store import (
    BadVersionError,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    Set,
    StoreError,
    read_children,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError

BROKERS = "/config/brokers"
"""The parent of `ALL_BROKERS` and of the nodes of the brokers that have their own settings."""
ALL_BROKERS = "<default>"

_log = logging.getLogger("oncelog.cluster")

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""Map the current settings to the requested ones. Raises ProtocolError if the change is illegal."""


class _ConfigNode(msgspec.Struct):
    config: dict[str, str]
    version: int = 1


def topic_path(name: str) -> str:
    """Return the path of a topic's own settings. The node is created with the topic."""
    return f"/config/topics/{name}"


def broker_path(node_id: int | None) -> str:
    """Return the path of one broker's settings, or of all brokers' if `node_id` is None. The node need not exist."""
    return f"{BROKERS}/{ALL_BROKERS if node_id is None else node_id}"


def encode(config: Mapping[str, str]) -> bytes:
    """Encode settings as the content of a node."""
    return msgspec.json.encode(_ConfigNode(dict(config)))


def read(store: MetadataStore, path: str) -> dict[str, str]:
    """Read the settings in a node. Raises NoNodeError, and msgspec.MsgspecError if they cannot be decoded."""
    return decode(store.get(path))


def decode(node: Node) -> dict[str, str]:
    """Return the settings in a node. Raises msgspec.MsgspecError."""
    try:
        return msgspec.json.decode(node.data, type=_ConfigNode).config
    except UnicodeDecodeError as error:  # msgspec passes it on
        raise msgspec.DecodeError(str(error)) from None


def decode_for_change(path: str, node: Node | None) -> dict[str, str] | None:
    """Return the settings in a node that is to be changed. None if it is damaged, so the change replaces it."""
    if node is None or not node.data:
        return {}
    try:
        return decode(node)
    except msgspec.MsgspecError:
        _log.error("replacing the settings in %s, because the node is damaged", path)
        return None


def read_brokers(store: MetadataStore) -> dict[int | None, dict[str, str]]:
    """Return the dynamic settings by broker id. The key None holds the settings of all brokers.

    Settings that cannot be read are logged and omitted.
    """
    found: dict[int | None, dict[str, str]] = {}
    for name, node in read_children(store, BROKERS).items():
        try:
            found[None if name == ALL_BROKERS else int(name)] = decode(node)
        except (msgspec.MsgspecError, ValueError) as error:
            _log.error("cannot read the settings of broker %s: %s", name, error)
    return found


def update_topic(changes: ChangeLog, name: str, change: Change) -> dict[str, str]:
    """Change a topic's settings and return them. Raises UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT.

    Also raises the ProtocolError of `change`.
    """
    try:
        return _update(changes, topic_path(name), change)
    except NoNodeError as error:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist") from error
    except StoreError as error:
        raise cannot_write("settings", error) from error


def update_broker(changes: ChangeLog, node_id: int | None, change: Change) -> dict[str, str]:
    """Change the settings of one broker, or of all if `node_id` is None, and return them. Raises REQUEST_TIMED_OUT.

    Also raises the ProtocolError of `change`.
    """
    path = broker_path(node_id)
    try:
        if not changes.store.exists(path):
            with suppress(NodeExistsError):  # another broker has created the node first
                changes.store.create(path, encode({}))
        return _update(changes, path, change)
    except StoreError as error:
        raise cannot_write("settings", error) from error


def _update(changes: ChangeLog, path: str, change: Change) -> dict[str, str]:
    while True:
        node = changes.store.get(path)
        wanted = change(decode(node))
        with suppress(BadVersionError):  # another writer has changed the node: read it again
            changes.write([Set(path, encode(wanted), node.version)], path)
            return wanted
