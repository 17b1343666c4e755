"""`oncelog group seek`, `oncelog group remove-members` and `oncelog group delete`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from oncelog.cli.common import confirm, confirmed, connected, duration, existing, formatted, open_admin, show
from oncelog.cli.lazy import examples

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.protocol.topics import TopicPartition

COLUMNS = ("topic", "partition", "committed", "target")

topics_option = click.option(
    *("-t", "--topic", "topics"),
    multiple=True,
    metavar="TOPIC[:N,...]",
    help="Change offsets of this topic only, or of these partitions of it. Repeatable.",
)


@click.command(
    epilog=examples(
        "oncelog group seek etl --to-earliest",
        "oncelog group seek etl -t orders:0,2 --to-offset 1000 --execute",
        "oncelog group seek etl --by-duration PT1H --execute",
    )
)
@click.argument("name")
@topics_option
@click.option("--to-earliest", is_flag=True, help="Seek to the first record.")
@click.option("--to-latest", is_flag=True, help="Seek to the end.")
@click.option("--to-current", is_flag=True, help="Seek to the committed offset, or to the end if there is none.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Seek to this offset.")
@click.option(
    *("--to-datetime",),
    metavar="WHEN",
    help="Seek to the first record at or after this time, for example 2026-11-21T07:00:00.000 (UTC) or "
    "2026-11-21T09:00:00.000+02:00.",
)
@click.option(
    "--by-duration", type=duration, metavar="ISO", help="Seek to the first record not older than this: P1DT2H30M."
)
@click.option("--shift-by", type=int, metavar="N", help="Move each offset by N. A negative N moves it back.")
@click.option("--execute", is_flag=True, help="Change the offsets. Without this, only print the change.")
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
    by_duration: int | None,
    shift_by: int | None,
    execute: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Set the committed offsets of the group NAME, by default in all partitions that it has offsets of.

    The group must have no members. A target outside a partition's log becomes the log's first offset or its end.
    Without --execute, the command only prints the offsets that it would set.
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
        choices["--to-datetime"] = calls.Target(timestamp=_parse_time(to_datetime))
    if by_duration is not None:
        choices["--by-duration"] = calls.Target(timestamp=_now_ms() - by_duration)
    if shift_by is not None:
        choices["--shift-by"] = calls.Target(shift=shift_by)
    if len(choices) != 1:
        given_ones = " and ".join(choices) or "none"
        raise click.UsageError(f"give exactly one target such as --to-earliest or --to-offset; given: {given_ones}")
    (target,) = choices.values()
    with open_admin(bootstrap) as admin:
        wanted = _partitions(admin, topics) if topics else None
        steps = admin.seek_group(name, target, wanted, dry_run=not execute)
    if not steps:
        raise click.ClickException(
            f"group {name!r} has no committed offsets, so nothing was changed; name topics with --topic to set some, "
            "or run `oncelog group list` to list all groups"
        )
    show([step._asdict() for step in steps], form, COLUMNS)
    if not execute:
        click.echo("nothing was changed; add --execute to set these offsets", err=True)


@click.command(epilog=examples("oncelog group delete etl --yes", "oncelog group delete etl -t orders --yes"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@topics_option
@confirmed
@connected
@formatted
def delete(names: tuple[str, ...], topics: tuple[str, ...], yes: bool, bootstrap: str, form: str) -> None:
    """Delete groups without members, and all their offsets.

    With --topic, keep the groups and delete only their offsets of these topics. No member may be subscribed to them.
    """
    of = f"{'groups' if len(set(names)) > 1 else 'group'} {', '.join(map(repr, dict.fromkeys(names)))}"
    confirm(f"this deletes the offsets of {', '.join(topics)} in {of}" if topics else f"this deletes {of}", yes=yes)
    with open_admin(bootstrap) as admin:
        if topics:
            wanted = _partitions(admin, topics)
            for name in names:
                admin.delete_offsets(name, wanted)
        else:
            admin.delete_groups(names)
    what = [f"{topic}-{number}" for topic, number in wanted] if topics else "all"
    show([{"group": name, "deleted": what} for name in names], form)


@click.command("remove-members", epilog=examples("oncelog group remove-members etl -i worker-1"))
@click.argument("name")
@click.option(
    *("-i", "--instance", "instances"),
    multiple=True,
    metavar="ID",
    help="Remove the member with this static id (group.instance.id). Repeatable.",
)
@click.option("--all", "everybody", is_flag=True, help="Remove every member.")
@connected
@formatted
def remove_members(name: str, instances: tuple[str, ...], everybody: bool, bootstrap: str, form: str) -> None:
    """Remove static members, or all members, from the group NAME. A member that still runs joins again."""
    if bool(instances) == everybody:
        raise click.UsageError("give either --instance ID or --all")
    with open_admin(bootstrap) as admin:
        removed = admin.remove_members(name, instances, all_=everybody)
    show([{"group": name, "removed": member} for member in removed], form, ("group", "removed"))


def _partitions(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Return the partitions of `TOPIC` or `TOPIC:0,2`. Raises UsageError."""
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
                raise click.UsageError(f"--topic {text}: topic {name!r} has no partition {number}")
            found.append((name, number))
    return found


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _parse_time(text: str) -> int:
    """Parse a time to ms since the epoch. A time without a zone is UTC, as in Kafka's tool."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--to-datetime takes a time such as 2026-11-21T07:00:00.000, not {text!r}") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
