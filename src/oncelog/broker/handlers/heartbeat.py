"""Heartbeat: a member of a classic group lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


def handle(broker: Broker, request: HeartbeatRequest, _ctx: RequestContext) -> HeartbeatResponse:
    """Says whether to join again."""
    return broker.groups.heartbeat(request)
