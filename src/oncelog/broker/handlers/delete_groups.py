"""DeleteGroups: forgets groups that have no members, with their offsets (KIP-229)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext


async def handle(broker: Broker, request: DeleteGroupsRequest, _ctx: RequestContext) -> DeleteGroupsResponse:
    """Each group has its own error; one named twice is answered once."""
    return DeleteGroupsResponse(results=await broker.groups.delete_groups(dict.fromkeys(request.groups_names)))
