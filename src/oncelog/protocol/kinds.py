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


class AclOperation(IntEnum):
    """An operation on a resource (`AclOperation`)."""

    UNKNOWN = 0
    ANY = 1
    """Every operation; only in filters."""
    ALL = 2
    """All operations together."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Whether an ACL allows or denies its operation (`AclPermissionType`)."""

    UNKNOWN = 0
    ANY = 1
    """Both; only in filters."""
    DENY = 2
    ALLOW = 3


class AclResource(IntEnum):
    """A type of resources that ACLs protect (`ResourceType` of ACLs)."""

    UNKNOWN = 0
    ANY = 1
    """Every type; only in filters."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of an ACL selects resources (`PatternType`)."""

    UNKNOWN = 0
    ANY = 1
    """Patterns of every type with exactly this name; only in filters."""
    MATCH = 2
    """Patterns that select the resource of this name; only in filters."""
    LITERAL = 3
    """The resource of exactly this name, or every resource if the name is `*`."""
    PREFIXED = 4
    """Every resource whose name starts with this text."""


SCRAM_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""The mechanisms of SCRAM, with their numbers (`ScramMechanism`)."""
SCRAM_NAMES = {number: name for name, number in SCRAM_MECHANISMS.items()}
"""The same, by number."""
