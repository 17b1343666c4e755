"""Admin requests with many items: the loop serves other clients meanwhile, and memory stays small."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.coordinators.request_parts import ITEMS_A_PART
from oncelog.broker.handlers.groups import MOST_PROTOCOLS
from oncelog.broker.metadata.alterations import MOST_SETTINGS
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.dispatch import bound_handler
from oncelog.net.server import Deferred
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.protocol.records import iter_batches
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.broker_fixtures import BrokerStorage
from support.turns import turns_of_others

CONTEXT = RequestContext(0, 7, 1, "test", Session())
NAMES = [f"no-{number}" for number in range(1000)]
TOPIC = ResourceType.TOPIC
TIMEOUT = {"timeout_ms": 60_000}


def ask(broker: Broker, api: ApiKey, request: Any, context: RequestContext) -> Any:
    """Return the response of a handler to one request, without the network."""
    return bound_handler(broker.services, api)(request, context)


REQUESTS: dict[str, tuple[Any, Any]] = {
    "CreateTopics": (
        ApiKey.CREATE_TOPICS,
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=-2) for name in NAMES], **TIMEOUT),
    ),
    "CreatePartitions": (
        ApiKey.CREATE_PARTITIONS,
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=2) for name in NAMES], **TIMEOUT),
    ),
    "DeleteTopics": (
        ApiKey.DELETE_TOPICS,
        DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES], **TIMEOUT),
    ),
    "DeleteRecords": (
        ApiKey.DELETE_RECORDS,
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition()]) for name in NAMES], **TIMEOUT
        ),
    ),
    "DescribeConfigs": (
        ApiKey.DESCRIBE_CONFIGS,
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in NAMES]
        ),
    ),
    "IncrementalAlterConfigs": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=TOPIC, resource_name=name) for name in NAMES]
        ),
    ),
    "Metadata": (
        ApiKey.METADATA,
        MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES], allow_auto_topic_creation=False),
    ),
    "ElectLeaders": (
        ApiKey.ELECT_LEADERS,
        ElectLeadersRequest(topic_partitions=[ElectLeadersTopic(topic="no", partitions=list(range(1000)))], **TIMEOUT),
    ),
    "ElectLeaders, late": (
        ApiKey.ELECT_LEADERS,
        ElectLeadersRequest(
            topic_partitions=[ElectLeadersTopic(topic="no", partitions=list(range(1000)))], timeout_ms=0
        ),
    ),
    "AlterPartitionReassignments": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="no", partitions=[ReassignablePartition(partition_index=index) for index in range(1000)]
                )
            ],
            **TIMEOUT,
        ),
    ),
    "OffsetCommit": (
        ApiKey.OFFSET_COMMIT,
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name=name, partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
                )
                for name in NAMES
            ],
        ),
    ),
    "TxnOffsetCommit": (
        ApiKey.TXN_OFFSET_COMMIT,
        TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name, partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
                )
                for name in NAMES
            ],
        ),
    ),
    "OffsetDelete": (
        ApiKey.OFFSET_DELETE,
        OffsetDeleteRequest(
            group_id="g",
            topics=[OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition()]) for name in NAMES],
        ),
    ),
    "OffsetFetch": (
        ApiKey.OFFSET_FETCH,
        OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in NAMES]
        ),
    ),
    "AddPartitionsToTxn": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="t", topics=[AddPartitionsToTxnTopic(name="no", partitions=list(range(1000)))]
                )
            ]
        ),
    ),
    "AddPartitionsToTxn, of many transactions": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name, topics=[AddPartitionsToTxnTopic(name="no", partitions=[0])]
                )
                for name in NAMES
            ]
        ),
    ),
    "WriteTxnMarkers": (
        ApiKey.WRITE_TXN_MARKERS,
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=1, topics=[WritableTxnMarkerTopic(name="no", partition_indexes=list(range(1000)))]
                )
            ]
        ),
    ),
    "ConsumerGroupDescribe": (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=NAMES)),
    "DescribeUserScramCredentials": (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in NAMES]),
    ),
    "UpdateFeatures": (
        ApiKey.UPDATE_FEATURES,
        UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=name) for name in NAMES]),
    ),
    "DeleteGroups": (ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=NAMES)),
}


@pytest.mark.parametrize("api", REQUESTS)
def test_rejected_long_request_yields_to_other_requests(storage: BrokerStorage, api: str) -> None:
    key, request = REQUESTS[api]

    async def life(broker: Broker) -> None:
        with turns_of_others() as turns:
            answer = ask(broker, key, request, CONTEXT)
            assert isinstance(answer, Awaitable)
            await answer
        assert turns.count >= 9

    storage.run_broker(life)


def test_unknown_topic_ids_yield_to_other_requests(storage: BrokerStorage) -> None:
    topics = [OffsetFetchRequestTopics(topic_id=UUID(int=number), partition_indexes=[0]) for number in range(1, 1001)]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])

    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal(CONSUMER_OFFSETS)
        with turns_of_others() as turns:
            answer = await ask(broker, ApiKey.OFFSET_FETCH, request, replace(CONTEXT, api_version=10))
        assert turns.count >= 9
        assert [topic.topic_id for topic in answer.groups[0].topics] == [UUID(int=number) for number in range(1, 1001)]

    storage.run_broker(life)


def test_leaving_of_many_members_yields_to_other_requests(storage: BrokerStorage) -> None:
    members = [MemberIdentity(member_id=name) for name in NAMES]

    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal(CONSUMER_OFFSETS)
        with turns_of_others() as turns:
            answer = await ask(
                broker,
                ApiKey.LEAVE_GROUP,
                LeaveGroupRequest(group_id="g", members=members),
                replace(CONTEXT, api_version=5),
            )
        assert turns.count >= 4
        assert [member.member_id for member in answer.members] == NAMES

    storage.run_broker(life)


MANY = range(5 * ITEMS_A_PART)


async def commit_many(broker: Broker) -> None:
    """Commit an offset for each partition of the topic `wide`."""
    await broker.topics.create("wide", partitions=len(MANY))
    await broker.topics.ensure_internal(CONSUMER_OFFSETS)
    partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in MANY]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="wide", partitions=partitions)])
    answer = await ask(broker, ApiKey.OFFSET_COMMIT, request, CONTEXT)
    assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}


def batches_of(broker: Broker) -> list[int]:
    """Return the number of records in each batch of the group's partition."""
    replica = broker.partitions.require(CONSUMER_OFFSETS, broker.groups.shell.partition_for("g"))
    data = replica.log.read(0, 1 << 30, upto=replica.log.log_end_offset, at_least_one=True)
    return [header.count for header, _ in iter_batches(data)]


