"""Delete groups, remove their members, and set their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from oncelog import errors
from oncelog.client.admin._shared import names
from oncelog.client.admin.group_descriptions import describe_group
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.response_errors import raise_for_error, require_answers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.topics import TopicPartition

INACTIVE = frozenset({"Empty", "Dead"})
"""States in which a group's offsets can be set. A member would not notice, and would overwrite them."""


@dataclass(frozen=True, slots=True)
class Target:
    """The position to which `Admin.seek_group` sets a group. Set exactly one attribute.

    `timestamp` selects the first record at or after that time, in ms since the epoch, or the end if there is none. -2
    selects the first offset, and -1 the end. `offset` is the offset itself. `shift` is added to the committed offset.
    It may be negative. The module also has the constants EARLIEST, LATEST and CURRENT.
    """

    timestamp: int | None = None
    offset: int | None = None
    shift: int | None = None


EARLIEST = Target(timestamp=offset_calls.EARLIEST)
LATEST = Target(timestamp=offset_calls.LATEST)
CURRENT = Target(shift=0)


@in_notebooks()
class PartitionSeek(NamedTuple):
    """The new offset of a group in a partition (`target`), and the old one. `committed` is None if it had none."""

    topic: str
    partition: int
    committed: int | None
    target: int


async def delete_groups(cluster: ClusterClient, groups: str | Iterable[str]) -> None:
    """Delete groups and their committed offsets. `groups` is a group id or several.

    The groups must have no members. If one fails, the others are deleted nevertheless. Then the first error is raised:
    RequestError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND).
    """
    failure: errors.KafkaError | None = None
    for group_id in dict.fromkeys(names(groups)):
        request = DeleteGroupsRequest(groups_names=[group_id])
        try:
            response = await cluster.call_coordinator("group", group_id, request)
            raise_for_error(response, f"group {group_id!r}")
            require_answers([group_id], [item.group_id for item in response.results], "DeleteGroups")
        except errors.KafkaError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def delete_offsets(cluster: ClusterClient, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete a group's committed offsets of these (topic, partition) pairs (Kafka's OffsetDelete).

    Raises RequestError (GROUP_SUBSCRIBED_TO_TOPIC) if a member of the group is subscribed to a topic, or
    (GROUP_ID_NOT_FOUND).
    """
    wanted = sorted(set(partitions))
    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=tp[1]) for tp in tps]
        )
        for topic, tps in groupby(wanted, key=lambda tp: tp[0])
    ]
    response = await cluster.call_coordinator("group", group_id, OffsetDeleteRequest(group_id=group_id, topics=topics))
    if response.error_code:
        raise errors.error_for(response.error_code, f"group {group_id!r}: {ErrorCode.of(response.error_code).text}")
    for answer in response.topics:
        for item in answer.partitions:
            if item.error_code:
                about = f"offset of {answer.name}-{item.partition_index} in group {group_id!r}"
                raise errors.error_for(item.error_code, f"{about}: {ErrorCode.of(item.error_code).text}")
    answered = [(answer.name, item.partition_index) for answer in response.topics for item in answer.partitions]
    require_answers(wanted, answered, f"offsets of group {group_id!r}")


async def remove_members(
    cluster: ClusterClient,
    group_id: str,
    instance_ids: Iterable[str] = (),
    *,
    all_: bool = False,
    reason: str = "removed by an administrator",
) -> list[str]:
    """Remove static members from a group by their group.instance.id (KIP-345), or with `all_` every member.

    Return the removed members: their instance ids, or the member ids of members without one. A member that still runs
    joins the group again. `reason` is sent to the broker. Raises GroupError (UNKNOWN_MEMBER_ID), or RequestError
    (GROUP_ID_NOT_FOUND).
    """
    leaving = [MemberIdentity(member_id="", group_instance_id=each, reason=reason) for each in instance_ids]
    if all_:
        found = await describe_group(cluster, group_id)
        leaving = [
            MemberIdentity(
                member_id="" if member.group_instance_id else member.member_id,
                group_instance_id=member.group_instance_id,
                reason=reason,
            )
            for member in found.members
        ]
    if not leaving:
        return []
    request = LeaveGroupRequest(group_id=group_id, members=leaving)
    response = await cluster.call_coordinator("group", group_id, request)
    if response.error_code:
        raise_for_error(response, f"group {group_id!r}")
    for item in response.members:
        if item.error_code:
            who = f"member {item.group_instance_id or item.member_id!r} of group {group_id!r}"
            raise errors.error_for(item.error_code, f"{who}: {ErrorCode.of(item.error_code).text}")
    left = [member.group_instance_id or member.member_id for member in leaving]
    require_answers(
        left, [item.group_instance_id or item.member_id for item in response.members], f"group {group_id!r}"
    )
    return left


async def set_offsets(cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set committed offsets of a group that has no members.

    `offsets` maps (topic, partition) to the next offset to read. Raises GroupError if the group has members.
    """
    await offset_calls.commit(cluster, GroupMetadata(group_id), offsets)


