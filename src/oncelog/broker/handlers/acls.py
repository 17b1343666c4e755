"""Handle CreateAcls, DeleteAcls and DescribeAcls (KIP-140, KIP-290).

Errors and messages are those of Kafka's `AclApis` and `AclControlManager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from oncelog.broker.metadata.acls import AclAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import KEYS_A_TURN, Yielder, in_turns, mapped
from oncelog.cluster.acls import Acl, AclFilter, Pattern
from oncelog.log.steps import Steps
from oncelog.net.server import BadFrameError
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from oncelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from oncelog.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

_DISABLED = Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
_RESOURCES = frozenset(AclResource) - {AclResource.UNKNOWN, AclResource.ANY}
_PATTERNS = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_OPERATIONS = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}
_PERMISSIONS = frozenset({AclPermission.DENY, AclPermission.ALLOW})


async def handle_create(
    acls: AclAdministration, enabled: bool, request: CreateAclsRequest, ctx: RequestContext
) -> CreateAclsResponse:
    """Create the valid ACLs, all or none. Return an error for each of the others."""
    await mapped(
        request.creations,
        lambda each: _check_known(each.resource_type, each.resource_pattern_type, each.operation, each.permission_type),
    )
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    if not enabled:
        return CreateAclsResponse(results=[_not_created(_DISABLED)] * len(request.creations))
    wanted = await mapped(request.creations, _valid)
    try:
        await acls.create(each for each in wanted if isinstance(each, Acl))
    except ProtocolError as error:
        failed = Refusal.of(error)
        wanted = await mapped(wanted, lambda each: each if isinstance(each, Refusal) else failed)
    created = AclCreationResult(error_message="")  # as in Kafka

    def result(each: Acl | Refusal) -> AclCreationResult:
        return _not_created(each) if isinstance(each, Refusal) else created

    return CreateAclsResponse(results=await mapped(wanted, result))


def _check_known(*numbers: int) -> None:
    """Close the connection if a number is 0, as Kafka does: it stands for values that the client does not know."""
    if 0 in numbers:
        raise BadFrameError("a request for ACLs has the number 0 as an operation or a type")


def _valid(asked: AclCreation) -> Acl | Refusal:
    """Return the requested ACL, or why it is invalid."""
    reason = ""
    if asked.resource_type == AclResource.CLUSTER and asked.resource_name != CLUSTER[1]:
        reason = f"The only valid name for the CLUSTER resource is {CLUSTER[1]}"
    elif not asked.resource_name:
        reason = "Invalid empty resource name"
    elif asked.resource_type not in _RESOURCES:
        reason = f"Invalid resourceType {_name(AclResource, asked.resource_type)}"
    elif asked.resource_pattern_type not in _PATTERNS:
        reason = f"Invalid patternType {_name(PatternType, asked.resource_pattern_type)}"
    elif asked.operation not in _OPERATIONS:
        reason = f"Invalid operation {_name(AclOperation, asked.operation)}"
    elif asked.permission_type not in _PERMISSIONS:
        reason = f"Invalid permissionType {_name(AclPermission, asked.permission_type)}"
    elif ":" not in asked.principal:
        reason = (
            f"Could not parse principal from `{asked.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    if reason:
        return Refusal(ErrorCode.INVALID_REQUEST, reason)
    return Acl(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        asked.host,
        asked.operation,
        asked.permission_type,
    )


def _name(kinds: type[AclResource] | type[PatternType] | type[AclOperation] | type[AclPermission], number: int) -> str:
    return next((kind.name for kind in kinds if kind == number), "UNKNOWN")


def _not_created(refusal: Refusal) -> AclCreationResult:
    return AclCreationResult(error_code=refusal.code, error_message=refusal.message)


async def handle_delete(
    acls: AclAdministration, enabled: bool, request: DeleteAclsRequest, ctx: RequestContext
) -> DeleteAclsResponse:
    """Delete the ACLs that valid filters select, all or none. Return them by filter."""
    await mapped(
        request.filters,
        lambda each: _check_known(
            each.resource_type_filter, each.pattern_type_filter, each.operation, each.permission_type
        ),
    )
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    if not enabled:
        return DeleteAclsResponse(filter_results=[_not_deleted(_DISABLED)] * len(request.filters))
    filters = await mapped(request.filters, _valid_filter)
    try:
        deleted = await acls.delete(filters)
    except ProtocolError as error:
        failed = Refusal.of(error)
        deleted = await mapped(filters, lambda each: each if isinstance(each, Refusal) else failed)
    results = []
    yielder = Yielder()
    for found in deleted:
        await yielder.next()
        if isinstance(found, Refusal):
            results.append(_not_deleted(found))
        else:
            results.append(DeleteAclsFilterResult(matching_acls=await mapped(found, _matching)))
    return DeleteAclsResponse(filter_results=results)


def _valid_filter(asked: DeleteAclsFilter) -> AclFilter | Refusal:
    """Return the filter, or why it is invalid."""
    chosen = _filter(asked)
    if _name(AclResource, chosen.resource) == "UNKNOWN" or _name(PatternType, chosen.pattern) == "UNKNOWN":
        return Refusal(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if _name(AclOperation, chosen.operation) == "UNKNOWN" or _name(AclPermission, chosen.permission) == "UNKNOWN":
        return Refusal(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")
    return chosen


def _filter(asked: DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _not_deleted(refusal: Refusal) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=refusal.code, error_message=refusal.message)


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


async def handle_describe(
    acls: AclAdministration, enabled: bool, request: DescribeAclsRequest, ctx: RequestContext
) -> DescribeAclsResponse:
    """Return the ACLs that the filter selects, by resource pattern."""
    _check_known(request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type)
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    if not enabled:
        message = "No Authorizer is configured on the broker"
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=message)
    found = await acls.matching(_filter(request))
    return DescribeAclsResponse(resources=await in_turns(_described(found), KEYS_A_TURN))


def _described(acls: Iterable[Acl]) -> Steps[list[DescribeAclsResource]]:
    resources: dict[Pattern, DescribeAclsResource] = {}
    for acl in acls:
        yield
        resource = resources.get(acl.key)
        if resource is None:
            resource = resources[acl.key] = DescribeAclsResource(
                resource_type=acl.resource, resource_name=acl.name, pattern_type=acl.pattern, acls=[]
            )
        resource.acls.append(
            AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return list(resources.values())


def bind_create(services: HandlerServices) -> Handler:
    """Return the handler of CreateAcls."""
    return partial(handle_create, services.acls, services.authorizer.enabled)


def bind_delete(services: HandlerServices) -> Handler:
    """Return the handler of DeleteAcls."""
    return partial(handle_delete, services.acls, services.authorizer.enabled)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeAcls."""
    return partial(handle_describe, services.acls, services.authorizer.enabled)
