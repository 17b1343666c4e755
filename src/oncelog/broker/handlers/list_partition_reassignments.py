"""ListPartitionReassignments (KIP-455): replicas never move here, so no reassignment is ever in progress."""

from __future__ import annotations

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(_request: ListPartitionReassignmentsRequest, ctx: RequestContext) -> ListPartitionReassignmentsResponse:
    """Return no topics: Kafka omits unknown topics and partitions that are not reassigned."""
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    return ListPartitionReassignmentsResponse()


def bind(_services: HandlerServices) -> Handler:
    """Return the handler of ListPartitionReassignments."""
    return handle
