"""Operations on resources: which ones exist, who may do them, and the bit fields that show this to clients (KIP-430).

Source: Kafka's `AclEntry.supportedOperations`; a bit's number is that of the `AclOperation`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import ResourceType


class AclOperation(IntEnum):
    """The `AclOperation` codes of the resources below."""

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
    TWO_PHASE_COMMIT = 15


class AclResource(IntEnum):
    """The kinds of resources that an operation needs permission for (Kafka's `ResourceType` of ACLs)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


CLUSTER = AclResource.CLUSTER, "kafka-cluster"
"""The cluster as a resource: there is only one."""

REFUSED_AS = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error of a rejected operation, by the kind of its resource."""

_CONFIGURED = {ResourceType.TOPIC: AclResource.TOPIC, ResourceType.GROUP: AclResource.GROUP}


class Authorizer(Protocol):
    """Decide which principals may do which operations."""

    def allows(self, principal: str, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether the principal may do the operation on the resource of this name."""


class AllowEverything:
    """The authorizer of a broker without access control."""

    __slots__ = ()

    def allows(self, principal: str, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return True."""
        return True


ALLOW_EVERYTHING = AllowEverything()


def configured(kind: int, name: str) -> tuple[AclResource, str]:
    """Return the resource whose permissions protect the settings of a `ConfigResource`.

    The cluster protects the settings of brokers, loggers and client metrics.
    """
    resource = _CONFIGURED.get(kind)  # type: ignore[call-overload]
    return CLUSTER if resource is None else (resource, name)


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


_OF_ALL = _bits(AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

OF_TOPIC = _OF_ALL | _bits(
    AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER
)
"""All operations on a topic."""
OF_GROUP = _OF_ALL | _bits(AclOperation.READ, AclOperation.DELETE)
"""All operations on a group."""
OF_CLUSTER = _OF_ALL | _bits(
    AclOperation.CREATE, AclOperation.ALTER, AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE
)
"""All operations on the cluster."""
NOT_ASKED = -(2**31)
"""The value of a bit field that the client has not requested."""
