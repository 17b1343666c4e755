"""`oncelog cluster feature`: the levels of the cluster's features (Kafka's `kafka-features`, KIP-584)."""

from __future__ import annotations

import click

from oncelog.cli.common import check, connected, formatted, open_cluster, show
from oncelog.protocol.kinds import UpgradeType

COLUMNS = ("feature", "supported_min", "supported_max", "level", "epoch")
API_VERSIONS_VERSION = 4
"""Earlier ones leave out features whose lowest level is 0 (KAFKA-17011)."""


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
        if downgrade:
            kind = UpgradeType.SAFE_DOWNGRADE
        else:
            kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe_downgrade else UpgradeType.UPGRADE
        _change(bootstrap, levels, kind, dry_run)
        rows = [{"feature": name, "level": level, "changed": not dry_run} for name, level in sorted(levels.items())]
        show(rows, form)
        return
    from oncelog.protocol.messages.api_versions import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="oncelog-cli", client_software_version="1")
    with open_cluster(bootstrap) as cluster:
        response = cluster.call_any(request, API_VERSIONS_VERSION)
    check(response.error_code, "features")
    finalized = {item.name: item.max_version_level for item in response.finalized_features}
    rows = [
        {
            "feature": item.name,
            "supported_min": item.min_version,
            "supported_max": item.max_version,
            "level": finalized.get(item.name, 0),
            "epoch": response.finalized_features_epoch,
        }
        for item in sorted(response.supported_features, key=lambda each: each.name)
    ]
    show(rows, form, COLUMNS)


def _change(bootstrap: str, levels: dict[str, int], kind: int, dry_run: bool) -> None:
    from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level in levels.items()
        ],
        validate_only=dry_run,
    )
    with open_cluster(bootstrap) as cluster:
        response = cluster.call_controller(request)
    check(response.error_code, response.error_message or "changing features")
