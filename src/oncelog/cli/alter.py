"""`oncelog topic alter`, `topic delete-records` and `oncelog cluster alter`: changes while brokers run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import click

from oncelog.cli.common import Command, assignments, connected, existing, formatted, open_admin, show


def _changes(command: Command) -> Command:
    """Add `--config`, `--unset` and `--dry-run`."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Check the change, and change nothing."),
        click.option("--unset", "to_unset", multiple=True, metavar="KEY", help="Return a setting to its default."),
        click.option("-c", "--config", "to_set", multiple=True, metavar="KEY=VALUE", help="Change a setting."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.option("-p", "--partitions", type=int, help="New number of partitions, more than now.")
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
    """Add partitions to a topic, change its settings.

    Both take effect at once. Settings come first: if the broker rejects one, nothing is changed.
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


@click.command()
@click.option("--broker", type=int, help="Only this broker (all brokers).")
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

    A setting of one broker overrides the same setting of all brokers, which overrides the broker's start.
    `cluster describe --configs` shows the result.
    """
    wanted = assignments("--config", to_set)
    if not wanted and not to_unset:
        raise click.UsageError("nothing to change: give --config or --unset")
    with open_admin(bootstrap) as admin:
        if to_unset:
            some = admin.describe_cluster().brokers[0].node_id if broker is None else broker
            _require_known(to_unset, admin.describe_configs("broker", some), "brokers")
        admin.alter_broker_configs(broker, wanted, to_unset, validate_only=dry_run)
    _report({"broker": broker, "set": wanted, "unset": list(to_unset), "altered": not dry_run}, form)


def _require_known(names: Iterable[str], known: Mapping[str, object], of: str) -> None:
    """Raise an error for an unknown setting: a broker ignores it, even if it is only misspelled."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.ClickException(f"--unset: there is no setting {name!r} of {of}{hint}")


@click.command("delete-records")
@click.argument("name")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one.")
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Delete the records before this offset.")
@click.option("--all", "everything", is_flag=True, help="Delete all current records.")
@connected
@formatted
def delete_records(
    name: str,
    partitions: tuple[int, ...],
    before: int | None,
    everything: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Delete the records before an offset, in some partitions or in all. They cannot be restored."""
    if (before is None) != everything:
        raise click.UsageError("say which: --before OFFSET, or --all")
    with open_admin(bootstrap) as admin, existing(name):
        (known,) = admin.describe_topics(name)
        numbers = [item.partition for item in known.partitions]
        for number in partitions:
            if number not in numbers:
                raise click.ClickException(f"topic {name!r} has partitions 0 to {len(numbers) - 1}, not {number}")
        wanted = dict.fromkeys(((name, number) for number in partitions or numbers), -1 if before is None else before)
        starts = admin.delete_records(wanted)
    show([{"topic": topic, "partition": number, "start": start} for (topic, number), start in starts.items()], form)


def _report(row: Mapping[str, object], form: str) -> None:
    if form == "text":
        settings = row["set"]
        assert isinstance(settings, dict)
        row = {**row, "set": [f"{key}={value}" for key, value in settings.items()]}
    show([row] if form == "text" else row, form)
