"""Describe and change the levels of a cluster's features (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.kinds import UpgradeType
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from oncelog.version import __version__

API_VERSIONS_VERSION = 4
"""Earlier versions omit features whose lowest level is 0 (KAFKA-17011)."""
UPGRADES = {
    "upgrade": UpgradeType.UPGRADE,
    "safe_downgrade": UpgradeType.SAFE_DOWNGRADE,
    "unsafe_downgrade": UpgradeType.UNSAFE_DOWNGRADE,
}


@in_notebooks()
class FeatureInfo(NamedTuple):
    """A feature: the lowest and highest level that the broker supports, and the cluster's finalized level (0: off).

    `epoch` is the version of the cluster's levels. Every change increases it.
    """

    name: str
    supported_min: int
    supported_max: int
    level: int
    epoch: int


async def describe_features(cluster: ClusterClient) -> list[FeatureInfo]:
    """Return the features with the broker's and the cluster's levels (KIP-584).

    Raises UnsupportedError if the broker is older than Apache Kafka 3.9.
    """
    request = ApiVersionsRequest(client_software_name="oncelog", client_software_version=__version__)
    response = await cluster.call_any(request, API_VERSIONS_VERSION)
    raise_for_error(response, "features")
    levels = {item.name: item.max_version_level for item in response.finalized_features}
    return sorted(
        FeatureInfo(
            item.name,
            item.min_version,
            item.max_version,
            levels.get(item.name, 0),
            response.finalized_features_epoch,
        )
        for item in response.supported_features
    )


async def update_features(
    cluster: ClusterClient, levels: Mapping[str, int], kind: str = "upgrade", *, validate_only: bool = False
) -> None:
    """Set the levels of features. Either all of them change, or none (Kafka's UpdateFeatures).

    `levels` maps features such as "transaction.version" to levels. `kind` is "upgrade", "safe_downgrade" (rejected if
    metadata would be lost) or "unsafe_downgrade". With `validate_only`, nothing changes. Raises RequestError
    (INVALID_UPDATE_VERSION).
    """
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=UPGRADES[kind])
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    raise_for_error(await cluster.call_controller(request), "UpdateFeatures")
