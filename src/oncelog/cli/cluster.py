"""`oncelog cluster`: the commands describe, log-dirs and feature, and the table of all cluster commands."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from oncelog import errors
from oncelog.cli.common import connected, existing, formatted, open_admin, show
from oncelog.cli.lazy import LazyGroup, examples
from oncelog.cli.log_format import note

cluster = LazyGroup(
    "cluster",
    help="Describe the cluster; change broker settings and features.",
    table={
        "describe": ("oncelog.cli.cluster:describe", "Show the brokers, the controller, and partitions with problems."),
        "alter": ("oncelog.cli.alter:cluster", "Change settings of brokers while they run."),
        "log-dirs": ("oncelog.cli.cluster:log_dirs", "Show log directories and the partitions in them."),
        "feature": ("oncelog.cli.cluster:feature", "Show or change the levels of the cluster's features."),
    },
)


FEATURE_COLUMNS = ("feature", "supported_min", "supported_max", "level", "epoch")


@click.command()
@click.option("--configs", is_flag=True, help="Also show each broker's settings.")
@connected
@formatted
def describe(configs: bool, bootstrap: str, form: str) -> None:
    """Show the running brokers, the controller, the finalized features, and partitions with problems.

    A partition is offline if it has no leader, under-min-isr if it has fewer in-sync replicas than min.insync.replicas,
    and under-replicated if a replica is not in sync. The list ends after 20 partitions, the worst first.
    """
    from oncelog.cli.replication import show_summary, summarize

    with open_admin(bootstrap) as admin:
        found = admin.describe_cluster()
        brokers: list[dict[str, Any]] = [
            {
                "id": item.node_id,
                "host": item.host,
                "port": item.port,
                "rack": item.rack,
                "controller": item.node_id == found.controller_id,
            }
            for item in found.brokers
        ]
        for item in brokers if configs else ():
            item["configs"] = admin.describe_configs("broker", item["id"])
        health = summarize(admin.describe_replication(), [item["id"] for item in brokers])
    if form == "json":
        data = {"cluster_id": found.cluster_id, "controller": found.controller_id, "features": found.features}
        show({**data, "brokers": brokers, **health}, form)
        return
    click.echo(f"cluster {found.cluster_id}")
    click.echo("features " + " ".join(f"{name}={level}" for name, level in sorted(found.features.items())))
    show(brokers, form, ("id", "host", "port", "rack", "controller"))
    show_summary(health)
    for item in brokers if configs else ():
        click.echo(f"\nbroker {item['id']}")
        for name, value in item["configs"].items():
            click.echo(f"  {name}={'' if value is None else value}")


@click.command("log-dirs")
@click.option("--broker", "brokers", type=int, multiple=True, help="Show this broker only. Repeatable.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Show this topic only. Repeatable.")
@connected
@formatted
def log_dirs(brokers: tuple[int, ...], topics: tuple[str, ...], bootstrap: str, form: str) -> None:
    """Show the brokers' log directories: whether each is online, its space, and the size of each partition in it.

    LAG is the number of offsets between a replica's end and the high watermark.
    """
    with open_admin(bootstrap) as admin:
        wanted = None
        if topics:
            wanted = []
            for name in topics:
                with existing(name):
                    (known,) = admin.describe_topics(name)
                wanted += [(name, item.partition) for item in known.partitions]
        found = admin.describe_log_dirs(brokers or None, wanted)
    rows: list[dict[str, Any]] = [
        {
            "broker": item.broker,
            "path": item.path,
            "online": item.online,
            "total_bytes": None if item.total_bytes < 0 else item.total_bytes,
            "usable_bytes": None if item.usable_bytes < 0 else item.usable_bytes,
            "partitions": [
                {"topic": topic, "partition": index, "bytes": size.size_bytes, "lag": size.offset_lag}
                for (topic, index), size in sorted(item.replicas.items())
            ],
        }
        for item in found
    ]
    if form == "json":
        show(rows, form)
        return
    show([{**row, "partitions": len(row["partitions"])} for row in rows], form)
    replicas = [{"broker": row["broker"], **each} for row in rows for each in row["partitions"]]
    if replicas:
        click.echo("")
        show(replicas, form)


def _changes(arguments: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for argument in arguments:
        name, equals, level = argument.partition("=")
        if not equals or not name or not level.isdecimal() or int(level) > 2**15 - 1:
            raise click.UsageError(f"a change is NAME=LEVEL, such as transaction.version=1, not {argument!r}")
        found[name] = int(level)
    return found


@click.command(epilog=examples("oncelog cluster feature", "oncelog cluster feature transaction.version=2 --dry-run"))
@click.argument("changes", nargs=-1, metavar="[NAME=LEVEL]...")
@click.option("--downgrade", is_flag=True, help="Allow a lower level, unless metadata would be lost.")
@click.option("--unsafe-downgrade", is_flag=True, help="Allow a lower level even if metadata is lost.")
@click.option("--dry-run", is_flag=True, help="Validate the change without making it.")
@connected
@formatted
def feature(
    changes: tuple[str, ...], downgrade: bool, unsafe_downgrade: bool, dry_run: bool, bootstrap: str, form: str
) -> None:
    """Show the features' levels, or change levels while the cluster runs. Change all given levels, or none."""
    levels = _changes(changes)
    if downgrade and unsafe_downgrade:
        raise click.UsageError("--downgrade and --unsafe-downgrade cannot be used together; omit one of them")
    if not levels and (downgrade or unsafe_downgrade or dry_run):
        raise click.UsageError("name a feature and its level, such as transaction.version=1")
    if levels:
        kind = "safe_downgrade" if downgrade else "unsafe_downgrade" if unsafe_downgrade else "upgrade"
        before: dict[str, int] = {}
        with open_admin(bootstrap) as admin:
            with suppress(errors.UnsupportedError):
                before = {item.name: item.level for item in admin.describe_features()}
            admin.update_features(levels, kind, validate_only=dry_run)
        same = [name for name, level in sorted(levels.items()) if before.get(name) == level]
        rows = [
            {"feature": name, "level": level, "changed": not dry_run and name not in same}
            for name, level in sorted(levels.items())
        ]
        show(rows, form)
        for name in same:
            note(f"{name} already had level {levels[name]}")
        return
    with open_admin(bootstrap) as admin:
        rows = [
            {
                "feature": item.name,
                "supported_min": item.supported_min,
                "supported_max": item.supported_max,
                "level": item.level,
                "epoch": item.epoch,
            }
            for item in admin.describe_features()
        ]
    show(rows, form, FEATURE_COLUMNS)
