"""What an administrator asks of a cluster, as coroutines over `ClusterClient`; both `Admin`s are thin over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from oncelog import errors
from oncelog.client import offsets as offset_calls
from oncelog.client.batch import TopicPartition
from oncelog.client.cluster import ClusterClient, gather_brokers
from oncelog.client.consumer_protocol import decode_assignment
from oncelog.client.group import GroupMetadata
from oncelog.client.outcomes import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.schema import DecodeError

RESOURCES = {"topic": ResourceType.TOPIC, "broker": ResourceType.BROKER}
USER_SET = frozenset({1, 2, 3, 4, 6})
"""Sources of a setting that somebody has set: topic, dynamic broker, static broker, dynamic default, logger."""
NODES_BY_NAME_VERSION = 5


class BrokerInfo(NamedTuple):
    """One broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


class ClusterInfo(NamedTuple):
    """The cluster."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerInfo]
    features: dict[str, int]


class PartitionInfo(NamedTuple):
    """One partition. Offsets: first, high watermark, last stable, log end; -1 where the leader cannot be asked."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_end_offset: int = -1


class TopicInfo(NamedTuple):
    """One topic with its partitions."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: list[PartitionInfo]


class GroupInfo(NamedTuple):
    """One line of the list of groups."""

    group_id: str
    protocol_type: str
    state: str
    type: str


class MemberInfo(NamedTuple):
    """One member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]


class GroupDescription(NamedTuple):
    """A classic group, its members and committed offsets."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberInfo]


class TransactionListing(NamedTuple):
    """One line of the list of transactions."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionInfo(NamedTuple):
    """The coordinator's view of a transactional id; `start_time` in ms since the epoch, -1 if nothing is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time: int
    partitions: list[TopicPartition]


class ProducerInfo(NamedTuple):
    """A producer that a partition remembers; `transaction_start` is the first offset of its open transaction, or -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


async def create_topics(
    cluster: ClusterClient,
    topics: Iterable[str],
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create topics alike; -1 for the broker's defaults. KafkaError (TOPIC_ALREADY_EXISTS ...)."""
    settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=[],
                configs=settings,
            )
            for name in topics
        ],
        timeout_ms=cluster.request_timeout_ms,
    )
    response = await cluster.call_controller(request)
    for item in response.topics:
        if item.error_code:
            raise errors.error_for(item.error_code, f"topic {item.name!r}: {item.error_message or ''}")
    for item in response.topics:
        await cluster.topic(item.name)


async def delete_topics(cluster: ClusterClient, topics: Iterable[str]) -> None:
    """Delete topics; KafkaError (UnknownTopicError)."""
    request = DeleteTopicsRequest(timeout_ms=cluster.request_timeout_ms)
    names = list(topics)
    version = (await cluster._retry(cluster._any_connection, None)).version_for(DeleteTopicsRequest)
    if version > NODES_BY_NAME_VERSION:
        request.topics = [DeleteTopicState(name=name) for name in names]
    else:
        request.topic_names = names
    response = await cluster.call_controller(request, version)
    for name in names:
        cluster.topology.forget(name)
    for item in response.responses:
        if item.error_code:
            raise errors.error_for(item.error_code, f"topic {item.name!r}: {item.error_message or ''}")


