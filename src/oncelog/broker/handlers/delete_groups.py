"""DeleteGroups: forgets groups that have no members, with their offsets (KIP-229)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.turns import counted
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: DeleteGroupsRequest, _ctx: RequestContext) -> DeleteGroupsResponse:
    """Return an error for each group. A group that is named twice has one result."""
    return DeleteGroupsResponse(results=await broker.groups.delete_groups(await counted(request.groups_names)))
