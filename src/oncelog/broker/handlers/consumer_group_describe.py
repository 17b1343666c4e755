"""ConsumerGroupDescribe: refused with the consumer protocol itself; clients ask DescribeGroups then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.turns import Turns
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(
    _broker: Broker, request: ConsumerGroupDescribeRequest, _ctx: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Return UNSUPPORTED_VERSION for each group (`KafkaApis.handleConsumerGroupDescribe`)."""
    response = ConsumerGroupDescribeResponse()
    turns = Turns()
    for group_id in request.group_ids:
        await turns.next()
        response.groups.append(DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION))
    return response
