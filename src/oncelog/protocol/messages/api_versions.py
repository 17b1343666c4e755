"""ApiVersions: list the APIs and the features of a broker (KIP-35, 511, 584)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible=3):
    """The request."""

    client_software_name: str = string(since=3, ignorable=True)
    client_software_version: str = string(since=3, ignorable=True)


class ApiVersion(Message):
    """`ApiKeys` of ApiVersionsResponse."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Message):
    """`SupportedFeatures` of ApiVersionsResponse."""

    name: str = string(since=3)
    min_version: int = int16(since=3)
    max_version: int = int16(since=3)


class FinalizedFeatureKey(Message):
    """`FinalizedFeatures` of ApiVersionsResponse."""

    name: str = string(since=3)
    max_version_level: int = int16(since=3)
    min_version_level: int = int16(since=3)


class ApiVersionsResponse(Message, api_key=18, versions=(0, 4), flexible=3):
    """The response."""

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0, ignorable=True)
    finalized_features_epoch: int = int64(since=3, default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2, ignorable=True)
    zk_migration_ready: bool = boolean(since=3, tag=3, ignorable=True)
