"""UpdateFeatures: the levels of the cluster's features, while it runs (KIP-584)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.turns import Turns
from oncelog.cluster.features import Change
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_LAST_WITH_RESULTS = 1


async def handle(broker: Broker, request: UpdateFeaturesRequest, ctx: RequestContext) -> UpdateFeaturesResponse:
    """Make all changes or none. Ignore `AllowDowngrade` of version 0, as Kafka's KRaft controller does.

    If a request names a feature twice, its last change counts.
    """
    changes: dict[str, Change] = {}
    turns = Turns()
    for update in request.feature_updates:
        await turns.next()
        changes[update.feature] = Change(update.feature, update.max_version_level, update.upgrade_type)
    try:
        await broker.update_features(list(changes.values()), validate_only=request.validate_only)
    except ProtocolError as error:
        message = f"The update failed for all features since the following feature had an error: {error}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    response = UpdateFeaturesResponse()
    if ctx.api_version <= _LAST_WITH_RESULTS:
        for update in request.feature_updates:
            await turns.next()
            result = UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name)
            response.results.append(result)
    return response
