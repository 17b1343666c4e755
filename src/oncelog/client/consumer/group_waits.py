"""Log which members a consumer waits for, because it gets no partitions before they have released them or expired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.troubles import SILENT_SECONDS
from oncelog.protocol.messages.consumer_group_describe import Assignment, ConsumerGroupDescribeRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.texts import first_named

log = logging.getLogger("oncelog.client.consumer")

WAITING = (
    "group {group!r} gives this consumer no partitions before its other members have joined or expired: {members}. A "
    "member that was killed expires {seconds:g} s after its last heartbeat (session_timeout_ms); one that does not "
    "poll, after its max_poll_interval_ms. With group_instance_id, a consumer that is started again gets its "
    "partitions at once"
)
_EXPIRES = (
    "A member that was killed expires 45 s after its last heartbeat, or after the brokers' "
    "group.consumer.session.timeout.ms; one that does not poll, after its max_poll_interval_ms"
)
HELD = (
    "group {group!r} gives this consumer no partitions before other members have released them: {members}. " + _EXPIRES
)
TAKEN = (
    "group {group!r} gives this consumer no partitions, because its other members have all: {members}. "
    + _EXPIRES
    + ". "
    "If all of them run, the topics have fewer partitions than the group has members"
)


async def explain_wait(group_id: str, reason: Callable[[], Awaitable[str]]) -> None:
    """Log a warning if the group has waited for SILENT_SECONDS. When cancelled after that, log that the wait is over.

    `reason()` returns what the group waits for, or an empty string.
    """
    now = asyncio.get_running_loop().time
    begun = now()
    await asyncio.sleep(SILENT_SECONDS)
    try:
        why = await reason()
    except errors.KafkaError:  # the join or the heartbeat reports a coordinator that cannot be reached
        return
    if not why:
        return
    log.warning("%s", why)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        log.warning("group %r: the wait for other members is over after %.0f s", group_id, now() - begun)


async def unjoined_members(cluster: ClusterClient, group_id: str, own_id: Callable[[], str], session_ms: float) -> str:
    """Return which members a classic group waits for, or an empty string.

    `own_id()`: the instance id or member id of this member. `session_ms`: its session timeout, which the others
    usually have, too.
    """
    response = await cluster.call_coordinator("group", group_id, DescribeGroupsRequest(groups=[group_id]))
    others = [
        _name(member, member.group_instance_id)
        for group in response.groups
        for member in group.members
        if own_id() not in (member.member_id, member.group_instance_id)
    ]
    if not others:
        return ""
    return WAITING.format(group=group_id, members=first_named(others, len(others)), seconds=session_ms / 1000)


async def partition_owners(cluster: ClusterClient, group_id: str, member_id: str) -> str:
    """Return which members of a group of KIP-848 have the partitions that this member waits for, or an empty string."""
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    response = await cluster.call_coordinator("group", group_id, request)
    members = [member for group in response.groups for member in group.members]
    awaited = {tp for member in members if member.member_id == member_id for tp in _ids(member.target_assignment)}
    owners = [
        _name(member, member.instance_id)
        for member in members
        if member.member_id != member_id and (_ids(member.assignment) & awaited if awaited else _ids(member.assignment))
    ]
    if not owners:
        return ""
    return (HELD if awaited else TAKEN).format(group=group_id, members=first_named(owners, len(owners)))


def _ids(assignment: Assignment) -> set[tuple[object, int]]:
    return {(topic.topic_id, partition) for topic in assignment.topic_partitions for partition in topic.partitions}


class _Member(Protocol):
    member_id: str
    client_id: str
    client_host: str


def _name(member: _Member, instance_id: str | None) -> str:
    name = instance_id or member.member_id
    return f"{name!r} (client {member.client_id!r}, host {member.client_host})"
