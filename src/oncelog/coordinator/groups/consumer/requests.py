"""Check the fields of ConsumerGroupHeartbeat, before its group is looked up.

Source: Kafka's `GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncelog.coordinator.groups.consumer.member import LEAVE_STATIC_EPOCH
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

_CLIENTS_NAME_MEMBERS = 1
"""The version from which on clients choose their member ids (KIP-1082)."""

Check = tuple[Callable[[ConsumerGroupHeartbeatRequest], bool], str]
"""What is wrong, and the error then."""


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()


_ALWAYS: Sequence[Check] = (
    (lambda request: _is_blank(request.group_id), "GroupId can't be empty."),
    (lambda request: _is_blank(request.instance_id), "InstanceId can't be empty."),
    (lambda request: _is_blank(request.rack_id), "RackId can't be empty."),
    (lambda request: request.member_epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid."),
)
_JOINS: Sequence[Check] = (
    (lambda request: request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request."),
    (lambda request: request.topic_partitions != [], "TopicPartitions must be empty when (re-)joining."),
    (
        lambda request: request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    ),
)
_LEAVES_FOR_A_WHILE: Sequence[Check] = ((lambda request: request.instance_id is None, "InstanceId can't be null."),)
_BY_EPOCH = {0: _JOINS, LEAVE_STATIC_EPOCH: _LEAVES_FOR_A_WHILE}


def check(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]) -> None:
    """Raise INVALID_REQUEST, or UNSUPPORTED_ASSIGNOR."""
    if _is_blank(request.member_id) and (version >= _CLIENTS_NAME_MEMBERS or request.member_epoch != 0):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    for is_wrong, message in (*_ALWAYS, *_BY_EPOCH.get(request.member_epoch, ())):
        if is_wrong(request):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        message = (
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        )
        raise ProtocolError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
