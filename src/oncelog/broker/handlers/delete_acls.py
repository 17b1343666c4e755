"""DeleteAcls without an authorizer (KIP-140)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


def handle(_broker: Broker, request: DeleteAclsRequest, _ctx: RequestContext) -> DeleteAclsResponse:
    """Return SECURITY_DISABLED for each filter, as Kafka's `AclApis` does without an authorizer."""
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
    )
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
