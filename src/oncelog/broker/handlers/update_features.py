"""UpdateFeatures: change the levels of the cluster's features at run time (KIP-584)."""

from __future__ import annotations

from functools import partial

from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.features import Change
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_LAST_WITH_RESULTS = 1


async def handle(
    settings: SettingsAdministration, request: UpdateFeaturesRequest, ctx: RequestContext
) -> UpdateFeaturesResponse:
    """Make all changes or none. Ignore `AllowDowngrade` of version 0, as Kafka's KRaft controller does.

    If a request names a feature twice, only its last change is made.
    """
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    changes: dict[str, Change] = {}
    yielder = Yielder()
    for update in request.feature_updates:
        await yielder.next()
        changes[update.feature] = Change(update.feature, update.max_version_level, update.upgrade_type)
    try:
        await settings.update_features(list(changes.values()), validate_only=request.validate_only)
    except ProtocolError as error:
        message = f"The update failed for all features since the following feature had an error: {error}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    response = UpdateFeaturesResponse()
    if ctx.api_version <= _LAST_WITH_RESULTS:
        for update in request.feature_updates:
            await yielder.next()
            result = UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name)
            response.results.append(result)
    return response


def bind(services: HandlerServices) -> Handler:
    """Return the handler of UpdateFeatures."""
    return partial(handle, services.settings)
