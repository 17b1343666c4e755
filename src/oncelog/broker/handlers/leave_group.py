"""LeaveGroup: members leave a classic group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: LeaveGroupRequest, ctx: RequestContext) -> LeaveGroupResponse:
    """Each member has its own error."""
    return await broker.groups.leave_group(request, ctx.api_version)
