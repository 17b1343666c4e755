"""Operations on resources: which ones exist, who may do them, and the bit fields that show this to clients (KIP-430).

Source: Kafka's `AclEntry.supportedOperations`; a bit's number is that of the `AclOperation`.
"""

from __future__ import annotations

from typing import Protocol

from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource, ResourceType

CLUSTER = AclResource.CLUSTER, "kafka-cluster"
"""The cluster as a resource: there is only one."""

REFUSED_AS = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error of a rejected operation, by the kind of its resource."""

_CONFIGURED = {ResourceType.TOPIC: AclResource.TOPIC, ResourceType.GROUP: AclResource.GROUP}


class NotAuthorizedError(ProtocolError):
    """The client may not do an operation. The authorizer has logged it."""


class Authorizer(Protocol):
    """Decide which clients may do which operations."""

    @property
    def enabled(self) -> bool:
        """Return whether the authorizer uses ACLs."""

    def allows(self, session: Session, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether the client may do the operation on the resource of this name."""

    def allows_some(self, session: Session, operation: AclOperation, resource: AclResource) -> bool:
        """Return whether the client may do the operation on at least one possible resource of this type."""

    def denied(self, session: Session, api_key: int, operation: AclOperation, resource: AclResource, name: str) -> None:
        """Log that a request of the client was denied."""


class AllowEverything:
    """The authorizer of a broker without access control."""

    __slots__ = ()

    @property
    def enabled(self) -> bool:
        """Return False."""
        return False

    def allows(self, session: Session, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return True."""
        return True

    def allows_some(self, session: Session, operation: AclOperation, resource: AclResource) -> bool:
        """Return True."""
        return True

    def denied(self, session: Session, api_key: int, operation: AclOperation, resource: AclResource, name: str) -> None:
        """Do nothing. This authorizer denies nothing."""


ALLOW_EVERYTHING = AllowEverything()


def configured(kind: int, name: str) -> tuple[AclResource, str]:
    """Return the resource whose permissions protect the settings of a `ConfigResource`.

    The cluster protects the settings of brokers, loggers and client metrics.
    """
    resource = _CONFIGURED.get(kind)  # type: ignore[call-overload]
    return CLUSTER if resource is None else (resource, name)


_OF_ALL = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

SUPPORTED: dict[AclResource, tuple[AclOperation, ...]] = {
    AclResource.TOPIC: (
        *_OF_ALL,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclResource.GROUP: (*_OF_ALL, AclOperation.READ, AclOperation.DELETE),
    AclResource.CLUSTER: (
        *_OF_ALL,
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.CLUSTER_ACTION,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""All operations on a resource, by its type."""
EVERYTHING = {resource: sum(1 << operation for operation in known) for resource, known in SUPPORTED.items()}
"""The same as bit fields."""
NOT_ASKED = -(2**31)
"""The value of a bit field that the client has not requested."""
