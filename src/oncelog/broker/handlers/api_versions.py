"""ApiVersions: the APIs that this broker serves, and the cluster's finalized features (KIP-35, 511, 584)."""

from __future__ import annotations

import re
from functools import partial

from oncelog.broker.requests.apis import FOR_METRICS_OF_CLIENTS, PRODUCE_ADVERTISED_MIN, SERVED
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.cluster.features import SUPPORTED
from oncelog.cluster.image import MetadataCache
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_WITH_SOFTWARE_NAME = 3
LONGEST_SOFTWARE_NAME = 100
"""The number of characters of a software's name and version that a connection remembers."""


def handle(
    cache: MetadataCache, takes_metrics: bool, request: ApiVersionsRequest, ctx: RequestContext
) -> ApiVersionsResponse:
    """Return the APIs and features, or INVALID_REQUEST if the client's software name or version is malformed."""
    if ctx.api_version >= _WITH_SOFTWARE_NAME and not (
        _SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if ctx.api_version >= _WITH_SOFTWARE_NAME:
        name, version = request.client_software_name, request.client_software_version
        ctx.session.software = name[:LONGEST_SOFTWARE_NAME], version[:LONGEST_SOFTWARE_NAME]
    image = cache.image
    return ApiVersionsResponse(
        api_keys=_served(takes_metrics),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED.items()
            if low > 0 or ctx.api_version > _WITH_SOFTWARE_NAME  # v3 clients reject a minimum of 0 (KAFKA-17011)
        ],
        finalized_features_epoch=image.feature_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.feature_levels.items())
        ],
    )


def _served(takes_metrics: bool) -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=key,
            min_version=PRODUCE_ADVERTISED_MIN if key == ApiKey.PRODUCE else served.min_version,
            max_version=served.max_version,
        )
        for key, served in sorted(SERVED.items())
        if takes_metrics or key not in FOR_METRICS_OF_CLIENTS
    ]


def bind(services: HandlerServices) -> Handler:
    """Return the handler of ApiVersions."""
    return partial(handle, services.cache, services.telemetry.exported is not None)
