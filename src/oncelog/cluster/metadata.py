"""Topics as the whole cluster knows them: the image in memory and its home in the versioned tree.

The tree is laid out as Kafka's ZooKeeper tree: `/brokers/ids/N`, `/brokers/topics/T`,
`/brokers/topics/T/partitions/P/state`, `/config/topics/T`, `/cluster/id`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from oncelog.cluster import configs
from oncelog.cluster.tree import (
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    OutcomeUnknownError,
    Set,
    Tree,
    TreeError,
    ensure,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE

TOPIC_NAME_MAX = 249
MAX_NEW_PARTITIONS = 10_000
"""Partitions that one request may create, all its topics together (POLICY_VIOLATION), as in Kafka's controller."""
NO_LEADER = -1
"""The leader of a partition that has none, as clients are told."""
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who has a partition and who leads it; broker ids."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic; `configs` are its overrides only."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return len(self.partitions)

    @property
    def internal(self) -> bool:
        """True for the coordinators' own topics."""
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless `name` is legal (Kafka's `Topic.validate`)."""
    reason = None
    if not name:
        reason = "is empty"
    elif name in (".", ".."):
        reason = "cannot be '.' or '..'"
    elif len(name) > TOPIC_NAME_MAX:
        reason = f"has {len(name)} characters, {TOPIC_NAME_MAX} at most are allowed"
    elif not _NAME_CHARACTERS.issuperset(name):
        reason = "may hold only ASCII letters, digits, '.', '_' and '-'"
    if reason is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:260]!r} {reason}")


def _folded(name: str) -> str:
    """Return the common name of all topics whose metrics would collide."""
    return name.replace(".", "_")


def topic_id_text(topic_id: UUID) -> str:
    """Kafka's `Uuid.toString`: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> UUID:
    """The reverse of `topic_id_text`."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


class _TopicNode(msgspec.Struct):
    partitions: dict[str, list[int]]
    topic_id: str
    version: int = 3
    adding_replicas: dict[str, list[int]] = {}
    removing_replicas: dict[str, list[int]] = {}


class _StateNode(msgspec.Struct):
    leader: int
    leader_epoch: int
    isr: list[int]
    controller_epoch: int = 0
    version: int = 1


