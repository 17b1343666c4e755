"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oncelog.broker.requests.context import RequestContext, cluster_operations
from oncelog.broker.requests.parts import Endpoint, Handler, Parts
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


def handle(
    cluster_id: str, endpoint: Callable[[str], Endpoint], request: DescribeClusterRequest, ctx: RequestContext
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
    me = endpoint(ctx.listener)
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=cluster_id,
        controller_id=me.node_id,
        brokers=[DescribeClusterBroker(broker_id=me.node_id, host=me.host, port=me.port)],
        cluster_authorized_operations=cluster_operations(ctx, asked=request.include_cluster_authorized_operations),
    )


def bind(parts: Parts) -> Handler:
    """Return the handler of DescribeCluster."""
    return partial(handle, parts.cluster_id, parts.endpoint)
