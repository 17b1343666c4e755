"""DescribeTransactions: state, producer and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.turns import Turns
from oncelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(
    broker: Broker, request: DescribeTransactionsRequest, _ctx: RequestContext
) -> DescribeTransactionsResponse:
    """Each transactional id has its own error."""
    states = []
    turns = Turns()
    for name in request.transactional_ids:
        await turns.next()
        states.append(await broker.transactions.describe(name))
    return DescribeTransactionsResponse(transaction_states=states)
