"""DescribeAcls without an authorizer (KIP-140)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


def handle(_broker: Broker, _request: DescribeAclsRequest, _ctx: RequestContext) -> DescribeAclsResponse:
    """Return SECURITY_DISABLED, as Kafka's `AclApis` does without an authorizer."""
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )
