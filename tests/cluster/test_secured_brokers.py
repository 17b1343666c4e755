"""Three secured brokers: what a client without permission cannot do in a broker's name, and changed certificates."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from oncelog import Admin, errors
from oncelog.cluster.brokers import read_registrations
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from support.certificates import authority, signed_by
from support.permissions import Grant, grant
from support.processes import wait_until
from support.secured_cluster import ADMINISTRATOR, STRANGER, SecuredCluster
from support.wire import Session, Wire, batch, until

TOPIC = "t"
BETWEEN_BROKERS = frozenset({4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 70, 73, 82})
"""Kafka's APIs that only its brokers and controllers call, and which oncelog's brokers do not have.

LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, the quorum's, AlterPartition, Envelope, FetchSnapshot,
BrokerRegistration, BrokerHeartbeat, UnregisterBroker, AllocateProducerIds, ControllerRegistration,
AssignReplicasToDirs, UpdateRaftVoter. They change the metadata store themselves.
"""


class Attack:
    """A stranger who knows all that a follower knows. It is connected to the leader of the topic."""

    def __init__(self, cluster: SecuredCluster, wire: Wire, topic_id: UUID, writer: Session) -> None:
        self.wire = wire
        self.topic_id = topic_id
        self.writer = writer
        store = SqliteStore(str(cluster.data / "metadata.sqlite"))
        self.epochs = {number: info.epoch for number, info in read_registrations(store).items()}
        store.close()

    def fetch(self, version: int, broker: int) -> int:
        """Fetch as a follower, and return the error of the partition."""
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1)
        where: dict[str, Any] = {"topic_id": self.topic_id} if version >= 13 else {"topic": TOPIC}
        follower: dict[str, Any] = {"replica_id": broker}
        if version >= 15:
            state = ReplicaState(replica_id=broker, replica_epoch=self.epochs[broker])
            follower = {"replica_state": state}
        topics = [FetchTopic(**where, partitions=[wanted])]
        answer = self.wire.call(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics, **follower), version)
        found = answer.responses[0].partitions[0]
        assert not found.records
        return int(found.error_code)

    def mark(self, version: int) -> int:
        """Commit the transaction of another client."""
        marker = WritableTxnMarker(
            producer_id=self.writer.producer_id,
            producer_epoch=self.writer.epoch,
            transaction_result=True,
            coordinator_epoch=1000,
            topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])],
        )
        answer = self.wire.call(WriteTxnMarkersRequest(markers=[marker]), version)
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    def verify(self, version: int) -> int:
        """Add a partition to the transaction of another client, as a leader does for a Produce."""
        topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
        added = AddPartitionsToTxnTransaction(
            transactional_id="x",
            producer_id=self.writer.producer_id,
            producer_epoch=self.writer.epoch,
            verify_only=False,
            topics=topics,
        )
        return int(self.wire.call(AddPartitionsToTxnRequest(transactions=[added]), version).error_code)

    def end_of_epoch(self, version: int) -> int:
        """Ask where an epoch ends, as a follower does."""
        partition = OffsetForLeaderPartition(partition=0, leader_epoch=0)
        topics = [OffsetForLeaderTopic(topic="hidden", partitions=[partition])]
        answer = self.wire.call(OffsetForLeaderEpochRequest(replica_id=2, topics=topics), version)
        return int(answer.topics[0].partitions[0].error_code)


def wires(cluster: SecuredCluster, user: str) -> Callable[[str], Wire]:
    """Return a function that connects a user to an address."""
    context = ssl.create_default_context(cafile=str(cluster.certificates.ca))
    return lambda address: Wire(address, tls=context, login=cluster.login(user))


def leader_of(cluster: SecuredCluster, admin: Wire) -> str:
    """Return the address of the leader, when all three replicas are in sync."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    answer = until(
        lambda: admin.call(request, 12),
        lambda found: bool(found.topics[0].partitions) and len(found.topics[0].partitions[0].isr_nodes) == 3,
        "all replicas are in sync",
    )
    leader = answer.topics[0].partitions[0].leader_id
    return next(f"{each.host}:{each.port}" for each in answer.brokers if each.node_id == leader)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    made = SecuredCluster(tmp_path_factory.mktemp("secured"))
    with wires(made, ADMINISTRATOR)(made.bootstrap.split(",")[0]) as admin:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=3) for name in (TOPIC, "hidden")]
        assert not any(each.error_code for each in admin.call(CreateTopicsRequest(topics=topics)).topics)
    yield made
    made.stop()


