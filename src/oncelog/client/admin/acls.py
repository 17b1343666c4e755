"""Create, describe and delete ACLs with a `ClusterClient` (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest

CLUSTER_NAME = "kafka-cluster"
"""The name of the cluster in ACLs."""
_ONLY_IN_FILTERS = frozenset({"any", "match"})


def _by_name(kinds: type[IntEnum]) -> dict[str, int]:
    return {kind.name.lower(): int(kind) for kind in kinds if kind.name != "UNKNOWN"}


_RESOURCES, _PATTERNS = _by_name(AclResource), _by_name(PatternType)
_OPERATIONS, _PERMISSIONS = _by_name(AclOperation), _by_name(AclPermission)


@in_notebooks()
class AclBinding(NamedTuple):
    """An ACL: it allows or denies a principal at a host an operation on a resource (Kafka's `AclBinding`).

    `resource_type` is "topic", "group", "cluster" (whose name is "kafka-cluster"), "transactional_id",
    "delegation_token" or "user". `principal` is for example "User:alice", or "User:*" for everyone. `operation` is
    "read", "write", "all" and so on. A `pattern_type` "prefixed" means all resources whose names start with `name`.
    The literal name "*" means all resources. The host is an address, or "*" for every host. `permission_type` is
    "allow" or "deny".
    """

    resource_type: str
    name: str
    principal: str
    operation: str
    pattern_type: str = "literal"
    host: str = "*"
    permission_type: str = "allow"


@in_notebooks()
class AclBindingFilter(NamedTuple):
    """Select ACLs (Kafka's `AclBindingFilter`). None selects every value.

    The values are those of `AclBinding`. A `pattern_type` None selects the patterns that have exactly this name. With
    "match", the filter selects all patterns that include the resource of this name.
    """

    resource_type: str | None = None
    name: str | None = None
    principal: str | None = None
    operation: str | None = None
    pattern_type: str | None = None
    host: str | None = None
    permission_type: str | None = None


async def create_acls(cluster: ClusterClient, acls: AclBinding | Iterable[AclBinding]) -> None:
    """Create ACLs (Kafka's CreateAcls). Existing ones are left.

    If the broker rejects one, it creates the others nevertheless. Then this raises the error of the first rejected one:
    RequestError (INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED if the broker has no authorizer).
    """
    wanted = [acls] if isinstance(acls, AclBinding) else list(acls)
    creations = [
        AclCreation(
            resource_type=_exact(_RESOURCES, "resource_type", acl.resource_type),
            resource_name=acl.name,
            resource_pattern_type=_exact(_PATTERNS, "pattern_type", acl.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=_exact(_OPERATIONS, "operation", acl.operation),
            permission_type=_exact(_PERMISSIONS, "permission_type", acl.permission_type),
        )
        for acl in wanted
    ]
    if not creations:
        return
    response = await cluster.call_controller(CreateAclsRequest(creations=creations))
    _require_count(response.results, wanted, "CreateAcls")
    for acl, result in zip(wanted, response.results, strict=True):
        raise_for_error(
            result, f"ACL for {acl.principal} to {acl.operation} {acl.resource_type} {acl.name!r} ({acl.pattern_type})"
        )


async def describe_acls(cluster: ClusterClient, chosen: AclBindingFilter | None = None) -> list[AclBinding]:
    """Return the ACLs that a filter selects, sorted (Kafka's DescribeAcls). Without a filter, return all ACLs.

    Raises RequestError (CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED if the broker has no authorizer).
    """
    request = DescribeAclsRequest(**_fields(chosen or AclBindingFilter()))
    response = await cluster.call_any(request)
    raise_for_error(response, "ACLs")
    return sorted(
        _binding(found.resource_type, found.resource_name, found.pattern_type, acl)
        for found in response.resources
        for acl in found.acls
    )


async def delete_acls(
    cluster: ClusterClient, filters: AclBindingFilter | Iterable[AclBindingFilter]
) -> list[AclBinding]:
    """Delete the ACLs that any of the filters selects, and return them, sorted (Kafka's DeleteAcls).

    Raises RequestError (INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED if the broker has no
    authorizer).
    """
    wanted = [filters] if isinstance(filters, AclBindingFilter) else list(filters)
    if not wanted:
        return []
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(chosen)) for chosen in wanted])
    response = await cluster.call_controller(request)
    _require_count(response.filter_results, wanted, "DeleteAcls")
    raise_for_error(response, "ACLs")
    return sorted(
        {
            _binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
            for result in response.filter_results
            for acl in result.matching_acls
        }
    )


def _fields(chosen: AclBindingFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": _number(_RESOURCES, "resource_type", chosen.resource_type or "any"),
        "resource_name_filter": chosen.name,
        "pattern_type_filter": _number(_PATTERNS, "pattern_type", chosen.pattern_type or "any"),
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": _number(_OPERATIONS, "operation", chosen.operation or "any"),
        "permission_type": _number(_PERMISSIONS, "permission_type", chosen.permission_type or "any"),
    }


def _binding(resource: int, name: str, pattern: int, entry: Any) -> AclBinding:
    return AclBinding(
        _name(_RESOURCES, resource),
        name,
        entry.principal,
        _name(_OPERATIONS, entry.operation),
        _name(_PATTERNS, pattern),
        entry.host,
        _name(_PERMISSIONS, entry.permission_type),
    )


def _number(numbers: Mapping[str, int], what: str, name: str) -> int:
    if name not in numbers:
        raise errors.ConfigError(f"{what} must be one of {', '.join(numbers)}, not {name!r}")
    return numbers[name]


def _exact(numbers: Mapping[str, int], what: str, name: str) -> int:
    return _number({each: number for each, number in numbers.items() if each not in _ONLY_IN_FILTERS}, what, name)


def _name(numbers: Mapping[str, int], number: int) -> str:
    """Return the name of a number. A newer broker may have others."""
    return next((name for name, each in numbers.items() if each == number), f"unknown_{number}")


def _require_count(answers: list[Any], asked: list[Any], what: str) -> None:
    if len(answers) != len(asked):
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        raise errors.RequestError(f"{what}: the response has {len(answers)} results for {len(asked)} items", code)
