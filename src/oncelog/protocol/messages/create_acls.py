"""CreateAcls: add access control entries (KIP-140, KIP-290)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class AclCreation(Message):
    """`Creations` of CreateAclsRequest."""

    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(Message, api_key=30, versions=(1, 3), flexible=2):
    """The request."""

    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Message):
    """`Results` of CreateAclsResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class CreateAclsResponse(Message, api_key=30, versions=(1, 3), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)
