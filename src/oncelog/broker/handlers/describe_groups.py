"""DescribeGroups: members and state of classic groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.requests import operations
from oncelog.broker.turns import Turns
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: DescribeGroupsRequest, ctx: RequestContext) -> DescribeGroupsResponse:
    """In the order of the request."""
    groups = []
    turns = Turns()
    for group_id in request.groups:
        await turns.next()
        groups.append(broker.groups.describe_group(group_id, ctx.api_version))
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = operations.OF_GROUP
    return DescribeGroupsResponse(groups=groups)
