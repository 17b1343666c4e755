"""Describe the registered brokers, and read their nodes in the versioned tree. Functions that take a store block.

A running broker has the ephemeral node `/brokers/ids/B`, with the fields of Kafka's ZooKeeper tree and a few of ours.
The node `/oncelog/broker_epochs/B` remains when the broker stops, and has its rack. Each registration sets it, so its
version is the broker epoch. The controller has the ephemeral node `/controller`, also with Kafka's fields.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from oncelog.cluster.store import MetadataStore, NoNodeError, read_children
from oncelog.protocol.addresses import bracketed, parse_address
from oncelog.protocol.topics import TopicPartition

BROKERS = "/brokers/ids"
BROKER_EPOCHS = "/oncelog/broker_epochs"
BOOTS = "/oncelog/boots"
"""The parent of the nodes in which each broker notes what its log directories may have lost."""
CONTROLLER = "/controller"
NO_BROKER = -1

_log = logging.getLogger("oncelog.cluster")


class Endpoint(NamedTuple):
    """The address of a listener, as clients must use it. `protocol` is Kafka's security protocol."""

    host: str
    port: int
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered broker."""

    epoch: int
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """The listeners by name."""
    rack: str | None = None
    shutting_down: bool = False
    """The broker stops soon: it keeps leading only what no other broker can lead."""
    lost_unsynced: bool = False
    """Records that it had acknowledged may be missing. It must leave each ISR first, except those of `intact`.

    Its machine has crashed, a log directory of its last process has failed, or recovery has found fewer records than
    were committed.
    """
    intact: frozenset[TopicPartition] = frozenset()
    """With `lost_unsynced`: the partitions that lack no record, because their log directory has lost nothing."""
    offline: frozenset[TopicPartition] = frozenset()
    """The partitions that are in its failed log directories."""
    lost_logs: frozenset[TopicPartition] = frozenset()
    """The partitions whose log the broker has lost with a disk, and whose ISR it has not left yet.

    It must leave these ISRs before it fetches the records again. It leads such a partition only after an unclean
    election.
    """
    starting: bool = False
    """It has not opened all logs in whose ISR it is, so it does not know yet whether they are complete.

    Meanwhile, it is not elected, except for partitions that have no other replica.
    """
    incomplete: frozenset[TopicPartition] = frozenset()
    """The partitions whose log was opened and found to lack records, and whose ISR it has not left yet."""

    def may_lack(self, topic: str, partition: int) -> bool:
        """Return whether acknowledged records of a partition may be missing."""
        key = topic, partition
        return key in self.incomplete or (self.lost_unsynced and key not in self.intact)

    def is_unfit(self, topic: str, partition: int) -> bool:
        """Return whether the replica of a partition is lost, or acknowledged records of it may be missing."""
        return (topic, partition) in self.lost_logs or self.may_lack(topic, partition)


class _BrokerNode(msgspec.Struct, omit_defaults=True):
    listener_security_protocol_map: dict[str, str]
    endpoints: list[str]
    host: str | None
    port: int
    epoch: int
    version: int
    rack: str | None = None
    shutting_down: bool = False
    lost_unsynced: bool = False
    intact: list[TopicPartition] = []
    offline: list[TopicPartition] = []
    lost_logs: list[TopicPartition] = []
    starting: bool = False
    incomplete: list[TopicPartition] = []


class _ControllerNode(msgspec.Struct):
    brokerid: int
    version: int = 1


def broker_path(broker: int) -> str:
    """Return the path of a broker's registration."""
    return f"{BROKERS}/{broker}"


def epoch_path(broker: int) -> str:
    """Return the path of the node whose version is the broker epoch."""
    return f"{BROKER_EPOCHS}/{broker}"


def encode_broker(info: BrokerInfo) -> bytes:
    """Return the content of the broker's node."""
    plaintext = next((each for each in info.endpoints.values() if each.protocol == "PLAINTEXT"), None)
    return msgspec.json.encode(
        _BrokerNode(
            {name: each.protocol for name, each in info.endpoints.items()},
            [f"{name}://{bracketed(each.host)}:{each.port}" for name, each in info.endpoints.items()],
            plaintext.host if plaintext is not None else None,
            plaintext.port if plaintext is not None else -1,
            info.epoch,
            version=5,
            rack=info.rack,
            shutting_down=info.shutting_down,
            lost_unsynced=info.lost_unsynced,
            intact=sorted(info.intact),
            offline=sorted(info.offline),
            lost_logs=sorted(info.lost_logs),
            starting=info.starting,
            incomplete=sorted(info.incomplete),
        )
    )


def decode_broker(data: bytes) -> BrokerInfo:
    """Return the broker in a node. Raises msgspec.MsgspecError or ValueError if the content is invalid."""
    node = msgspec.json.decode(data, type=_BrokerNode)
    endpoints = {}
    for text in node.endpoints:
        name, _, address = text.partition("://")
        found = parse_address(address)
        if found is None:
            raise ValueError(f"{text!r} is not NAME://HOST:PORT")
        protocol = node.listener_security_protocol_map.get(name, name)
        endpoints[name] = Endpoint(*found, protocol)
    return BrokerInfo(
        node.epoch,
        endpoints,
        node.rack,
        node.shutting_down,
        node.lost_unsynced,
        frozenset(node.intact),
        frozenset(node.offline),
        frozenset(node.lost_logs),
        node.starting,
        frozenset(node.incomplete),
    )


def encode_controller(broker: int) -> bytes:
    """Return the content of the controller's node."""
    return msgspec.json.encode(_ControllerNode(broker))


def read_controller(store: MetadataStore) -> int:
    """Return the id of the broker that is the controller, or -1 if none is."""
    try:
        return msgspec.json.decode(store.get(CONTROLLER).data, type=_ControllerNode).brokerid
    except NoNodeError:
        return NO_BROKER


def read_registrations(store: MetadataStore) -> dict[int, BrokerInfo]:
    """Return all registered brokers by id. Registrations that cannot be decoded are logged and omitted."""
    found = {}
    for name, node in read_children(store, BROKERS).items():
        try:
            found[int(name)] = decode_broker(node.data)
        except (msgspec.MsgspecError, ValueError) as error:
            _log.error("cannot read the registration of broker %s: %s", name, error)
    return found


def read_racks(store: MetadataStore) -> dict[int, str | None]:
    """Return the rack, or None, of each broker that has ever been registered, as of its last registration."""
    return {int(name): node.data.decode() or None for name, node in read_children(store, BROKER_EPOCHS).items()}
