"""The context of a request, for its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oncelog.broker.requests.operations import (
    ALLOW_EVERYTHING,
    CLUSTER,
    NOT_ASKED,
    OF_CLUSTER,
    REFUSED_AS,
    AclOperation,
    AclResource,
    Authorizer,
)
from oncelog.net.session import Session
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.schema import Message


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
    on_wait: Callable[[list[Message | None]], None] | None = field(default=None, repr=False)
    """Called by the handler of a large Fetch before a long wait, so that the next large Fetch is decoded.

    The only element of the argument is the part of the request that the handler no longer needs. A worker thread frees
    it.
    """

    def authorize(self, operation: AclOperation, resource: AclResource, name: str) -> None:
        """Raise the resource's AUTHORIZATION_FAILED error if the client may not do the operation."""
        if not self.may(operation, resource, name):
            message = f"{self.session.principal} has no permission for {operation.name} on {resource.name} {name!r}"
            raise ProtocolError(REFUSED_AS[resource], message)

    def may(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether the client may do the operation, for a list that omits other items."""
        return self.authorizer.allows(self.session.principal, operation, resource, name)


def may_create(ctx: RequestContext, topic: str) -> bool:
    """Return whether the client may create this topic, because it may create any topic or this one."""
    return ctx.may(AclOperation.CREATE, *CLUSTER) or ctx.may(AclOperation.CREATE, AclResource.TOPIC, topic)


def cluster_operations(ctx: RequestContext, *, asked: bool) -> int:
    """Return the operations on the cluster as a bit field (KIP-430), or 0 if the client may not describe the cluster.

    Return NOT_ASKED if the client has not requested them.
    """
    if not asked:
        return NOT_ASKED
    return OF_CLUSTER if ctx.may(AclOperation.DESCRIBE, *CLUSTER) else 0
