"""FindCoordinator: find the broker that coordinates a group or a transactional id.

The handler creates the internal topic if it does not exist.
"""

from __future__ import annotations

from functools import partial

from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.nodes import Nodes
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.topics import TopicInfo
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource, CoordinatorType
from oncelog.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE

_BATCHED_SINCE = 4
_TOPICS: dict[int, str] = {
    CoordinatorType.GROUP: CONSUMER_OFFSETS,
    CoordinatorType.TRANSACTION: TRANSACTION_STATE,
}
"""The internal topic of each key type. Share groups (2) are not served."""
_RESOURCES: dict[int, AclResource] = {
    CoordinatorType.GROUP: AclResource.GROUP,
    CoordinatorType.TRANSACTION: AclResource.TRANSACTIONAL_ID,
}


async def handle(
    topics: TopicAdministration,
    nodes: Nodes,
    request: FindCoordinatorRequest,
    ctx: RequestContext,
) -> FindCoordinatorResponse:
    """Return the coordinator of each key, or its error. An unknown key type is INVALID_REQUEST."""
    batched = ctx.api_version >= _BATCHED_SINCE
    keys = request.coordinator_keys if batched else [request.key]
    found = []
    yielder = Yielder()
    for key in keys:
        await yielder.next()
        found.append(await _find(topics, nodes, request.key_type, key, ctx))
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


async def _find(topics: TopicAdministration, nodes: Nodes, key_type: int, key: str, ctx: RequestContext) -> Coordinator:
    try:
        topic_name = _TOPICS.get(key_type)
        if topic_name is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}")
        ctx.authorize(AclOperation.DESCRIBE, _RESOURCES[key_type], key)
        topic = await _topic(topics, topic_name)
        coordinator_partition = partition_for(key, topic.partition_count)
        info = topic.partitions[coordinator_partition]
        view = nodes.describe(topic_name, coordinator_partition, info, ctx.session.listener)
        leader = nodes.find(view.leader, ctx.session.listener)
        if leader is None:
            message = f"{topic_name}-{coordinator_partition} has no leader that can be reached"
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    except ProtocolError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=str(error))
    return Coordinator(key=key, node_id=leader.node_id, host=leader.host, port=leader.port)


async def _topic(topics: TopicAdministration, name: str) -> TopicInfo:
    try:
        return await topics.ensure_internal(name)
    except ProtocolError as error:  # clients retry after this error, whatever the cause
        raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"cannot create topic {name}: {error}") from error


def bind(services: HandlerServices) -> Handler:
    """Return the handler of FindCoordinator."""
    return partial(handle, services.topics, services.nodes)
