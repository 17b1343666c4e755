"""`oncelog topic alter`, `oncelog topic delete-records`, `oncelog cluster alter` and `oncelog group alter`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import click

from oncelog.cli.common import (
    Command,
    assignments,
    confirm,
    confirmed,
    connected,
    existing,
    formatted,
    open_admin,
    show,
)
from oncelog.cli.lazy import examples


def _changes(command: Command) -> Command:
    """Add `--config`, `--unset` and `--dry-run`."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Validate the change without making it."),
        click.option(
            "--unset", "to_unset", multiple=True, metavar="KEY", help="Reset a setting to its default. Repeatable."
        ),
        click.option(
            "-c", "--config", "to_set", multiple=True, metavar="KEY=VALUE", help="Change a setting. Repeatable."
        ),
    ):
        command = option(command)
    return command


@click.command(epilog=examples("oncelog topic alter orders -p 12", "oncelog topic alter orders --unset retention.ms"))
@click.argument("name")
@click.option("-p", "--partitions", type=int, help="New total number of partitions, larger than the current one.")
@_changes
@connected
@formatted
def topic(
    name: str,
    partitions: int | None,
    to_set: tuple[str, ...],
    to_unset: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Add partitions to the topic NAME, or change its settings.

    Both take effect at once. Settings are changed first: if the broker rejects one, nothing is changed.
    """
    wanted = assignments("--config", to_set)
    if partitions is None and not wanted and not to_unset:
        raise click.UsageError("nothing to change: give --partitions, --config or --unset")
    with open_admin(bootstrap) as admin, existing(name):
        if to_unset:
            _require_known(to_unset, admin.describe_configs("topic", name), f"topic {name!r}")
        if wanted or to_unset:
            admin.alter_topic_configs(name, wanted, to_unset, validate_only=dry_run)
        if partitions is not None:
            admin.create_partitions(name, partitions, validate_only=dry_run)
    row = {"name": name, "partitions": partitions, "set": wanted, "unset": list(to_unset), "altered": not dry_run}
    _report(row, form)


@click.command(epilog=examples("oncelog cluster alter -c message.max.bytes=2097152"))
@click.option("--broker", type=int, help="Change this broker only. Default: all brokers.")
@_changes
@connected
@formatted
def cluster(
    broker: int | None,
    to_set: tuple[str, ...],
    to_unset: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Change settings of brokers while they run.

    A setting of one broker overrides the same setting of all brokers, which overrides the value from the broker's
    start. `oncelog cluster describe --configs` shows the result.
    """
    wanted = _wanted(to_set, to_unset)
    with open_admin(bootstrap) as admin:
        if to_unset:
            some = admin.describe_cluster().brokers[0].node_id if broker is None else broker
            _require_known(to_unset, admin.describe_configs("broker", some), "a broker")
        admin.alter_broker_configs(broker, wanted, to_unset, validate_only=dry_run)
    _report({"broker": broker, "set": wanted, "unset": list(to_unset), "altered": not dry_run}, form)


@click.command(epilog=examples("oncelog group alter billing -c consumer.session.timeout.ms=60000"))
@click.argument("name")
@_changes
@connected
@formatted
def group(
    name: str, to_set: tuple[str, ...], to_unset: tuple[str, ...], dry_run: bool, bootstrap: str, form: str
) -> None:
    """Change the settings that the group NAME has of its own. They apply to members of the consumer protocol.

    The group need not exist yet. Members get the new settings with their next heartbeat.
    """
    wanted = _wanted(to_set, to_unset)
    with open_admin(bootstrap) as admin:
        if to_unset:
            _require_known(to_unset, admin.describe_configs("group", name), f"group {name!r}")
        admin.alter_configs("group", name, wanted, to_unset, validate_only=dry_run)
    _report({"name": name, "set": wanted, "unset": list(to_unset), "altered": not dry_run}, form)


def _wanted(to_set: tuple[str, ...], to_unset: tuple[str, ...]) -> dict[str, str]:
    """Return what `--config` sets. Raises UsageError if nothing is set or unset."""
    wanted = assignments("--config", to_set)
    if not wanted and not to_unset:
        raise click.UsageError("nothing to change: give --config or --unset")
    return wanted


def _require_known(names: Iterable[str], known: Mapping[str, object], of: str) -> None:
    """Raise ClickException for an unknown setting, because a broker would ignore it without an error."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.ClickException(f"--unset {name}: {of} has no such setting{hint}")


@click.command("delete-records", epilog=examples("oncelog topic delete-records orders -p 0 --before 1000 --yes"))
@click.argument("name")
@click.option(
    *("-p", "--partition", "partitions"),
    type=click.IntRange(min=0),
    multiple=True,
    help="Delete in this partition only. Repeatable. Default: all partitions.",
)
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Delete the records before this offset.")
@click.option("--all", "everything", is_flag=True, help="Delete all current records.")
@confirmed
@connected
@formatted
def delete_records(
    name: str,
    partitions: tuple[int, ...],
    before: int | None,
    everything: bool,
    yes: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Delete the records of the topic NAME before an offset. They cannot be restored."""
    if (before is None) != everything:
        raise click.UsageError("give either --before OFFSET or --all")
    which = "all records" if before is None else f"the records before offset {before}"
    where = f" in {'partition' if len(partitions) == 1 else 'partitions'} {', '.join(map(str, partitions))}"
    confirm(f"this deletes {which} of topic {name!r}{where if partitions else ''}", yes=yes)
    with open_admin(bootstrap) as admin, existing(name):
        (known,) = admin.describe_topics(name)
        numbers = [item.partition for item in known.partitions]
        for number in partitions:
            if number not in numbers:
                from oncelog.client.discovery.reasons import known_partitions

                raise click.ClickException(f"{known_partitions(name, len(numbers))}, not {number}")
        wanted = dict.fromkeys(((name, number) for number in partitions or numbers), -1 if before is None else before)
        starts = admin.delete_records(wanted)
    show([{"topic": topic, "partition": number, "start": start} for (topic, number), start in starts.items()], form)


def _report(row: Mapping[str, object], form: str) -> None:
    if form == "text":
        settings = row["set"]
        assert isinstance(settings, dict)
        row = {**row, "set": [f"{key}={value}" for key, value in settings.items()]}
    show([row] if form == "text" else row, form)
