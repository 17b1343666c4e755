"""DeleteAcls: remove access control entries (KIP-140, KIP-290)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class DeleteAclsFilter(Message):
    """`Filters` of DeleteAclsRequest."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable=0)
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable=0)
    host_filter: str | None = string(nullable=0)
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsRequest(Message, api_key=31, versions=(1, 3), flexible=2):
    """The request."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Message):
    """`MatchingAcls` of DeleteAclsResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsFilterResult(Message):
    """`FilterResults` of DeleteAclsResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(Message, api_key=31, versions=(1, 3), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
