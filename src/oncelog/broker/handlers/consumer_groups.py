"""Reject the requests of the consumer group protocol (KIP-848), as Kafka does if `group.version` is 0.

The broker serves these APIs nevertheless. If ApiVersions does not name ConsumerGroupHeartbeat, librdkafka looks for
another coordinator forever. With the error of ConsumerGroupHeartbeat, its consumer stops with a message. After the
error of ConsumerGroupDescribe, clients send DescribeGroups.
"""

from __future__ import annotations

import logging
from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def heartbeat(
    logger: logging.Logger, request: ConsumerGroupHeartbeatRequest, ctx: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Return UNSUPPORTED_VERSION (`KafkaApis.handleConsumerGroupHeartbeat`)."""
    logger.info(
        "%s (%s) of group %r requests the consumer protocol (KIP-848), which this broker does not support; "
        "set group.protocol=classic",
        ctx.client_id, ctx.session.host, request.group_id,
    )  # fmt: skip
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="this broker does not support the consumer protocol (KIP-848); set group.protocol=classic",
    )


async def describe(request: ConsumerGroupDescribeRequest, _ctx: RequestContext) -> ConsumerGroupDescribeResponse:
    """Return UNSUPPORTED_VERSION for each group (`KafkaApis.handleConsumerGroupDescribe`)."""
    response = ConsumerGroupDescribeResponse()
    yielder = Yielder()
    for group_id in request.group_ids:
        await yielder.next()
        response.groups.append(DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION))
    return response


def bind_heartbeat(services: HandlerServices) -> Handler:
    """Return the handler of ConsumerGroupHeartbeat."""
    return partial(heartbeat, services.runtime.logger)


def bind_describe(_services: HandlerServices) -> Handler:
    """Return the handler of ConsumerGroupDescribe."""
    return describe
