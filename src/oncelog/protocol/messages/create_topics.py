"""CreateTopics: create topics (KIP-4, 525)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Message):
    """`Assignments` of CreateTopicsRequest."""

    partition_index: int = int32()
    broker_ids: list[int] = array("int32")


class CreatableTopicConfig(Message):
    """`Configs` of CreateTopicsRequest."""

    name: str = string()
    value: str | None = string(nullable=0)


class CreatableTopic(Message):
    """`Topics` of CreateTopicsRequest."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Message, api_key=19, versions=(2, 7), flexible=5):
    """The request."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(since=1)


class CreatableTopicConfigs(Message):
    """`Configs` of CreateTopicsResponse."""

    name: str = string(since=5)
    value: str | None = string(since=5, nullable=5)
    read_only: bool = boolean(since=5)
    config_source: int = int8(since=5, default=-1, ignorable=True)
    is_sensitive: bool = boolean(since=5)


class CreatableTopicResult(Message):
    """`Topics` of CreateTopicsResponse."""

    name: str = string()
    topic_id: UUID = uuid(since=7, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable=0, ignorable=True)
    topic_config_error_code: int = int16(since=5, tag=0, ignorable=True)
    num_partitions: int = int32(since=5, default=-1, ignorable=True)
    replication_factor: int = int16(since=5, default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable=5, ignorable=True)


class CreateTopicsResponse(Message, api_key=19, versions=(2, 7), flexible=5):
    """The response."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
