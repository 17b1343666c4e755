"""Describe groups of both protocols, classic and KIP-848, as their coordinators know them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.consumer.consumer_protocol import decode_assignment
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.requests.broker_fanout import gather_brokers
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.schema import DecodeError
from oncelog.protocol.topics import TopicPartition

STATES = (
    *("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"),
    *("Assigning", "Reconciling", "NotReady"),
)
"""States of groups of all types (Kafka's `GroupState`)."""
TYPES = ("Consumer", "Classic", "Share", "Streams")
"""Types of groups (Kafka's `GroupType`)."""
SPELLED = {name.lower(): name for name in TYPES}
"""Brokers write the types in lower case, Kafka's tools in title case."""
DEAD = "Dead"
MEMBER_PROTOCOLS = {0: "classic", 1: "consumer"}
"""By the member type of ConsumerGroupDescribe (KIP-1099)."""


@in_notebooks()
class GroupInfo(NamedTuple):
    """A group in a list: its id, protocol type ("consumer" for consumers), state and type.

    `coordinator` is the node id of the broker that reported the group.
    """

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int = -1


@in_notebooks()
class MemberInfo(NamedTuple):
    """A member of a group. `assignment` has its (topic, partition) pairs.

    It is None if the assignor uses a format of its own. In a group of the consumer protocol, `epoch` is the member's
    epoch, `target` the pairs that the group has assigned to it, and `protocol` "consumer" or "classic" ("" if the
    broker does not report it). Otherwise they are -1, None and "".
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition] | None
    epoch: int = -1
    target: list[TopicPartition] | None = None
    protocol: str = ""


@in_notebooks()
class GroupDescription(NamedTuple):
    """A group and its members. `state` is "Stable", "Empty", "Dead" (it does not exist) or another state of Kafka's.

    `protocol` is the assignor. `type` is "Classic" or "Consumer" (KIP-848). `coordinator` is the node id of its broker.
    In a group of the consumer protocol, `epoch` is the group epoch, and `assignment_epoch` that of the targets. The
    members still move partitions while an epoch of a member is lower.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberInfo]
    type: str = "Classic"
    coordinator: int = -1
    epoch: int = -1
    assignment_epoch: int = -1


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names as Kafka spells them. Raises ConfigError, because a broker ignores an unknown name."""
    spelled = {name.lower(): name for name in known}
    found = []
    for name in given:
        if name.lower() not in spelled:
            near = get_close_matches(name.lower(), spelled, n=1)
            hint = f"did you mean {spelled[near[0]]}?" if near else f"use one of {', '.join(known)}"
            raise errors.ConfigError(f"unknown group {what} {name!r}; {hint}")
        found.append(spelled[name.lower()])
    return found


async def list_groups(
    cluster: ClusterClient,
    states: Sequence[str] = (),
    types: Sequence[str] = (),
    *,
    unanswered: dict[int, errors.RetriableError] | None = None,
) -> list[GroupInfo]:
    """Return the groups of all coordinators, in order of their ids.

    With `states` ("Stable", "Empty", ...) or `types` ("Classic", "Consumer", ...), return only groups of these. Raises
    ConfigError for an unknown state or type.

    A broker that does not answer fails the call. If you pass a dict as `unanswered`, the call waits for 10 s, and
    returns the groups of the brokers that have answered. The dict then has the error of each other broker by its node
    id (Kafka's `valid()` and `errors()`).
    """
    in_states, of_types = _known("state", states, STATES), _known("type", types, TYPES)
    answers = await gather_brokers(
        cluster,
        lambda: ListGroupsRequest(states_filter=in_states, types_filter=of_types),
        unanswered=unanswered,
    )
    found = []
    for node, response in answers.items():
        raise_for_error(response, f"groups of broker {node}")
        found += [
            GroupInfo(g.group_id, g.protocol_type, g.group_state, SPELLED.get(g.group_type.lower(), g.group_type), node)
            for g in response.groups
        ]
    return sorted(found)


async def describe_group(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """Return the state and the members of a group. The state of a group that does not exist is "Dead"."""
    response = await cluster.call_coordinator("group", group_id, DescribeGroupsRequest(groups=[group_id]))
    group = response.groups[0]
    # A broker reports a group of another type as not found. Before version 6, only the state says so.
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
        newer = await _described(cluster, group_id)
        if newer is not None:
            return newer
    elif group.error_code:
        about = group.error_message or ErrorCode.of(group.error_code).text
        raise errors.error_for(group.error_code, f"group {group_id!r}: {about}")
    consumers = group.protocol_type == "consumer"
    members = [
        MemberInfo(
            item.member_id,
            item.group_instance_id,
            item.client_id,
            item.client_host,
            _assigned(bytes(item.member_assignment)) if consumers else [],
        )
        for item in group.members
    ]
    node = await cluster.coordinator("group", group_id)
    state = group.group_state or DEAD
    return GroupDescription(group_id, state, group.protocol_type, group.protocol_data, members, "Classic", node)


async def _described(cluster: ClusterClient, group_id: str) -> GroupDescription | None:
    """Return a group of KIP-848, or None if it does not exist or the brokers do not support such groups."""
    try:
        response = await cluster.call_coordinator("group", group_id, ConsumerGroupDescribeRequest(group_ids=[group_id]))
    except errors.UnsupportedError:
        return None
    group = response.groups[0]
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    raise_for_error(response, f"group {group_id!r}")
    members = [_member(item) for item in group.members]
    node = await cluster.coordinator("group", group_id)
    epochs = group.group_epoch, group.assignment_epoch
    return GroupDescription(
        group_id, group.group_state, "consumer", group.assignor_name, members, "Consumer", node, *epochs
    )


def _member(item: Any) -> MemberInfo:
    owned, target = (
        sorted((t.topic_name, index) for t in each.topic_partitions for index in t.partitions)
        for each in (item.assignment, item.target_assignment)
    )
    protocol = MEMBER_PROTOCOLS.get(item.member_type, "")
    return MemberInfo(
        item.member_id, item.instance_id, item.client_id, item.client_host, owned, item.member_epoch, target, protocol
    )


def _assigned(assignment: bytes) -> list[TopicPartition] | None:
    """Return a member's partitions, or None if the assignor uses a format of its own."""
    if not assignment:
        return []
    try:
        return decode_assignment(assignment)
    except DecodeError:
        return None


async def committed(
    cluster: ClusterClient, group_id: str, *, require_stable: bool = True
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return (topic, partition) -> committed offset of a group. For a group that does not exist, the result is empty.

    Each offset is an `OffsetAndMetadata`. With `require_stable`, wait until open transactions with offsets of the group
    have ended (KIP-447).
    """
    return await offset_calls.fetch_committed(cluster, group_id, require_stable=require_stable)


async def ends(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return (topic, partition) -> high watermark, the end for consumers with read_uncommitted.

    Partitions that do not exist or have no leader are omitted.
    """
    wanted = set(partitions)
    topics = await cluster.topics(internal=True)
    led = [
        (name, index)
        for name, topic in topics.items()
        for index, partition in topic.partitions.items()
        if partition.leader >= 0 and (name, index) in wanted
    ]
    found = await offset_calls.list_offsets(cluster, dict.fromkeys(led, offset_calls.LATEST))
    return {tp: item.offset for tp, item in found.items()}
