"""EndTxn: commits or aborts a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse:
    """Answers when the decision is committed; the partitions' markers follow."""
    return await broker.transactions.end_txn(request, ctx.api_version)
