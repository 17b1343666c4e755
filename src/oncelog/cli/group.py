"""`oncelog group`: the commands list and describe, and the table of all group commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncelog import errors
from oncelog.cli.common import connected, formatted, open_admin, require_all_answers, show, usage
from oncelog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.admin.group_descriptions import GroupDescription

group = LazyGroup(
    "group",
    help="List, describe, alter, seek and delete consumer groups; print their records.",
    table={
        "list": ("oncelog.cli.group:list_groups", "List groups and their states."),
        "describe": ("oncelog.cli.group:describe", "Show a group's members, committed offsets and lag."),
        "alter": ("oncelog.cli.alter:group", "Change the settings of a group of the consumer protocol."),
        "seek": ("oncelog.cli.group_change:seek", "Set the offsets of a group without members."),
        "remove-members": (
            "oncelog.cli.group_change:remove_members",
            "Remove static members, or all members, from a group.",
        ),
        "delete": ("oncelog.cli.group_change:delete", "Delete groups without members, or some of their offsets."),
        "log": ("oncelog.cli.group_log:log", "Print the records of __consumer_offsets."),
    },
)

COLUMNS = ("group", "coordinator", "type", "protocol", "state")


@click.command("list")
@click.option(
    *("--state", "states"),
    multiple=True,
    metavar="STATE",
    help="List only groups in this state: Stable, Empty, ... Repeatable.",
)
@click.option(
    *("--type", "types"),
    multiple=True,
    metavar="TYPE",
    help="List only groups of this type: Classic, Consumer, ... Repeatable.",
)
@connected
@formatted
def list_groups(states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, form: str) -> None:
    """List the groups of all coordinators. If a broker does not answer, list the others' groups, and fail."""
    unanswered: dict[int, errors.RetriableError] = {}
    with open_admin(bootstrap) as admin, usage("--state, --type"):
        rows = [
            {
                "group": item.group_id,
                "coordinator": item.coordinator,
                "type": item.type,
                "protocol": item.protocol_type,
                "state": item.state,
            }
            for item in admin.list_groups(states, types, unanswered=unanswered)
        ]
    show(rows, form, COLUMNS)
    require_all_answers(unanswered, "groups")


@click.command()
@click.argument("name")
@connected
@formatted
def describe(name: str, bootstrap: str, form: str) -> None:
    """Show the members of the group NAME, and for each partition its committed offset, the end and the lag."""
    from oncelog.cli.internal_records import home_partition
    from oncelog.protocol.errors import ErrorCode
    from oncelog.protocol.topics import CONSUMER_OFFSETS

    with open_admin(bootstrap) as admin:
        found = admin.describe_group(name)
        if found.state == "Dead":
            about = f"group {name!r} does not exist; `oncelog group list` lists all groups"
            raise click.ClickException(f"{about} ({ErrorCode.GROUP_ID_NOT_FOUND.name})")
        offsets = _offsets(admin, found)
        home = home_partition(admin, CONSUMER_OFFSETS, name)
    members = [
        {
            "member_id": item.member_id,
            "group_instance_id": item.group_instance_id,
            "client_id": item.client_id,
            "client_host": item.host,
            "protocol": item.protocol or None,
            "epoch": None if item.epoch < 0 else item.epoch,
            "partitions": _named(item.assignment),
            "target": _named(item.target),
        }
        for item in found.members
    ]
    if form == "json":
        head = {"group": name, "type": found.type, "state": found.state}
        where = {"coordinator": found.coordinator, "home_partition": home}
        protocol = {"protocol_type": found.protocol_type, "assignor": found.protocol}
        epochs = {"epoch": found.epoch, "assignment_epoch": found.assignment_epoch} if found.epoch >= 0 else {}
        show({**head, **where, **protocol, **epochs, "members": members, "offsets": offsets}, form)
        return
    assignor = f"  assignor {found.protocol}" if found.protocol else ""
    epoch = f"  epoch {found.epoch}" if found.epoch >= 0 else ""
    line = f"group {name}  state {found.state}  coordinator {found.coordinator} ({home}){assignor}{epoch}"
    click.echo(f"{line}  members {len(members)}")
    if members:
        # The target is shown only while a member has other partitions.
        moving = any(member["target"] not in (None, member["partitions"]) for member in members)
        own = ("protocol", "epoch", *(("target",) if moving else ())) if found.type == "Consumer" else ()
        show(members, form, ("member_id", "group_instance_id", "client_id", "client_host", "partitions", *own))
    if offsets:
        click.echo("")
        columns = [key for key in offsets[0] if key != "metadata" or any(row[key] for row in offsets)]
        show([{**row, "metadata": row["metadata"] or None} for row in offsets], form, columns)


def _named(partitions: list[tuple[str, int]] | None) -> list[str] | None:
    return None if partitions is None else [f"{topic}-{number}" for topic, number in partitions]


def _offsets(admin: Admin, found: GroupDescription) -> list[dict[str, Any]]:
    """Return a row for each partition that is assigned to a member or has a committed offset."""
    owners = {tp: member.member_id for member in found.members for tp in member.assignment or ()}
    committed = admin.committed(found.group_id, require_stable=False)
    wanted = sorted({*committed, *owners})
    end = admin.end_offsets(wanted)
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
            "metadata": committed[topic, number].metadata if (topic, number) in committed else None,
        }
        for topic, number in wanted
    ]
