"""`oncelog cluster feature`: the levels of the cluster's features (Kafka's `kafka-features`, KIP-584)."""

from __future__ import annotations

import click

from oncelog.cli.common import connected, formatted, open_admin, show

COLUMNS = ("feature", "supported_min", "supported_max", "level", "epoch")


def _changes(arguments: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for argument in arguments:
        name, equals, level = argument.partition("=")
        if not equals or not name or not level.isdecimal() or int(level) > 2**15 - 1:
            raise click.UsageError(f"a change looks like transaction.version=1, not {argument!r}")
        found[name] = int(level)
    return found


@click.command()
@click.argument("changes", nargs=-1, metavar="[NAME=LEVEL]...")
@click.option("--downgrade", is_flag=True, help="Go down to the level, if nothing is lost by it.")
@click.option("--unsafe-downgrade", is_flag=True, help="Go down to the level whatever is lost by it.")
@click.option("--dry-run", is_flag=True, help="Only say whether it may be done.")
@connected
@formatted
def feature(
    changes: tuple[str, ...], downgrade: bool, unsafe_downgrade: bool, dry_run: bool, bootstrap: str, form: str
) -> None:
    """Show the features' levels, or change some (all of them or none) while the cluster runs."""
    levels = _changes(changes)
    if downgrade and unsafe_downgrade:
        raise click.UsageError("--downgrade excludes --unsafe-downgrade")
    if not levels and (downgrade or unsafe_downgrade or dry_run):
        raise click.UsageError("which feature? Name it, as in transaction.version=1")
    if levels:
        kind = "safe_downgrade" if downgrade else "unsafe_downgrade" if unsafe_downgrade else "upgrade"
        with open_admin(bootstrap) as admin:
            admin.update_features(levels, kind, validate_only=dry_run)
        rows = [{"feature": name, "level": level, "changed": not dry_run} for name, level in sorted(levels.items())]
        show(rows, form)
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
    show(rows, form, COLUMNS)
