"""CreateAcls without an authorizer (KIP-140)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


def handle(_broker: Broker, request: CreateAclsRequest, _ctx: RequestContext) -> CreateAclsResponse:
    """Return SECURITY_DISABLED for each entry, as Kafka's `AclApis` does without an authorizer."""
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
    return CreateAclsResponse(results=[refused] * len(request.creations))
