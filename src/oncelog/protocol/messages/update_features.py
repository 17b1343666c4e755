"""UpdateFeatures: change the finalized levels of the cluster's features (KIP-584)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class FeatureUpdateKey(Message):
    """`FeatureUpdates` of UpdateFeaturesRequest."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(since=1, default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions=(0, 2), flexible=0):
    """The request."""

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


class UpdatableFeatureResult(Message):
    """`Results` of UpdateFeaturesResponse."""

    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class UpdateFeaturesResponse(Message, api_key=57, versions=(0, 2), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1, ignorable=True)
