"""UpdateFeatures: the levels of the cluster's features, while it runs (KIP-584)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.cluster.features import Change
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_LAST_WITH_RESULTS = 1


async def handle(broker: Broker, request: UpdateFeaturesRequest, ctx: RequestContext) -> UpdateFeaturesResponse:
    """All changes or none. `AllowDowngrade` of version 0 counts for nothing, as with Kafka's KRaft controller."""
    changes = [
        Change(update.feature, update.max_version_level, update.upgrade_type) for update in request.feature_updates
    ]
    try:
        await broker.update_features(changes, validate_only=request.validate_only)
    except ProtocolError as error:
        message = f"The update failed for all features since the following feature had an error: {error}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    if ctx.api_version > _LAST_WITH_RESULTS:
        return UpdateFeaturesResponse()
    results = [
        UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name)
        for update in request.feature_updates
    ]
    return UpdateFeaturesResponse(results=results)
