"""AlterConfigs: replace all settings of topics and brokers (KIP-133)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class AlterableConfig(Message):
    """`Configs` of AlterConfigsRequest. Its `repr` hides the value, which may be a password."""

    name: str = string()
    value: str | None = string(nullable=0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, value=[hidden])"


class AlterConfigsResource(Message):
    """`Resources` of AlterConfigsRequest."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible=2):
    """The request."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Message):
    """`Responses` of AlterConfigsResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Message, api_key=33, versions=(0, 2), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
