"""Define enumerations of the protocol that both brokers and clients use."""

from __future__ import annotations

from enum import IntEnum


class CoordinatorType(IntEnum):
    """What FindCoordinator seeks the coordinator of (`FindCoordinatorRequest.CoordinatorType`)."""

    GROUP = 0
    TRANSACTION = 1
    """A transactional id."""


class ResourceType(IntEnum):
    """A type of objects that have settings (`ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class UpgradeType(IntEnum):
    """The change of a feature's level that a request allows (`FeatureUpdate.UpgradeType`)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """A downgrade is allowed only if it loses no metadata."""
    UNSAFE_DOWNGRADE = 3
