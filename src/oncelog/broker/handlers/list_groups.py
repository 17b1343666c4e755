"""ListGroups: the groups of this broker's coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: ListGroupsRequest, _ctx: RequestContext) -> ListGroupsResponse:
    """Those that pass the filters."""
    return await broker.groups.list_groups(request)
