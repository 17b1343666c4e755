"""Queries about a broker's log directories, for tests."""

from __future__ import annotations

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.describe_log_dirs import bind as describe_log_dirs
from oncelog.broker.handlers.metadata import bind as metadata
from oncelog.broker.requests.context import RequestContext
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from support.broker_fixtures import BrokerStorage

SMALL_SEGMENTS = {"internal.segment.bytes": "200"}
CONTEXT = RequestContext(3, 9, 1, "test", Session())


def refusal(broker: Broker, topic: str, partition: int = 0) -> ErrorCode:
    """Return the error of a request for the partition's log."""
    with pytest.raises(ProtocolError) as caught:
        broker.partitions.require(topic, partition)
    code: ErrorCode = caught.value.code
    return code


async def described(broker: Broker, topic: str, partition: int = 0) -> MetadataResponsePartition:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer: MetadataResponse = await metadata(broker.services)(request, CONTEXT)
    return answer.topics[0].partitions[partition]


async def log_dirs(broker: Broker, topics: dict[str, list[int]] | None = None) -> DescribeLogDirsResponse:
    asked = None
    if topics is not None:
        asked = [DescribableLogDirTopic(topic=name, partitions=found) for name, found in topics.items()]
    answer: DescribeLogDirsResponse = await describe_log_dirs(broker.services)(
        DescribeLogDirsRequest(topics=asked), CONTEXT
    )
    return answer


async def nothing(broker: Broker) -> None:
    """Do nothing while the broker runs."""


def refused(storage: BrokerStorage, **settings: str) -> str:
    with pytest.raises(ProtocolError) as caught:
        storage.run_broker(nothing, **settings)
    return str(caught.value)
