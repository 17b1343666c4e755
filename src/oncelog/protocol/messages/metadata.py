"""Metadata: list the brokers, and the topics with their leaders."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Message):
    """`Topics` of MetadataRequest."""

    topic_id: UUID = uuid(since=10, ignorable=True)
    name: str | None = string(nullable=10)


class MetadataRequest(Message, api_key=3, versions=(0, 13), flexible=9):
    """The request."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Message):
    """`Brokers` of MetadataResponse."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable=1, default=None, ignorable=True)


class MetadataResponsePartition(Message):
    """`Partitions` of MetadataResponse."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1, ignorable=True)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    offline_replicas: list[int] = array("int32", since=5, ignorable=True)


class MetadataResponseTopic(Message):
    """`Topics` of MetadataResponse."""

    error_code: int = int16()
    name: str | None = string(nullable=12)
    topic_id: UUID = uuid(since=10, ignorable=True)
    is_internal: bool = boolean(since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=-2147483648)


class MetadataResponse(Message, api_key=3, versions=(0, 13), flexible=9):
    """The response."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable=2, default=None, ignorable=True)
    controller_id: int = int32(since=1, default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-2147483648)
    error_code: int = int16(since=13, ignorable=True)
