"""Handle the requests of the consumer protocol (KIP-848).

While the protocol is off, they get UNSUPPORTED_VERSION, as in Kafka's `KafkaApis`. Before any other check: then clients
say that the cluster does not support the protocol.
"""

from __future__ import annotations

import logging
from functools import partial

from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.coordinator_topics import requiring_topic
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, counted
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS

_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def heartbeat(
    groups: GroupService, logger: logging.Logger, request: ConsumerGroupHeartbeatRequest, ctx: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Keep a member alive, and tell it what it shall own. Return UNSUPPORTED_VERSION while the protocol is off."""
    if not groups.consumer_protocol_enabled:
        logger.info(
            "%s (%s) of group %r requests the consumer protocol (KIP-848), which is off: group.version or "
            "group.coordinator.rebalance.protocols does not allow it",
            ctx.client_id,
            ctx.session.host,
            request.group_id,
        )
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message="the consumer protocol (KIP-848) is off in this cluster; set group.protocol=classic",
        )
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    for name in await counted(request.subscribed_topic_names or []):
        ctx.authorize(AclOperation.DESCRIBE, AclResource.TOPIC, name)
    return await groups.consumer_heartbeat(
        request,
        ctx.api_version,
        ctx.client_id,
        ctx.session,
        lambda name: ctx.allowed(AclOperation.DESCRIBE, AclResource.TOPIC, name),
    )


async def describe(
    groups: GroupService, request: ConsumerGroupDescribeRequest, ctx: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Return the state and the members of each group, or its error. A group that is named twice is described once."""
    response = ConsumerGroupDescribeResponse()
    enabled = groups.consumer_protocol_enabled
    yielder = Yielder()
    for group_id in await counted(request.group_ids):
        await yielder.next()
        if not enabled:
            response.groups.append(DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION))
            continue
        try:
            ctx.authorize(AclOperation.DESCRIBE, AclResource.GROUP, group_id)
        except ProtocolError as error:
            response.groups.append(DescribedGroup(group_id=group_id, error_code=error.code))
            continue
        found = groups.describe_consumer_group(group_id)
        topics = await counted(each.topic_name for member in found.members for each in _assigned(member))
        if not all(ctx.allowed(AclOperation.DESCRIBE, AclResource.TOPIC, name) for name in topics):
            found = DescribedGroup(
                group_id=group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=_HIDDEN_TOPICS
            )
        if request.include_authorized_operations and not found.error_code:
            found.authorized_operations = ctx.operations_on(AclResource.GROUP, group_id)
        response.groups.append(found)
    return response


def _assigned(member: Member) -> list[TopicPartitions]:
    return member.assignment.topic_partitions + member.target_assignment.topic_partitions


def bind_heartbeat(services: HandlerServices) -> Handler:
    """Return the handler of ConsumerGroupHeartbeat."""
    return requiring_topic(
        services.topics, CONSUMER_OFFSETS, partial(heartbeat, services.groups, services.runtime.logger)
    )


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of ConsumerGroupDescribe."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(describe, services.groups))
