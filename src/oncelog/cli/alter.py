"""`oncelog topic alter` and `oncelog cluster alter`: settings and numbers of partitions, changed while brokers run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

from oncelog.cli.common import Command, connected, existing, formatted, open_cluster, show


def _changes(command: Command) -> Command:
    """Adds `--set`, `--unset` and `--dry-run`."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only have it checked."),
        click.option("--unset", "to_unset", multiple=True, metavar="KEY", help="Go back to the default of a setting."),
        click.option("--set", "to_set", multiple=True, metavar="KEY=VALUE", help="Set a setting."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.option("-p", "--partitions", type=int, help="Grow to so many partitions.")
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
    """Add partitions to a topic, change its settings; both act at once.

    Settings first: when they are refused, nothing is changed.
    """
    from oncelog.client import config_calls

    wanted = _assignments(to_set)
    if partitions is None and not wanted and not to_unset:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset")
    with open_cluster(bootstrap) as cluster, existing(name):
        if wanted or to_unset:
            change = config_calls.alter_topic_configs(cluster.cluster, name, wanted, to_unset, validate_only=dry_run)
            cluster.run_many([change])
        if partitions is not None:
            growth = config_calls.create_partitions(cluster.cluster, name, partitions, validate_only=dry_run)
            cluster.run_many([growth])
    row = {"name": name, "partitions": partitions, "set": wanted, "unset": list(to_unset), "altered": not dry_run}
    _report(row, form)


@click.command()
@click.option("--broker", type=int, help="Of one broker; of all, if not given.")
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

    One broker's own win over those of all, and these over what it was started with. `cluster describe --configs` shows
    the result.
    """
    from oncelog.client import config_calls

    wanted = _assignments(to_set)
    if not wanted and not to_unset:
        raise click.UsageError("nothing to change: give --set or --unset")
    with open_cluster(bootstrap) as client:
        change = config_calls.alter_broker_configs(client.cluster, broker, wanted, to_unset, validate_only=dry_run)
        client.run_many([change])
    _report({"broker": broker, "set": wanted, "unset": list(to_unset), "altered": not dry_run}, form)


def _assignments(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--set takes KEY=VALUE, not {text!r}")
        found[key.strip()] = value.strip()
    return found


def _report(row: Mapping[str, object], form: str) -> None:
    if form == "text":
        settings = row["set"]
        assert isinstance(settings, dict)
        row = {**row, "set": [f"{key}={value}" for key, value in settings.items()]}
    show([row] if form == "text" else row, form)