class Topics:
    """Every topic, by name and by id; changes go to the tree first, then to the image."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._by_name: dict[str, TopicInfo] = {}
        self._by_id: dict[UUID, TopicInfo] = {}
        self._by_folded: dict[str, dict[str, None]] = {}

    # -- the image --------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        """The topic of that id."""
        return self._by_id.get(topic_id)

    def topics(self) -> Iterator[TopicInfo]:
        """All topics, by name."""
        for name in sorted(self._by_name):
            yield self._by_name[name]

    def colliding(self, name: str) -> str | None:
        """Return an existing topic whose name differs only in '.' and '_': their metrics would share a name."""
        return next((other for other in self._by_folded.get(_folded(name), ()) if other != name), None)

    def admit(self, topic: TopicInfo) -> None:
        """Put a topic into the image."""
        self._by_name[topic.name] = topic
        self._by_folded.setdefault(_folded(topic.name), {})[topic.name] = None
        self._by_id[topic.topic_id] = topic

    def forget(self, topic: TopicInfo) -> None:
        """Take a topic out of the image."""
        self._by_name.pop(topic.name, None)
        names = self._by_folded.get(_folded(topic.name), {})
        names.pop(topic.name, None)
        if not names:
            self._by_folded.pop(_folded(topic.name), None)
        self._by_id.pop(topic.topic_id, None)

    # -- the tree (blocking) ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads all topics from the tree."""
        for name in self._tree.children("/brokers/topics"):
            self.admit(self._read(name))

    def _read(self, name: str) -> TopicInfo:
        path = f"/brokers/topics/{name}"
        node = msgspec.json.decode(self._tree.get(path).data, type=_TopicNode)
        partitions = []
        for index in range(len(node.partitions)):
            state_data = self._tree.get(f"{path}/partitions/{index}/state").data
            state = msgspec.json.decode(state_data, type=_StateNode)
            replicas = tuple(node.partitions[str(index)])
            partitions.append(PartitionInfo(state.leader, state.leader_epoch, replicas, tuple(state.isr)))
        config = configs.read(self._tree, configs.topic_path(name))
        return TopicInfo(name, parse_topic_id(node.topic_id), tuple(partitions), config)

    def read(self, name: str) -> TopicInfo | None:
        """A topic as the tree has it: there is one that the image lacks where the answer to `write` was lost."""
        try:
            return self._read(name)
        except TreeError:
            return None

    def _change(self, changes: Sequence[Operation], is_done: Callable[[], bool]) -> None:
        """Makes changes, all or none. Where the answer is lost, the tree tells whether they were made."""
        try:
            self._tree.multi(changes)
        except OutcomeUnknownError as error:
            try:
                done = is_done()
            except NoNodeError:
                done = False
            if not done:
                raise error from None

    def write(self, topic: TopicInfo) -> None:
        """Creates the topic in the tree, all of it or nothing; TOPIC_ALREADY_EXISTS, REQUEST_TIMED_OUT."""
        path = f"/brokers/topics/{topic.name}"
        assignment = {str(index): list(info.replicas) for index, info in enumerate(topic.partitions)}
        node = _TopicNode(assignment, topic_id_text(topic.topic_id))
        changes: list[Create] = [
            Create(path, msgspec.json.encode(node)),
            Create(configs.topic_path(topic.name), configs.encode(topic.configs)),
            Create(f"{path}/partitions", b""),
            *_new_partitions(path, 0, topic.partitions),
        ]
        try:
            self._change(changes, lambda: self._tree.get(path).data == msgspec.json.encode(node))
        except NodeExistsError as error:
            message = f"topic {topic.name!r} already exists"
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, message) from error
        except TreeError as error:
            raise _not_now(error) from error

    def add_partitions(self, topic: TopicInfo, added: Sequence[PartitionInfo]) -> TopicInfo:
        """Adds partitions to the topic in the tree, all or none, and gives the topic as it is then.

        UNKNOWN_TOPIC_OR_PARTITION; INVALID_PARTITIONS when somebody else was quicker; REQUEST_TIMED_OUT.
        """
        path = f"/brokers/topics/{topic.name}"
        try:
            found = self._tree.get(path)
            node = msgspec.json.decode(found.data, type=_TopicNode)
            if node.topic_id != topic_id_text(topic.topic_id):
                raise NoNodeError(path)
            if len(node.partitions) != topic.partition_count:
                message = f"topic {topic.name!r} has {len(node.partitions)} partitions by now"
                raise ProtocolError(ErrorCode.INVALID_PARTITIONS, message)
            first = topic.partition_count
            node.partitions.update({str(first + index): list(info.replicas) for index, info in enumerate(added)})
            change = Set(path, msgspec.json.encode(node), found.version)
            changes: list[Operation] = [change, *_new_partitions(path, first, added)]
            self._change(changes, lambda: self._tree.get(path).data == change.data)
        except NoNodeError as error:
            message = f"topic {topic.name!r} does not exist"
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message) from error
        except TreeError as error:
            raise _not_now(error) from error
        return replace(topic, partitions=(*topic.partitions, *added))

    def erase(self, topic: TopicInfo) -> None:
        """Deletes the topic from the tree; UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT."""
        path = f"/brokers/topics/{topic.name}"
        changes: list[Delete] = []
        for index in range(topic.partition_count):
            changes.append(Delete(f"{path}/partitions/{index}/state"))
            changes.append(Delete(f"{path}/partitions/{index}"))
        changes += [Delete(f"{path}/partitions"), Delete(path), Delete(configs.topic_path(topic.name))]
        try:
            self._change(changes, lambda: not self._tree.exists(path))
        except NoNodeError as error:
            message = f"topic {topic.name!r} does not exist"
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message) from error
        except TreeError as error:
            raise _not_now(error) from error

    def prepare(self) -> None:
        """Makes the tree's fixed nodes where they are missing."""
        for path in ("/brokers/ids", "/brokers/topics", "/config/topics", "/config/brokers", "/cluster"):
            ensure(self._tree, path)

    def is_new(self) -> bool:
        """Whether there is no cluster yet."""
        return not self._tree.exists("/cluster/id")

    def cluster_id(self, proposal: str) -> str:
        """The cluster's id; `proposal` becomes it in a new cluster."""
        if not self._tree.exists("/cluster/id"):
            self._tree.create("/cluster/id", msgspec.json.encode({"version": "1", "id": proposal}))
        return str(msgspec.json.decode(self._tree.get("/cluster/id").data, type=dict[str, str])["id"])


def _new_partitions(path: str, first: int, infos: Sequence[PartitionInfo]) -> list[Create]:
    changes = []
    for index, info in enumerate(infos, first):
        state = _StateNode(info.leader, info.leader_epoch, list(info.isr))
        changes.append(Create(f"{path}/partitions/{index}", b""))
        changes.append(Create(f"{path}/partitions/{index}/state", msgspec.json.encode(state)))
    return changes


def _not_now(error: TreeError) -> ProtocolError:
    """What clients of Kafka are told when its controller does not answer: try again."""
    return ProtocolError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata cannot be written now: {error!r}")


def assign(
    partitions: int, replication_factor: int, brokers: Sequence[int], *, first: int = 0
) -> list[tuple[int, ...]]:
    """Replicas of each new partition from number `first` on, round robin over the brokers.

    INVALID_REPLICATION_FACTOR with too few brokers.
    """
    if replication_factor > len(brokers):
        message = f"replication factor {replication_factor} is larger than the {len(brokers)} available broker(s)"
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    count = len(brokers)
    numbers = range(first, first + partitions)
    return [tuple(brokers[(p + r) % count] for r in range(replication_factor)) for p in numbers]
