"""Admin requests with many items: the loop serves other clients meanwhile, and memory stays small."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.context import RequestContext
from oncelog.broker.handlers import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    metadata,
)
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.log_houses import House
from support.turns import turns_of_others

CONTEXT = RequestContext(0, 7, 1, "test", "127.0.0.1", 1)
NAMES = [f"no-{number}" for number in range(1000)]
TOPIC = ResourceType.TOPIC
TIMEOUT = {"timeout_ms": 60_000}

REQUESTS: dict[str, tuple[Any, Any]] = {
    "CreateTopics": (
        create_topics,
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=-2) for name in NAMES], **TIMEOUT),
    ),
    "CreatePartitions": (
        create_partitions,
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=2) for name in NAMES], **TIMEOUT),
    ),
    "DeleteTopics": (
        delete_topics,
        DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES], **TIMEOUT),
    ),
    "DeleteRecords": (
        delete_records,
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition()]) for name in NAMES], **TIMEOUT
        ),
    ),
    "DescribeConfigs": (
        describe_configs,
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in NAMES]
        ),
    ),
    "IncrementalAlterConfigs": (
        incremental_alter_configs,
        IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=TOPIC, resource_name=name) for name in NAMES]
        ),
    ),
    "Metadata": (
        metadata,
        MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES], allow_auto_topic_creation=False),
    ),
}


@pytest.mark.parametrize("api", REQUESTS)
def test_others_have_their_turn_in_a_long_request_that_is_refused(house: House, api: str) -> None:
    module, request = REQUESTS[api]

    async def life(broker: Broker) -> None:
        with turns_of_others() as turns:
            answer = module.handle(broker, request, CONTEXT)
            assert isinstance(answer, Awaitable)
            await answer
        assert turns.count >= 9

    house.live(life)


def test_illegal_names_are_not_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    topics = [MetadataRequestTopic(name=f"{number}/" * 1000) for number in range(10)]

    async def life(broker: Broker) -> None:
        caplog.clear()
        answer = metadata.handle(broker, MetadataRequest(topics=topics, allow_auto_topic_creation=True), CONTEXT)
        assert isinstance(answer, Awaitable)
        await answer
        assert not caplog.records

    caplog.set_level(logging.INFO)
    house.live(life)
