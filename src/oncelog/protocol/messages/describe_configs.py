"""DescribeConfigs: list the settings of topics and brokers (KIP-133, 226, 569)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Message):
    """`Resources` of DescribeConfigsRequest."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array("string", nullable=0)


class DescribeConfigsRequest(Message, api_key=32, versions=(1, 4), flexible=4):
    """The request."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Message):
    """`Synonyms` of DescribeConfigsResponse."""

    name: str = string(since=1)
    value: str | None = string(since=1, nullable=0)
    source: int = int8(since=1)


class DescribeConfigsResourceResult(Message):
    """`Configs` of DescribeConfigsResponse."""

    name: str = string()
    value: str | None = string(nullable=0)
    read_only: bool = boolean()
    config_source: int = int8(since=1, default=-1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1, ignorable=True)
    config_type: int = int8(since=3, ignorable=True)
    documentation: str | None = string(since=3, nullable=0, ignorable=True)


class DescribeConfigsResult(Message):
    """`Results` of DescribeConfigsResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Message, api_key=32, versions=(1, 4), flexible=4):
    """The response."""

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
