"""Settings that are changed while brokers run, in the versioned tree: `/config/topics/T`, `/config/brokers/N`.

`/config/brokers/<default>` has those of all brokers. The nodes are those of Kafka's ZooKeeper tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from oncelog.cluster.tree import BadVersionError, NodeExistsError, NoNodeError, Tree, TreeError
from oncelog.protocol.errors import ErrorCode, ProtocolError

BROKERS = "/config/brokers"
"""Its children are those brokers that have settings of their own, and `ALL_BROKERS`."""
ALL_BROKERS = "<default>"

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""From the settings that a node has to those that it is to have; ProtocolError where that may not be."""


class _ConfigNode(msgspec.Struct):
    config: dict[str, str]
    version: int = 1


def topic_path(name: str) -> str:
    """The node of a topic's own settings; it is made with the topic."""
    return f"/config/topics/{name}"


def broker_path(node_id: int | None) -> str:
    """The node of one broker's settings, or (None) of all brokers'; it need not exist."""
    return f"{BROKERS}/{ALL_BROKERS if node_id is None else node_id}"


def encode(config: Mapping[str, str]) -> bytes:
    """What a node holds."""
    return msgspec.json.encode(_ConfigNode(dict(config)))


def read(tree: Tree, path: str) -> dict[str, str]:
    """The settings in a node (blocking); NoNodeError."""
    return msgspec.json.decode(tree.get(path).data, type=_ConfigNode).config


def read_broker(tree: Tree, node_id: int | None) -> dict[str, str]:
    """Settings of one broker or of all (blocking); none without a node."""
    try:
        return read(tree, broker_path(node_id))
    except NoNodeError:
        return {}


def update_topic(tree: Tree, name: str, change: Change) -> dict[str, str]:
    """Changes a topic's settings (blocking) and gives them back; UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT."""
    try:
        return _update(tree, topic_path(name), change)
    except NoNodeError as error:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist") from error
    except TreeError as error:
        raise _not_now(error) from error


def update_broker(tree: Tree, node_id: int | None, change: Change) -> dict[str, str]:
    """Changes the settings of one broker or of all (blocking) and gives them back; REQUEST_TIMED_OUT."""
    path = broker_path(node_id)
    try:
        if not tree.exists(path):
            with suppress(NodeExistsError):  # another broker was quicker
                tree.create(path, encode({}))
        return _update(tree, path, change)
    except TreeError as error:
        raise _not_now(error) from error


def _update(tree: Tree, path: str, change: Change) -> dict[str, str]:
    while True:
        node = tree.get(path)
        wanted = change(msgspec.json.decode(node.data, type=_ConfigNode).config)
        with suppress(BadVersionError):  # somebody else was quicker: look again
            tree.set(path, encode(wanted), node.version)
            return wanted


def _not_now(error: TreeError) -> ProtocolError:
    return ProtocolError(ErrorCode.REQUEST_TIMED_OUT, f"the settings cannot be written now: {error!r}")
