"""The context of a request, for its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oncelog.broker.quotas.metering import Meter
from oncelog.broker.requests.operations import (
    ALLOW_EVERYTHING,
    CLUSTER,
    EVERYTHING,
    NOT_ASKED,
    REFUSED_AS,
    SUPPORTED,
    Authorizer,
    NotAuthorizedError,
)
from oncelog.net.session import Session
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.schema import Message

Permitted = Callable[[AclOperation, AclResource, str], bool]
"""`permitted(operation, resource, name)` returns whether the client may do an operation."""


@dataclass(slots=True, eq=False)  # not frozen: that would take a microsecond for each request
class RequestContext:
    """The header fields of one request, and its connection. Only the dispatcher changes them."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    session: Session
    """The connection."""
    authorizer: Authorizer = field(default=ALLOW_EVERYTHING, repr=False)
    began: float = 0.0
    """When the dispatcher began with the request, by its clock."""
    meter: Meter | None = field(default=None, repr=False)
    """What the request has used of the client's quotas. None if no client has one."""
    on_wait: Callable[[list[Message | None]], None] | None = field(default=None, repr=False)
    """Called by the handler of a large Fetch before a long wait, so that the next large Fetch is decoded.

    The only element of the argument is the part of the request that the handler no longer needs. A worker thread frees
    it.
    """

    def count_mutations(self, partitions: int) -> None:
        """Count partitions to create or to delete. Raises THROTTLING_QUOTA_EXCEEDED if the client has no quota left."""
        if self.meter is not None:
            self.meter.mutate(partitions)

    def authorize(self, operation: AclOperation, resource: AclResource, name: str) -> None:
        """Raise the resource's AUTHORIZATION_FAILED error if the client may not do the operation."""
        if not self.allowed(operation, resource, name):
            message = f"{self.session.principal} has no permission for {operation.name} on {resource.name} {name!r}"
            raise NotAuthorizedError(REFUSED_AS[resource], message)

    def allowed(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether the client may do an operation that it has requested. Log that it may not."""
        if self.authorizer.allows(self.session, operation, resource, name):
            return True
        self.authorizer.denied(self.session, self.api_key, operation, resource, name)
        return False

    def may(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether the client may do the operation, for a list that omits other items, or for a choice."""
        return self.authorizer.allows(self.session, operation, resource, name)

    def may_some(self, operation: AclOperation, resource: AclResource) -> bool:
        """Return whether the client may do the operation on at least one possible resource of the type."""
        return self.authorizer.allows_some(self.session, operation, resource)

    def operations_on(self, resource: AclResource, name: str) -> int:
        """Return the operations that the client may do as a bit field (KIP-430)."""
        if not self.authorizer.enabled:
            return EVERYTHING[resource]
        return sum(1 << operation for operation in SUPPORTED[resource] if self.may(operation, resource, name))


def may_create(ctx: RequestContext, topic: str, permitted: Permitted) -> bool:
    """Return whether the client may create this topic, because it may create any topic or this one.

    `permitted` is `ctx.may`, or `ctx.allowed` to log a denial.
    """
    return ctx.may(AclOperation.CREATE, *CLUSTER) or permitted(AclOperation.CREATE, AclResource.TOPIC, topic)


def cluster_operations(ctx: RequestContext, *, asked: bool) -> int:
    """Return the operations on the cluster as a bit field (KIP-430), or 0 if the client may not describe the cluster.

    Return NOT_ASKED if the client has not requested them.
    """
    if not asked:
        return NOT_ASKED
    return ctx.operations_on(*CLUSTER) if ctx.allowed(AclOperation.DESCRIBE, *CLUSTER) else 0
