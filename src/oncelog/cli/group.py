"""`oncelog group`: consumer groups, their members and their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import check, connected, formatted, open_cluster, show
from oncelog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster
    from oncelog.protocol.messages.describe_groups import DescribedGroup

group = LazyGroup(
    "group",
    help="Consumer groups: list, describe, move, delete, and read their log.",
    table={
        "list": ("oncelog.cli.group:list_groups", "List groups and their state."),
        "describe": ("oncelog.cli.group:describe", "Show a group's members, committed offsets and lag."),
        "seek": ("oncelog.cli.group_change:seek", "Set where a group without members goes on."),
        "delete": ("oncelog.cli.group_change:delete", "Delete groups without members, or some of a group's offsets."),
        "log": ("oncelog.cli.group_log:log", "Print the records of __consumer_offsets."),
    },
)

COLUMNS = ("group", "coordinator", "type", "protocol", "state")
FETCH_VERSION = 7
"""OffsetFetch by topic name, one group a request: every broker since Kafka 2.5 has it."""


@click.command("list")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only groups in this state (Stable, Empty, ...)."
)
@click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only groups of this type (Classic, Consumer, ...)."
)
@connected
@formatted
def list_groups(states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, form: str) -> None:
    """List the groups of all coordinators."""
    from oncelog.protocol.messages.list_groups import ListGroupsRequest

    def request() -> ListGroupsRequest:
        return ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    rows = []
    with open_cluster(bootstrap) as cluster:
        for coordinator, response in cluster.call_brokers(request).items():
            check(response.error_code, f"groups of broker {coordinator}")
            rows += [
                {
                    "group": item.group_id,
                    "coordinator": coordinator,
                    "type": item.group_type,
                    "protocol": item.protocol_type,
                    "state": item.group_state,
                }
                for item in response.groups
            ]
    show(sorted(rows, key=lambda row: str(row["group"])), form, COLUMNS)


@click.command()
@click.argument("name")
@connected
@formatted
def describe(name: str, bootstrap: str, form: str) -> None:
    """Show a group's members and, partition by partition, how far it has come."""
    from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest

    with open_cluster(bootstrap) as cluster:
        request = DescribeGroupsRequest(groups=[name])
        found = cluster.call_coordinator("group", name, request).groups[0]
        check(found.error_code, found.error_message or f"group {name!r}")
        coordinator = cluster.coordinator("group", name)
        owners, members = _members(found)
        offsets = _offsets(cluster, name, owners)
    if form == "json":
        head = {"group": name, "state": found.group_state, "coordinator": coordinator}
        protocol = {"protocol_type": found.protocol_type, "assignor": found.protocol_data}
        show({**head, **protocol, "members": members, "offsets": offsets}, form)
        return
    assignor = f"  assignor {found.protocol_data}" if found.protocol_data else ""
    click.echo(f"group {name}  state {found.group_state}  coordinator {coordinator}{assignor}  members {len(members)}")
    if members:
        show(members, form, ("member_id", "group_instance_id", "client_id", "client_host", "partitions"))
    if offsets:
        click.echo("")
        show(offsets, form)


def _members(found: DescribedGroup) -> tuple[dict[tuple[str, int], str], list[dict[str, Any]]]:
    """Who has which partition, and the members."""
    owners: dict[tuple[str, int], str] = {}
    members = []
    for member in found.members:
        mine = _assigned(found.protocol_type, member.member_assignment)
        owners |= dict.fromkeys(mine or (), member.member_id)
        members.append(
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "partitions": None if mine is None else [f"{topic}-{number}" for topic, number in mine],
            }
        )
    return owners, members


def _assigned(protocol_type: str, assignment: bytes) -> list[tuple[str, int]] | None:
    """The partitions in a consumer's assignment; None where it cannot be read: assignors may write what they like."""
    from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
    from oncelog.protocol.schema import DecodeError, read_version

    if protocol_type != "consumer" or not assignment:
        return []
    try:
        version = min(read_version(assignment), 3)
        decoded, _ = ConsumerProtocolAssignment.decode_from(assignment, 2, version)
    except DecodeError:
        return None
    return [(item.topic, number) for item in decoded.assigned_partitions for number in item.partitions]


def _offsets(cluster: BlockingCluster, name: str, owners: dict[tuple[str, int], str]) -> list[dict[str, Any]]:
    from oncelog.cli.offsets import LATEST, list_offsets
    from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest

    request = OffsetFetchRequest(group_id=name, topics=None)
    response = cluster.call_coordinator("group", name, request, FETCH_VERSION)
    check(response.error_code, f"offsets of group {name!r}")
    committed = {
        (topic.name, item.partition_index): item.committed_offset
        for topic in response.topics
        for item in topic.partitions
        if item.committed_offset >= 0
    }
    wanted = sorted({*committed, *owners})
    topics = sorted({topic for topic, _ in wanted} & set(cluster.topics(internal=True)))
    numbers = {topic: [number for other, number in wanted if other == topic] for topic in topics}
    ends = cluster.run_many([list_offsets(cluster.cluster, topic, numbers[topic], LATEST) for topic in topics])
    end = {(topic, number): at for topic, found in zip(topics, ends, strict=True) for number, at in found.items()}
    return [
        {
            "topic": topic,
            "partition": number,
            "committed": committed.get((topic, number)),
            "end": end.get((topic, number)),
            "lag": end[topic, number] - committed[topic, number]
            if (topic, number) in end and (topic, number) in committed
            else None,
            "member_id": owners.get((topic, number)),
        }
        for topic, number in wanted
    ]
