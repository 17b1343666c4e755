"""SyncGroup: hands out, and fetches, the assignment of a generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_NAMES_PROTOCOL = 5


async def handle(broker: Broker, request: SyncGroupRequest, ctx: RequestContext) -> SyncGroupResponse | None:
    """Answer when the leader has sent the assignment. Return None if the client hangs up before.

    From version 5 on, the request must name the protocol (KIP-559).
    """
    if ctx.api_version >= _NAMES_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await broker.groups.sync_group(request, ctx)
