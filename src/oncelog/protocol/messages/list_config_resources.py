"""ListConfigResources: list the objects that have settings (KIP-1142).

Version 0 was ListClientMetricsResources (KIP-1000): it lists client metrics only.
"""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible=0):
    """The request. Without types, it means all of them."""

    resource_types: list[int] = array("int8", since=1)


class ConfigResource(Message):
    """`ConfigResources` of ListConfigResourcesResponse. The default type is CLIENT_METRICS."""

    resource_name: str = string()
    resource_type: int = int8(since=1, default=16)


class ListConfigResourcesResponse(Message, api_key=74, versions=(0, 1), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
