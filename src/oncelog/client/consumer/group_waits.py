"""Say which members a group waits for, because a consumer gets no partitions before they have joined or expired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.troubles import SILENT_SECONDS
from oncelog.protocol.messages.describe_groups import DescribedGroupMember, DescribeGroupsRequest

log = logging.getLogger("oncelog.client.consumer")

NAMED = 3
"""How many members a message names."""
WAITING = (
    "group %r gives this consumer no partitions before its other members have joined or expired: %s. A member that was "
    "killed expires %g s after its last heartbeat (session_timeout_ms); one that does not poll, after its "
    "max_poll_interval_ms. With group_instance_id, a consumer that is started again takes its place at once"
)


async def explain_wait(cluster: ClusterClient, group_id: str, own_id: Callable[[], str], session_ms: float) -> None:
    """Warn if the group has waited for other members for seconds. When cancelled after that, log that it is over.

    `own_id()`: the instance id or member id of this member. `session_ms`: its session timeout, which the others
    usually have, too.
    """
    now = asyncio.get_running_loop().time
    begun = now()
    await asyncio.sleep(SILENT_SECONDS)
    try:
        response = await cluster.call_coordinator("group", group_id, DescribeGroupsRequest(groups=[group_id]))
    except errors.KafkaError:  # the join reports a coordinator that cannot be reached
        return
    others = [
        member
        for group in response.groups
        for member in group.members
        if own_id() not in (member.member_id, member.group_instance_id)
    ]
    if not others:
        return
    log.warning(WAITING, group_id, _named(others), session_ms / 1000)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        log.warning("group %r: the wait for other members is over after %.0f s", group_id, now() - begun)


def _named(members: list[DescribedGroupMember]) -> str:
    some = ", ".join(
        f"{member.group_instance_id or member.member_id!r} (client {member.client_id!r}, host {member.client_host})"
        for member in members[:NAMED]
    )
    return some if len(members) <= NAMED else f"{some} and {len(members) - NAMED} more"