async def _plan_seek(
    cluster: ClusterClient, group_id: str, target: Target, partitions: Iterable[TopicPartition] | None = None
) -> list[PartitionSeek]:
    """Return the offsets to which `seek` sets the group, in these partitions or in all that it has offsets of.

    A target outside a partition's log becomes the log's start or its end, as in Kafka's tool. Raises UsageError if the
    group has members, and for a shift without a committed offset.
    """
    found = (await describe_group(cluster, group_id)).state
    if found not in INACTIVE:
        raise errors.UsageError(f"group {group_id!r} has active members (its state is {found}); stop them first")
    committed = await offset_calls.fetch_committed(cluster, group_id)
    wanted = sorted(committed if partitions is None else set(partitions))
    starts = await offset_calls.list_offsets(cluster, dict.fromkeys(wanted, offset_calls.EARLIEST))
    ends = await offset_calls.list_offsets(cluster, dict.fromkeys(wanted, offset_calls.LATEST))
    aims = await _target_offsets(cluster, target, wanted, committed)
    seeks = []
    for tp in wanted:
        first, end = starts[tp].offset, ends[tp].offset
        aim = end if aims[tp] is None else aims[tp]
        assert aim is not None
        seeks.append(PartitionSeek(*tp, committed.get(tp), min(max(aim, first), end)))
    return seeks


async def _target_offsets(
    cluster: ClusterClient, target: Target, wanted: list[TopicPartition], committed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return the target offset in each partition. None means the end."""
    if target.offset is not None:
        return dict.fromkeys(wanted, target.offset)
    if target.shift is not None:
        missing = [tp for tp in wanted if tp not in committed]
        if missing and target.shift:
            topic, partition = missing[0]
            raise errors.UsageError(
                f"cannot shift the offset of {topic}-{partition}: the group has no committed offset"
            )
        return {tp: committed[tp] + target.shift if tp in committed else None for tp in wanted}
    assert target.timestamp is not None
    listed = await offset_calls.list_offsets(cluster, dict.fromkeys(wanted, target.timestamp))
    return {tp: None if listed[tp].offset < 0 else listed[tp].offset for tp in wanted}


async def seek(
    cluster: ClusterClient,
    group_id: str,
    target: Target,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    dry_run: bool = False,
) -> list[PartitionSeek]:
    """Set the committed offsets of a group that has no members. Return the old and new offset of each partition.

    `target` is a `Target`. `partitions` are (topic, partition) pairs. The default is all partitions that the group has
    offsets of. A target outside a partition's log becomes the log's first offset or its end. With `dry_run`, nothing
    changes.

    Raises UsageError if the group has members, or if the target is a shift and the group has no offset of a partition.
    """
    seeks = await _plan_seek(cluster, group_id, target, partitions)
    if not dry_run:
        offsets = {(each.topic, each.partition): each.target for each in seeks}
        await offset_calls.commit(cluster, GroupMetadata(group_id), offsets)
    return seeks
