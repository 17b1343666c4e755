"""FindCoordinator: the broker that coordinates a group or a transactional id; makes the internal topic if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.turns import Turns
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext
    from oncelog.cluster.metadata import TopicInfo

_BATCHED_SINCE = 4
_TOPICS = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
"""Key type -> the internal topic that it lives in; share groups (2) are not served."""


async def handle(broker: Broker, request: FindCoordinatorRequest, ctx: RequestContext) -> FindCoordinatorResponse:
    """Each key has its own error; an unknown key type is INVALID_REQUEST."""
    batched = ctx.api_version >= _BATCHED_SINCE
    keys = request.coordinator_keys if batched else [request.key]
    found = []
    turns = Turns()
    for key in keys:
        await turns.next()
        found.append(await _find(broker, request.key_type, key))
    if batched:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find(broker: Broker, key_type: int, key: str) -> Coordinator:
    try:
        topic_name = _TOPICS.get(key_type)
        if topic_name is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"coordinators of type {key_type} are not known here")
        topic = await _topic(broker, topic_name)
        home = partition_for(key, topic.partition_count)
        leader = topic.partitions[home].leader
        if broker.partitions.is_offline(topic_name, home):
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic_name}-{home} is offline")
        if leader != broker.node_id:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {leader} is not known here")
    except ProtocolError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=str(error))
    return Coordinator(key=key, node_id=leader, host=broker.advertised_host, port=broker.advertised_port)


async def _topic(broker: Broker, name: str) -> TopicInfo:
    try:
        return await broker.ensure_internal_topic(name)
    except ProtocolError as error:  # whatever it is, clients know this one, and come again
        raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"cannot make {name}: {error}") from error
