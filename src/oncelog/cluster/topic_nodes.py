"""Read and write topics in the versioned tree, in the layout of Kafka's ZooKeeper tree. All functions block.

The nodes are `/brokers/topics/T`, `/brokers/topics/T/partitions/P/state` and `/config/topics/T`. A further node,
`/oncelog/topic_ids/ID`, is not in Kafka's tree. It is created and deleted with the topic. A write that requires it
changes no later topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import msgspec

from oncelog.cluster import configs
from oncelog.cluster.changes import PATH, ChangeLog, cannot_write
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    OutcomeUnknownError,
    Set,
    StoreError,
    read_children,
)
from oncelog.cluster.topics import (
    TOPIC_IDS,
    PartitionInfo,
    TopicInfo,
    parse_topic_id,
    topic_id_path,
    topic_id_text,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError

TOPICS = "/brokers/topics"
ADDED = "partitions"
"""The path below a topic that the change log names if a change has only added partitions."""


class _TopicNode(msgspec.Struct):
    partitions: dict[str, list[int]]
    topic_id: str
    version: int = 3
    adding_replicas: dict[str, list[int]] = {}
    removing_replicas: dict[str, list[int]] = {}


def complete_topic_ids(store: MetadataStore) -> None:
    """Create the nodes of topic ids that an older version of oncelog did not create, and delete those that it left."""
    while True:
        version = store.get(PATH).version  # each change of a topic increments it
        try:
            nodes = read_children(store, TOPICS).values()
            topics = {topic_id_path(parse_topic_id(_decode(node).topic_id)) for node in nodes}
            found = {f"{TOPIC_IDS}/{name}" for name in store.children(TOPIC_IDS)}
            operations: list[Operation] = [Create(path) for path in sorted(topics - found)]
            operations += [Delete(path) for path in sorted(found - topics)]
            if operations:
                store.multi([Check(PATH, version), *operations])
        except (NoNodeError, BadVersionError):
            continue  # another broker has changed a topic meanwhile
        return


def read_topic(store: MetadataStore, name: str) -> TopicInfo:
    """Read a topic. Raises NoNodeError if it does not exist or is deleted meanwhile."""
    node = _decoded(store, name)
    partitions = _read_partitions(store, name, node, 0)
    config = configs.read(store, configs.topic_path(name))
    return TopicInfo(name, parse_topic_id(node.topic_id), partitions, config)


def read_added_partitions(store: MetadataStore, topic: TopicInfo) -> TopicInfo:
    """Return the topic with its added partitions. Raises NoNodeError if the topic was deleted."""
    node = _decoded(store, topic.name)
    if node.topic_id != topic_id_text(topic.topic_id):
        raise NoNodeError(f"{TOPICS}/{topic.name}")
    added = _read_partitions(store, topic.name, node, topic.partition_count)
    return replace(topic, partitions=(*topic.partitions, *added))


def read_states(store: MetadataStore, topic: TopicInfo, indexes: Sequence[int]) -> TopicInfo:
    """Return the topic with the present states of these partitions.

    Raises NoNodeError if the topic was deleted, also if another topic has its name now.
    """
    partitions = list(topic.partitions)
    for index in indexes:
        if index >= len(partitions):
            raise NoNodeError(state_path(topic.name, index))
    if not indexes:
        return topic
    for index, state in zip(indexes, _read_states(store, topic.name, indexes), strict=True):
        partitions[index] = replace(partitions[index], state=state)
    store.get(topic_id_path(topic.topic_id))  # read last: the states before are not those of a later topic
    return replace(topic, partitions=tuple(partitions))


def read_state(store: MetadataStore, topic: str, topic_id: UUID, partition: int) -> PartitionState:
    """Read the state of a partition. Raises NoNodeError if the topic was deleted, also if another one has its name."""
    state = decode_state(store.get(state_path(topic, partition)))
    store.get(topic_id_path(topic_id))  # read last: the state before is not that of a later topic
    return state


def _decode(node: Node) -> _TopicNode:
    return msgspec.json.decode(node.data, type=_TopicNode)


def _decoded(store: MetadataStore, name: str) -> _TopicNode:
    return _decode(store.get(f"{TOPICS}/{name}"))


def _read_partitions(store: MetadataStore, name: str, node: _TopicNode, first: int) -> tuple[PartitionInfo, ...]:
    indexes = range(first, len(node.partitions))
    states = _read_states(store, name, indexes)
    replicas = (tuple(node.partitions[str(index)]) for index in indexes)
    return tuple(map(PartitionInfo, replicas, states))


def _read_states(store: MetadataStore, name: str, indexes: Sequence[int]) -> list[PartitionState]:
    paths = [state_path(name, index) for index in indexes]
    states = []
    for path, node in zip(paths, store.get_many(paths), strict=True):
        if node is None:
            raise NoNodeError(path)
        states.append(decode_state(node))
    return states


def write_topic(changes: ChangeLog, topic: TopicInfo) -> None:
    """Create all nodes of the topic, or none. Raises TOPIC_ALREADY_EXISTS, REQUEST_TIMED_OUT."""
    path = f"{TOPICS}/{topic.name}"
    assignment = {str(index): list(info.replicas) for index, info in enumerate(topic.partitions)}
    node = msgspec.json.encode(_TopicNode(assignment, topic_id_text(topic.topic_id)))
    operations = [
        Create(path, node),
        Create(topic_id_path(topic.topic_id)),
        Create(configs.topic_path(topic.name), configs.encode(topic.configs)),
        Create(f"{path}/partitions", b""),
        *_new_partitions(path, 0, topic.partitions),
    ]
    try:
        _write(changes, operations, path, lambda: changes.store.get(path).data == node)
    except NodeExistsError as error:
        message = f"topic {topic.name!r} already exists"
        raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, message) from error
    except StoreError as error:
        raise cannot_write("metadata", error) from error


def add_partitions(changes: ChangeLog, topic: TopicInfo, added: Sequence[PartitionInfo]) -> None:
    """Add all partitions to a topic, or none.

    Raises UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, and INVALID_PARTITIONS if another writer has added partitions.
    """
    path = f"{TOPICS}/{topic.name}"
    try:
        found = changes.store.get(path)
        node = _decode(found)
        if node.topic_id != topic_id_text(topic.topic_id):
            raise NoNodeError(path)
        if len(node.partitions) != topic.partition_count:
            message = f"topic {topic.name!r} now has {len(node.partitions)} partitions; another request has added some"
            raise ProtocolError(ErrorCode.INVALID_PARTITIONS, message)
        first = topic.partition_count
        node.partitions.update({str(first + index): list(info.replicas) for index, info in enumerate(added)})
        change = Set(path, msgspec.json.encode(node), found.version)
        operations: list[Operation] = [
            Check(topic_id_path(topic.topic_id)),
            change,
            *_new_partitions(path, first, added),
        ]
        _write(changes, operations, f"{path}/{ADDED}", lambda: changes.store.get(path).data == change.data)
    except NoNodeError as error:
        raise _unknown(topic) from error
    except StoreError as error:
        raise cannot_write("metadata", error) from error


def erase_topic(changes: ChangeLog, topic: TopicInfo) -> None:
    """Delete the topic with all its partitions, also those that other writers have added.

    Raises UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist, or if the name now belongs to another topic. Raises
    REQUEST_TIMED_OUT, also if another writer adds partitions meanwhile.
    """
    path = f"{TOPICS}/{topic.name}"
    try:
        _erase(changes, topic, path)
    except (NoNodeError, BadVersionError) as error:
        raise _unknown(topic) from error
    except StoreError as error:
        raise cannot_write("metadata", error) from error


def _erase(changes: ChangeLog, topic: TopicInfo, path: str) -> None:
    found = changes.store.get(path)
    node = _decode(found)
    if node.topic_id != topic_id_text(topic.topic_id):
        raise NoNodeError(path)
    operations: list[Delete] = []
    for index in range(len(node.partitions)):
        operations.append(Delete(f"{path}/partitions/{index}/state"))
        operations.append(Delete(f"{path}/partitions/{index}"))
    operations += [
        Delete(f"{path}/partitions"),
        Delete(path, found.version),
        Delete(topic_id_path(topic.topic_id)),
        Delete(configs.topic_path(topic.name)),
    ]
    _write(changes, operations, path, lambda: not changes.store.exists(path))


def _write(changes: ChangeLog, operations: Sequence[Operation], path: str, is_done: Callable[[], bool]) -> None:
    """Carry out all operations or none. If the outcome is unknown, read the tree to find out."""
    try:
        changes.write(operations, path)
    except OutcomeUnknownError as error:
        try:
            done = is_done()
        except NoNodeError:
            done = False
        if not done:
            raise error from None


def _new_partitions(path: str, first: int, infos: Sequence[PartitionInfo]) -> list[Create]:
    operations = []
    for index, info in enumerate(infos, first):
        operations.append(Create(f"{path}/partitions/{index}", b""))
        operations.append(Create(f"{path}/partitions/{index}/state", encode_state(info.state)))
    return operations


def _unknown(topic: TopicInfo) -> ProtocolError:
    return ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} does not exist")
