"""`oncelog metrics`: a board for Grafana, and rules for Prometheus. Neither command needs a broker."""

from __future__ import annotations

import click

from oncelog.cli.common import formatted, show
from oncelog.cli.lazy import LazyGroup, examples

metrics = LazyGroup(
    "metrics",
    help="Print a board for Grafana or rules for Prometheus, for the metrics of `oncelog up --metrics-port`.",
    table={
        "board": ("oncelog.cli.metrics:board", "Print a board for Grafana, as JSON."),
        "rules": ("oncelog.cli.metrics:rules", "Print alerts for Prometheus, as YAML."),
        "list": ("oncelog.cli.metrics:names", "List the metrics of a broker."),
    },
)


@click.command(epilog=examples("oncelog metrics board"))
def board() -> None:
    """Print a board for Grafana, as JSON. Import it in Grafana under Dashboards, New, Import.

    The board has a variable for the data source, for the job in Prometheus whose targets are the brokers, and for
    topics.
    """
    from oncelog.broker.metrics.board import as_json

    click.echo(as_json(), nl=False)


@click.command(epilog=examples("oncelog metrics rules"))
def rules() -> None:
    """Print alerts for Prometheus, as YAML. Name the file under rule_files in prometheus.yml.

    The description of each alert says what to do, with the command of oncelog that shows more.
    """
    from oncelog.broker.metrics import alerts

    click.echo(alerts.as_yaml(alerts.rules()), nl=False)


@click.command("list", epilog=examples("oncelog metrics list --format json"))
@formatted
def names(form: str) -> None:
    """List the metrics of a broker: name, type, labels and meaning."""
    from oncelog.broker.metrics.catalog import catalog

    rows = [
        {"name": each.name, "type": each.kind.value, "labels": list(each.labels), "meaning": each.help}
        for each in catalog()
    ]
    show(rows, form)
