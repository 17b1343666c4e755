"""SyncGroup: hands out, and fetches, the assignment of a generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_NAMES_PROTOCOL = 5


async def handle(broker: Broker, request: SyncGroupRequest, ctx: RequestContext) -> SyncGroupResponse:
    """Answers when the leader has assigned. Since version 5 the protocol must be named (KIP-559)."""
    if ctx.api_version >= _NAMES_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await broker.groups.sync_group(request)
