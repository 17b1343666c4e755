"""ListTransactions: the transactional ids of this broker's coordinators (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: ListTransactionsRequest, _ctx: RequestContext) -> ListTransactionsResponse:
    """Those that pass all filters; a pattern must match the whole transactional id."""
    return await broker.transactions.list_transactions(request)
