"""Numbers on the wire that name a kind of thing, and that brokers and clients share."""

from __future__ import annotations

from enum import IntEnum


class ResourceType(IntEnum):
    """What has settings (`ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class UpgradeType(IntEnum):
    """What a change of a feature's level may be (`FeatureUpdate.UpgradeType`)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """Only if nothing is lost by it."""
    UNSAFE_DOWNGRADE = 3
