"""`oncelog group seek`, `remove-members` and `delete`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from oncelog.cli.common import connected, existing, formatted, note, open_admin, show

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.types import TopicPartition

COLUMNS = ("topic", "partition", "committed", "target")

topics_option = click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:N,...]", help="This topic, or these of its partitions."
)


@click.command()
@click.argument("name")
@topics_option
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-current", is_flag=True, help="To the committed offset, or to the end if there is none.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime", metavar="WHEN", help="To the first record since 2026-11-21T07:00:00.000 (UTC, or +HH:MM)."
)
@click.option("--by-duration", metavar="ISO", help="To the first record since so long ago: P1DT2H30M15S.")
@click.option("--shift-by", type=int, metavar="N", help="By N offsets, back if negative.")
@click.option("--execute", is_flag=True, help="Do it. Without this, only say what would be done.")
@connected
@formatted
def seek(
    name: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    execute: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Set the offsets of a group, in some topics or in all that it has offsets of.

    The group must have no members. A target outside a partition becomes its first offset or its end. Without
    --execute nothing changes: what would be set is printed.
    """
    from oncelog.client.admin import groups as calls

    flags = {
        "--to-earliest": (to_earliest, calls.EARLIEST),
        "--to-latest": (to_latest, calls.LATEST),
        "--to-current": (to_current, calls.CURRENT),
    }
    choices = {flag: target for flag, (given, target) in flags.items() if given}
    if to_offset is not None:
        choices["--to-offset"] = calls.Target(offset=to_offset)
    if to_datetime is not None:
        choices["--to-datetime"] = calls.Target(timestamp=_moment(to_datetime))
    if by_duration is not None:
        choices["--by-duration"] = calls.Target(timestamp=_now_ms() - _duration_ms(by_duration))
    if shift_by is not None:
        choices["--shift-by"] = calls.Target(shift=shift_by)
    if len(choices) != 1:
        given_ones = " and ".join(choices) or "nothing"
        raise click.UsageError(f"say where to, in one way: {given_ones} was given")
    (target,) = choices.values()
    with open_admin(bootstrap) as admin:
        wanted = _partitions(admin, topics) if topics else None
        steps = admin.seek_group(name, target, wanted, dry_run=not execute)
    if not steps:
        note(f"group {name!r} has no offsets: name topics with --topic")
    show([step._asdict() for step in steps], form, COLUMNS)
    if not execute:
        click.echo("nothing was changed: add --execute to do it", err=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@topics_option
@connected
@formatted
def delete(names: tuple[str, ...], topics: tuple[str, ...], bootstrap: str, form: str) -> None:
    """Delete groups without members, with all their offsets.

    With --topic the groups stay: only their offsets of these topics go, which no member may be reading.
    """
    with open_admin(bootstrap) as admin:
        if topics:
            wanted = _partitions(admin, topics)
            for name in names:
                admin.delete_offsets(name, wanted)
        else:
            admin.delete_groups(names)
    what = [f"{topic}-{number}" for topic, number in wanted] if topics else "all"
    show([{"group": name, "deleted": what} for name in names], form)


@click.command("remove-members")
@click.argument("name")
@click.option("-i", "--instance", "instances", multiple=True, metavar="ID", help="The member with this static id.")
@click.option("--all", "everybody", is_flag=True, help="Every member.")
@connected
@formatted
def remove_members(name: str, instances: tuple[str, ...], everybody: bool, bootstrap: str, form: str) -> None:
    """Let static members (group.instance.id) leave a group, or all members. Running members join again."""
    if bool(instances) == everybody:
        raise click.UsageError("say who: --instance ID, or --all")
    with open_admin(bootstrap) as admin:
        removed = admin.remove_members(name, instances, all_=everybody)
    show([{"group": name, "removed": member} for member in removed], form, ("group", "removed"))


def _partitions(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Return the partitions of `TOPIC` or `TOPIC:0,2`."""
    found: list[TopicPartition] = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        if colon and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers):
            raise click.UsageError(f"--topic takes TOPIC or TOPIC:0,2, not {text!r}")
        with existing(name):
            (topic,) = admin.describe_topics(name)
        known = [item.partition for item in topic.partitions]
        wanted = sorted(known) if not colon else sorted({int(number) for number in numbers.split(",")})
        for number in wanted:
            if number not in known:
                raise click.UsageError(f"topic {name!r} has no partition {number}")
            found.append((name, number))
    return found


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _moment(text: str) -> int:
    """ms since the epoch; without a zone it is UTC, as in Kafka's tool."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--to-datetime takes 2026-11-21T07:00:00.000, not {text!r}") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration_ms(text: str) -> int:
    from oncelog.client.records import milliseconds

    try:
        return milliseconds(text)
    except ValueError as error:
        raise click.UsageError(f"--by-duration takes P1DT2H30M15S: {error}") from None