async def delete_records(cluster: ClusterClient, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Let partitions begin at an offset each (-1: their high watermark); where each begins now."""
    return await offset_calls.delete_records(cluster, offsets)


async def describe_topics(cluster: ClusterClient, topics: Iterable[str]) -> list[TopicInfo]:
    """Topics with leaders and offsets; UnknownTopicError."""
    found = []
    for name in topics:
        cluster.topology.forget(name)
        topic = await cluster.topic(name)
        led = [(name, p) for p, partition in topic.partitions.items() if partition.leader >= 0]
        start = await offset_calls.list_offsets(cluster, dict.fromkeys(led, offset_calls.EARLIEST))
        high = await offset_calls.list_offsets(cluster, dict.fromkeys(led, offset_calls.LATEST))
        stable = await offset_calls.list_offsets(cluster, dict.fromkeys(led, offset_calls.LATEST), isolation_level=1)
        end = await offset_calls.list_offsets(
            cluster, dict.fromkeys(led, offset_calls.LATEST), replica_id=offset_calls.DEBUGGING
        )
        partitions = [
            PartitionInfo(
                index,
                partition.leader,
                partition.leader_epoch,
                partition.replicas,
                partition.isr,
                *(where[name, index].offset if (name, index) in where else -1 for where in (start, high, stable, end)),
            )
            for index, partition in topic.partitions.items()
        ]
        found.append(TopicInfo(name, topic.topic_id, topic.internal, partitions))
    return found


async def describe_configs(cluster: ClusterClient, kind: str, name: str, *, all_: bool = True) -> dict[str, str | None]:
    """Settings of a "topic" or "broker" (by node id); with `all_` False only those that somebody has set."""
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=RESOURCES[kind], resource_name=name, configuration_keys=None)]
    )
    call = cluster.call_broker(int(name), request) if kind == "broker" else cluster.call_any(request)
    response = await call
    raise_for_error(response, f"{kind} {name!r}")
    items = response.results[0].configs
    return {item.name: item.value for item in items if all_ or item.config_source in USER_SET}


async def describe_cluster(cluster: ClusterClient) -> ClusterInfo:
    """Brokers, controller, features."""
    response = await cluster.call_any(DescribeClusterRequest())
    raise_for_error(response, "cluster")
    brokers = [BrokerInfo(item.broker_id, item.host, item.port, item.rack) for item in response.brokers]
    return ClusterInfo(response.cluster_id, response.controller_id, sorted(brokers), await cluster.features())


async def list_groups(cluster: ClusterClient) -> list[GroupInfo]:
    """The groups of every coordinator."""
    answers = await gather_brokers(cluster, ListGroupsRequest)
    found = []
    for response in answers.values():
        raise_for_error(response, "groups")
        found += [GroupInfo(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]
    return sorted(found)


async def describe_group(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """A classic group; one that does not exist is Dead."""
    response = await cluster.call_coordinator("group", group_id, DescribeGroupsRequest(groups=[group_id]))
    group = response.groups[0]
    if group.error_code and group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise errors.error_for(group.error_code, f"group {group_id!r}: {group.error_message or ''}")
    consumers = group.protocol_type == "consumer"
    members = [
        MemberInfo(
            item.member_id,
            item.group_instance_id,
            item.client_id,
            item.client_host,
            _assigned(bytes(item.member_assignment)) if consumers else [],
        )
        for item in group.members
    ]
    return GroupDescription(group_id, group.group_state, group.protocol_type, group.protocol_data, members)


def _assigned(assignment: bytes) -> list[TopicPartition]:
    """A member's partitions; none where they cannot be read, for an assignor may write what it likes."""
    try:
        return decode_assignment(assignment)
    except DecodeError:
        return []


async def set_offsets(cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set the committed offsets of a group without members; GroupError while it has some."""
    await offset_calls.commit(cluster, GroupMetadata(group_id), offsets)


async def list_transactions(cluster: ClusterClient, states: Sequence[str] = ()) -> list[TransactionListing]:
    """The transactional ids of every coordinator, in certain states or all."""
    answers = await gather_brokers(cluster, lambda: ListTransactionsRequest(state_filters=list(states)))
    found = []
    for response in answers.values():
        raise_for_error(response, "transactions")
        found += [
            TransactionListing(item.transactional_id, item.producer_id, item.transaction_state)
            for item in response.transaction_states
        ]
    return sorted(found)


async def describe_transaction(cluster: ClusterClient, transactional_id: str) -> TransactionInfo:
    """One transactional id; KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = await cluster.call_coordinator("transaction", transactional_id, request)
    raise_for_error(response, f"transactional id {transactional_id!r}")
    item = response.transaction_states[0]
    return TransactionInfo(
        transactional_id,
        item.transaction_state,
        item.producer_id,
        item.producer_epoch,
        item.transaction_timeout_ms,
        item.transaction_start_time_ms,
        sorted((topic.topic, partition) for topic in item.topics for partition in topic.partitions),
    )


async def describe_producers(cluster: ClusterClient, topic: str, partition: int) -> list[ProducerInfo]:
    """The producers that a partition's leader remembers."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    response = await cluster.call_leader(topic, partition, request)
    raise_for_error(response, f"{topic}-{partition}")
    return sorted(
        ProducerInfo(
            item.producer_id,
            item.producer_epoch,
            item.last_sequence,
            item.last_timestamp,
            item.coordinator_epoch,
            item.current_txn_start_offset,
        )
        for item in response.topics[0].partitions[0].active_producers
    )


async def offsets_for(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], *, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """Offset by partition for a timestamp each (-2 first, -1 end, else ms); -1 where there is no such record."""
    found = await offset_calls.list_offsets(cluster, wanted, isolation_level=int(committed_only))
    return {tp: item.offset for tp, item in found.items()}


async def committed(cluster: ClusterClient, group_id: str) -> dict[TopicPartition, int]:
    """Every committed offset of a group."""
    return dict(await offset_calls.fetch_committed(cluster, group_id))

