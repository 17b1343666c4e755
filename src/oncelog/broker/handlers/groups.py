"""Handle the requests for classic groups, from their members and from tools."""

from __future__ import annotations

from functools import partial

from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.coordinator_topics import requiring_topic
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, counted, filtered
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from oncelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.protocol.topics import CONSUMER_OFFSETS

_PROTOCOL_NAME_MAY_BE_NULL = 7
_NAMES_PROTOCOL = 5
MOST_PROTOCOLS = 1000
"""The maximum number of protocols of one member. A group compares those of all members, while other clients wait."""


async def join(groups: GroupService, request: JoinGroupRequest, ctx: RequestContext) -> JoinGroupResponse | None:
    """Wait until the generation begins, then answer. Return None if the client disconnects before."""
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    if len(request.protocols) > MOST_PROTOCOLS:
        response: JoinGroupResponse | None = JoinGroupResponse(
            error_code=ErrorCode.INVALID_REQUEST, member_id=request.member_id, protocol_name=None
        )
    else:
        response = await groups.join_group(request, ctx.api_version, ctx.client_id, ctx.session)
    if response is None:
        return None
    if response.protocol_name is None and ctx.api_version < _PROTOCOL_NAME_MAY_BE_NULL:
        response.protocol_name = ""
    return response


async def sync(groups: GroupService, request: SyncGroupRequest, ctx: RequestContext) -> SyncGroupResponse | None:
    """Wait until the leader has sent the assignment, then answer. Return None if the client disconnects before.

    From version 5 on, the request must name the protocol (KIP-559).
    """
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    if ctx.api_version >= _NAMES_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await groups.sync_group(request, ctx.session)


async def describe(groups: GroupService, request: DescribeGroupsRequest, ctx: RequestContext) -> DescribeGroupsResponse:
    """Return the state and the members of each group, or its error, in the order of the request.

    A group that the request names twice is described once, so that a small request does not cause a huge response.
    """
    described = []
    yielder = Yielder()
    for group_id in await counted(request.groups):
        await yielder.next()
        try:
            ctx.authorize(AclOperation.DESCRIBE, AclResource.GROUP, group_id)
        except ProtocolError as error:
            described.append(DescribedGroup(group_id=group_id, error_code=error.code))
        else:
            described.append(groups.describe_group(group_id, ctx.api_version))
    if request.include_authorized_operations:
        for group in described:
            await yielder.next()
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = ctx.operations_on(AclResource.GROUP, group.group_id)
    return DescribeGroupsResponse(groups=described)


async def delete(groups: GroupService, request: DeleteGroupsRequest, ctx: RequestContext) -> DeleteGroupsResponse:
    """Return an error for each group. A group that the request names twice has one result (KIP-229)."""
    allowed, refused = [], []
    yielder = Yielder()
    for group_id in await counted(request.groups_names):
        await yielder.next()
        try:
            ctx.authorize(AclOperation.DELETE, AclResource.GROUP, group_id)
        except ProtocolError as error:
            refused.append(DeletableGroupResult(group_id=group_id, error_code=error.code))
        else:
            allowed.append(group_id)
    return DeleteGroupsResponse(results=await groups.delete_groups(allowed) + refused)


def heartbeat(groups: GroupService, request: HeartbeatRequest, ctx: RequestContext) -> HeartbeatResponse:
    """Return the error that says whether the member has to join again."""
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    return groups.heartbeat(request)


async def leave(groups: GroupService, request: LeaveGroupRequest, ctx: RequestContext) -> LeaveGroupResponse:
    """Return an error for each member."""
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    return await groups.leave_group(request, ctx.api_version)


async def list_groups(groups: GroupService, request: ListGroupsRequest, ctx: RequestContext) -> ListGroupsResponse:
    """List all groups if the client may describe the cluster, otherwise the groups that it may describe."""
    response = await groups.list_groups(request)
    if not ctx.may(AclOperation.DESCRIBE, *CLUSTER):
        response.groups = await filtered(
            response.groups, lambda group: ctx.may(AclOperation.DESCRIBE, AclResource.GROUP, group.group_id)
        )
    return response


def bind_join(services: HandlerServices) -> Handler:
    """Return the handler of JoinGroup."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(join, services.groups))


def bind_sync(services: HandlerServices) -> Handler:
    """Return the handler of SyncGroup."""
    return partial(sync, services.groups)


def bind_heartbeat(services: HandlerServices) -> Handler:
    """Return the handler of Heartbeat."""
    return partial(heartbeat, services.groups)


def bind_leave(services: HandlerServices) -> Handler:
    """Return the handler of LeaveGroup."""
    return partial(leave, services.groups)


def bind_list(services: HandlerServices) -> Handler:
    """Return the handler of ListGroups."""
    return partial(list_groups, services.groups)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeGroups."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(describe, services.groups))


def bind_delete(services: HandlerServices) -> Handler:
    """Return the handler of DeleteGroups."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(delete, services.groups))