async def delete_offsets(broker: Broker) -> None:
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in MANY]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="wide", partitions=partitions)])
    answer = await ask(broker, ApiKey.OFFSET_DELETE, request, CONTEXT)
    assert [each.partition_index for each in answer.topics[0].partitions] == list(MANY)
    assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}


async def delete_group(broker: Broker) -> None:
    answer = await ask(broker, ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g", "no"]), CONTEXT)
    assert [(each.group_id, each.error_code) for each in sorted(answer.results, key=lambda each: each.group_id)] == [
        ("g", ErrorCode.NONE),
        ("no", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


async def delete_topic(broker: Broker) -> None:
    topic = broker.metadata.image.topic("wide")
    assert topic is not None
    await broker.topics.delete(topic)


@pytest.mark.parametrize("delete", [delete_offsets, delete_group, delete_topic])
def test_many_offsets_are_deleted_in_small_batches(
    storage: BrokerStorage, delete: Callable[[Broker], Awaitable[None]]
) -> None:
    async def life(broker: Broker) -> None:
        await commit_many(broker)
        before = len(batches_of(broker))
        with turns_of_others() as turns:
            await delete(broker)
        assert turns.count >= 4
        deleted = batches_of(broker)[before:]
        assert len(MANY) <= sum(deleted) <= len(MANY) + 1
        assert max(deleted) <= ITEMS_A_PART + 1
        shard = broker.groups.shell.terms.shard(broker.groups.shell.partition_for("g"))
        assert not shard.offsets.committed("g")
        assert ("g" in shard.groups) is (delete is not delete_group)

    storage.run_broker(life)


def test_filter_of_many_states_is_read_once_and_yields(storage: BrokerStorage) -> None:
    request = ListGroupsRequest(states_filter=[f"{number}" for number in range(20_000)])

    async def life(broker: Broker) -> None:
        with turns_of_others() as turns:
            answer = await ask(broker, ApiKey.LIST_GROUPS, request, replace(CONTEXT, api_version=5))
        assert turns.count >= 3
        assert not answer.groups

    storage.run_broker(life)


def test_member_with_too_many_protocols_is_rejected(storage: BrokerStorage) -> None:
    protocols = [JoinGroupRequestProtocol(name=f"{number}") for number in range(MOST_PROTOCOLS + 1)]
    request = JoinGroupRequest(group_id="g", protocol_type="consumer", protocols=protocols)

    async def life(broker: Broker) -> None:
        answer = await ask(broker, ApiKey.JOIN_GROUP, request, CONTEXT)
        assert answer is not None
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    storage.run_broker(life)


def test_resource_with_too_many_settings_is_rejected(storage: BrokerStorage) -> None:
    configs = [AlterableConfig(name=f"{number}", value="1") for number in range(MOST_SETTINGS + 1)]
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        answer = await ask(
            broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]), CONTEXT
        )
        assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST]

    storage.run_broker(life)


