"""JoinGroup: enters a classic group, or its next generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_PROTOCOL_NAME_MAY_BE_NULL = 7
MOST_PROTOCOLS = 1000
"""Protocols of one member. A group compares them with those of all its members, while other clients wait."""


async def handle(broker: Broker, request: JoinGroupRequest, ctx: RequestContext) -> JoinGroupResponse | None:
    """Answer when the generation begins. Return None if the client hangs up before."""
    if len(request.protocols) > MOST_PROTOCOLS:
        response: JoinGroupResponse | None = JoinGroupResponse(
            error_code=ErrorCode.INVALID_REQUEST, member_id=request.member_id, protocol_name=None
        )
    else:
        response = await broker.groups.join_group(request, ctx)
    if response is None:
        return None
    if response.protocol_name is None and ctx.api_version < _PROTOCOL_NAME_MAY_BE_NULL:
        response.protocol_name = ""
    return response
