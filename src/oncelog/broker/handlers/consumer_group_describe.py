"""ConsumerGroupDescribe: refused with the consumer protocol itself; clients ask DescribeGroups then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext


def handle(
    _broker: Broker, request: ConsumerGroupDescribeRequest, _ctx: RequestContext
) -> ConsumerGroupDescribeResponse:
    """UNSUPPORTED_VERSION for every group (`KafkaApis.handleConsumerGroupDescribe`)."""
    groups = [
        DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION) for group_id in request.group_ids
    ]
    return ConsumerGroupDescribeResponse(groups=groups)