LOGGED: dict[str, tuple[Any, Any, str]] = {
    "WriteTxnMarkers": (
        *REQUESTS["WriteTxnMarkers"],
        "WriteTxnMarkers cannot append a marker: producer 1, no-0: no-0 does not exist (and 999 others)",
    ),
    "DeleteRecords": (
        ApiKey.DELETE_RECORDS,
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=-5)])
                for _ in NAMES
            ],
            **TIMEOUT,
        ),
        "cannot delete records: t-0: offset -5 is invalid; use at least 0, or -1 for the high watermark "
        "(and 999 others)",
    ),
    "Produce": (
        ApiKey.PRODUCE,
        ProduceRequest(
            acks=1,
            topic_data=[
                TopicProduceData(name="no", partition_data=[PartitionProduceData(index=index) for index in range(1000)])
            ],
        ),
        "rejected Produce: no-0: no-0 does not exist",
    ),
}


@pytest.mark.parametrize("api", LOGGED)
def test_rejected_items_of_one_request_are_logged_in_one_line(
    storage: BrokerStorage, caplog: pytest.LogCaptureFixture, api: str
) -> None:
    key, request, line = LOGGED[api]

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        caplog.clear()
        answer = ask(broker, key, request, CONTEXT)
        await (answer.answer if isinstance(answer, Deferred) else answer)
        assert [record.getMessage() for record in caplog.records] == [line]

    caplog.set_level(logging.INFO)
    storage.run_broker(life)


def test_illegal_names_are_not_logged(storage: BrokerStorage, caplog: pytest.LogCaptureFixture) -> None:
    topics = [MetadataRequestTopic(name=f"{number}/" * 1000) for number in range(10)]

    async def life(broker: Broker) -> None:
        caplog.clear()
        answer = ask(broker, ApiKey.METADATA, MetadataRequest(topics=topics, allow_auto_topic_creation=True), CONTEXT)
        assert isinstance(answer, Awaitable)
        await answer
        assert not caplog.records

    caplog.set_level(logging.INFO)
    storage.run_broker(life)
