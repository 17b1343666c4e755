"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_BROKERS = 1


def handle(broker: Broker, request: DescribeClusterRequest, ctx: RequestContext) -> DescribeClusterResponse:
    """There are no controllers to ask for (endpoint type 2): MISMATCHED_ENDPOINT_TYPE, as a Kafka broker says."""
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker; ask for endpoint type 1",
            endpoint_type=_BROKERS,
        )
    me = DescribeClusterBroker(broker_id=broker.node_id, host=broker.advertised_host, port=broker.advertised_port)
    return DescribeClusterResponse(
        endpoint_type=_BROKERS, cluster_id=broker.cluster_id, controller_id=broker.node_id, brokers=[me]
    )
