"""ConsumerGroupHeartbeat: refused, as by a Kafka whose `group.version` is 0 (`KafkaApis.handleConsumerGroupHeartbeat`).

It is served all the same: an API that ApiVersions does not name makes librdkafka look for another coordinator for ever,
while this error ends its consumer with a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


def handle(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, ctx: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """UNSUPPORTED_VERSION to everyone."""
    broker.log.info(
        "%s (%s) of group %s wants the consumer protocol (KIP-848), which is not there: group.protocol=classic is",
        ctx.client_id, ctx.client_host, request.group_id,
    )  # fmt: skip
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="this broker has no consumer group protocol (KIP-848); set group.protocol=classic",
    )
