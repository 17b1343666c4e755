"""ListPartitionReassignments (KIP-455): replicas never move here, so no reassignment is ever in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


def handle(
    _broker: Broker, _request: ListPartitionReassignmentsRequest, _ctx: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Return no topics: Kafka leaves out unknown topics and partitions that are not reassigned."""
    return ListPartitionReassignmentsResponse()
