"""DescribeGroups: members and state of classic groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 6, 8, 10, 11
_ALL_OPERATIONS = sum(1 << bit for bit in (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
"""Everybody may do everything: there is no authorizer."""


def handle(broker: Broker, request: DescribeGroupsRequest, ctx: RequestContext) -> DescribeGroupsResponse:
    """In the order of the request."""
    groups = [broker.groups.describe_group(group_id, ctx.api_version) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = _ALL_OPERATIONS
    return DescribeGroupsResponse(groups=groups)
