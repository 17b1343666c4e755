"""InitProducerId: a producer id and epoch, transactional or only idempotent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: InitProducerIdRequest, ctx: RequestContext) -> InitProducerIdResponse:
    """Waits for the coordinator's record, and for a block of producer ids where none is left."""
    return await broker.transactions.init_producer_id(request, ctx.api_version)
