"""CreateAcls, DeleteAcls and DescribeAcls without an authorizer (KIP-140).

The responses are those of Kafka's `AclApis` without an authorizer.
"""

from __future__ import annotations

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER, AclOperation
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from oncelog.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


def handle_create(request: CreateAclsRequest, ctx: RequestContext) -> CreateAclsResponse:
    """Return SECURITY_DISABLED for each entry."""
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
    return CreateAclsResponse(results=[refused] * len(request.creations))


def handle_delete(request: DeleteAclsRequest, ctx: RequestContext) -> DeleteAclsResponse:
    """Return SECURITY_DISABLED for each filter."""
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
    )
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def handle_describe(_request: DescribeAclsRequest, ctx: RequestContext) -> DescribeAclsResponse:
    """Return SECURITY_DISABLED."""
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )


def bind_create(_services: HandlerServices) -> Handler:
    """Return the handler of CreateAcls."""
    return handle_create


def bind_delete(_services: HandlerServices) -> Handler:
    """Return the handler of DeleteAcls."""
    return handle_delete


def bind_describe(_services: HandlerServices) -> Handler:
    """Return the handler of DescribeAcls."""
    return handle_describe