@pytest.fixture
def admin(cluster: SecuredCluster) -> Iterator[Wire]:
    with wires(cluster, ADMINISTRATOR)(cluster.bootstrap.split(",")[0]) as wire:
        yield wire


@pytest.fixture
def attack(cluster: SecuredCluster, admin: Wire) -> Iterator[Attack]:
    """The stranger may read and write the topic. Another client has a transaction in progress there."""
    for operation in (AclOperation.READ, AclOperation.WRITE):
        grant(admin, [Grant(operation, AclResource.TOPIC, TOPIC, principal=f"User:{STRANGER}", host="*")])
    address = leader_of(cluster, admin)
    found = admin.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 12)
    with wires(cluster, ADMINISTRATOR)(address) as leader, wires(cluster, STRANGER)(address) as wire:
        written = leader.produce(TOPIC, batch([b"v"]))
        assert not written.error_code
        yield Attack(cluster, wire, found.topics[0].topic_id, leader.session())


@pytest.mark.parametrize("version", [4, 11, 12, 14, 15, 17, 18])
def test_stranger_cannot_fetch_as_a_follower(attack: Attack, version: int) -> None:
    assert set(attack.epochs) == {1, 2, 3}
    for broker in attack.epochs:
        assert attack.fetch(version, broker) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not attack.wire.fetch(attack.topic_id).error_code  # as a consumer, it may


@pytest.mark.parametrize("version", [1, 2])
def test_stranger_cannot_end_a_transaction_with_markers(attack: Attack, version: int) -> None:
    assert attack.mark(version) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [4, 5])
def test_stranger_cannot_add_partitions_as_a_leader(attack: Attack, version: int) -> None:
    assert attack.verify(version) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [3, 4])
def test_stranger_cannot_ask_for_epochs_as_a_follower(attack: Attack, version: int) -> None:
    assert attack.end_of_epoch(version) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_no_other_request_of_brokers_is_served(attack: Attack) -> None:
    assert not BETWEEN_BROKERS & set(attack.wire.versions)
    assert ApiKey.WRITE_TXN_MARKERS in attack.wire.versions


def test_certificates_between_brokers_are_replaced_one_after_the_other(cluster: SecuredCluster, admin: Wire) -> None:
    """Foreign ones are refused. A broker that restarts connects to the others with the new ones."""
    key = "listener.name.secured.ssl.keystore.location"
    hosts = ("127.0.0.1", "localhost")
    leader_of(cluster, admin)
    options = {name.replace(".", "_"): value for name, value in cluster.options().items()}
    with Admin(cluster.bootstrap, **options) as client:
        foreign = signed_by(authority("another"), "broker", *hosts)
        path = cluster.directory / "foreign.pem"
        path.write_bytes(foreign.key_pem() + foreign.certificate_pem)
        with pytest.raises(errors.KafkaError, match="brokers could not connect to each other"):
            client.alter_broker_configs(1, {key: str(path)})
        for broker in (1, 2, 3):
            new = signed_by(cluster.certificates.authority, "broker", *hosts)
            path = cluster.directory / f"broker-{broker}.pem"
            path.write_bytes(new.key_pem() + new.certificate_pem)
            client.alter_broker_configs(broker, {key: str(path)})
    cluster.kill(2)
    with contextlib.suppress(FileNotFoundError):
        cluster.certificates.broker.unlink()
    cluster.certificates.write_broker(*hosts)
    cluster.wait_ready()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    with wires(cluster, ADMINISTRATOR)(cluster.bootstrap.split(",")[2]) as wire:
        wait_until(
            lambda: len(wire.call(request, 12).topics[0].partitions[0].isr_nodes) == 3, "all replicas are in sync"
        )
