"""ApiVersions: what this broker serves, and the features that are finalised (KIP-35, 511, 584)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncelog.broker.requests.apis import PRODUCE_ADVERTISED_MIN, SERVED, SUPPORTED_FEATURES
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_WITH_SOFTWARE_NAME = 3


def handle(broker: Broker, request: ApiVersionsRequest, ctx: RequestContext) -> ApiVersionsResponse:
    """INVALID_REQUEST when the client's software name or version is malformed."""
    if ctx.api_version >= _WITH_SOFTWARE_NAME and not (
        _SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_served(),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
            if low > 0 or ctx.api_version > _WITH_SOFTWARE_NAME  # KAFKA-17011: v3 clients choke on a minimum of 0
        ],
        finalized_features_epoch=broker.features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(broker.features.levels.items())
        ],
    )


def unsupported(error: ErrorCode) -> ApiVersionsResponse:
    """The version 0 answer to a version that we do not know: with the one line that tells which we do."""
    own = SERVED[ApiKey.API_VERSIONS]
    line = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=own.min_version, max_version=own.max_version)
    return ApiVersionsResponse(error_code=error, api_keys=[line])


def _served() -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=key,
            min_version=PRODUCE_ADVERTISED_MIN if key == ApiKey.PRODUCE else served.min_version,
            max_version=served.max_version,
        )
        for key, served in sorted(SERVED.items())
    ]
