"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from functools import partial

from oncelog.broker.requests.context import RequestContext, cluster_operations
from oncelog.broker.requests.nodes import Nodes
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


def handle(
    cluster_id: str, nodes: Nodes, request: DescribeClusterRequest, ctx: RequestContext
) -> DescribeClusterResponse:
    """Describe the brokers. Return MISMATCHED_ENDPOINT_TYPE if the request is for controllers.

    Other endpoint types get UNSUPPORTED_ENDPOINT_TYPE. Source: Kafka's `AuthHelper.computeDescribeClusterResponse`.
    """
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker, not a controller; request endpoint type 1",
        )
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=cluster_id,
        controller_id=nodes.controller,
        brokers=[
            DescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in nodes.running(ctx.session.listener)
        ],
        cluster_authorized_operations=cluster_operations(ctx, asked=request.include_cluster_authorized_operations),
    )


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeCluster."""
    return partial(handle, services.membership.cluster_id, services.nodes)
