"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.requests import operations
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_BROKERS, _CONTROLLERS = 1, 2


def handle(broker: Broker, request: DescribeClusterRequest, ctx: RequestContext) -> DescribeClusterResponse:
    """Brokers only: MISMATCHED_ENDPOINT_TYPE for controllers, which answer for themselves in Kafka; others are unknown.

    Source: `AuthHelper.computeDescribeClusterResponse`.
    """
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker; ask for endpoint type 1",
        )
    me = DescribeClusterBroker(broker_id=broker.node_id, host=broker.advertised_host, port=broker.advertised_port)
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[me],
        cluster_authorized_operations=(
            operations.OF_CLUSTER if request.include_cluster_authorized_operations else operations.NOT_ASKED
        ),
    )
