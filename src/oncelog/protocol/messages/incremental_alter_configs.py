"""IncrementalAlterConfigs: change single settings of topics and brokers (KIP-339)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class AlterableConfig(Message):
    """`Configs` of IncrementalAlterConfigsRequest. Its `repr` hides the value, which may be a password."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable=0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, config_operation={self.config_operation}, value=[hidden])"


class AlterConfigsResource(Message):
    """`Resources` of IncrementalAlterConfigsRequest."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible=1):
    """The request."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Message):
    """`Responses` of IncrementalAlterConfigsResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=(0, 1), flexible=1):
    """The response."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
