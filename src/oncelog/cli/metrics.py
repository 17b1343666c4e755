"""`oncelog metrics`: a board for Grafana and rules for Prometheus, which need no broker, and whether one is ready."""

from __future__ import annotations

import click

from oncelog.cli.common import formatted, printable, show
from oncelog.cli.lazy import LazyGroup, examples

READY_WAIT_S = 4.0
"""How long a broker may take to answer."""
MOST_BYTES = 1024 * 1024
"""Bytes of an answer that are read."""

metrics = LazyGroup(
    "metrics",
    help="Print a board for Grafana or rules for Prometheus. Ask the server of `oncelog up --metrics-port`.",
    table={
        "board": ("oncelog.cli.metrics:board", "Print a board for Grafana, as JSON."),
        "rules": ("oncelog.cli.metrics:rules", "Print alerts for Prometheus, as YAML."),
        "list": ("oncelog.cli.metrics:names", "List the metrics of a broker."),
        "ready": ("oncelog.cli.metrics:ready", "Ask a broker whether it is ready, and what it waits for."),
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

    click.echo(alerts.as_yaml(alerts.RULES), nl=False)


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


@click.command(epilog=examples("oncelog metrics ready --port 9308"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the broker's `metrics.host`.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=9308,
    show_default=True,
    envvar="KAFKA_METRICS_PORT",
    help="The broker's `metrics.port`. $KAFKA_METRICS_PORT sets the same.",
)
def ready(host: str, port: int) -> None:
    """Ask a broker whether it is ready, for example as the health check of a container.

    The exit status is 0 if it is ready. Otherwise it is 1, and the message says what the broker waits for.
    """
    import http.client
    import json

    from oncelog.protocol.addresses import bracketed

    address = f"{bracketed(host)}:{port}"
    connection = http.client.HTTPConnection(host, port, timeout=READY_WAIT_S)
    try:
        connection.request("GET", "/ready")
        answer = json.loads(connection.getresponse().read(MOST_BYTES))
        missing = [printable(str(each)) for each in answer["missing"]]
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(f"no broker serves its metrics at {address}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"the server at {address} is no broker of oncelog") from error
    finally:
        connection.close()
    if missing:
        raise click.ClickException(f"the broker at {address} is not ready: {'; '.join(missing)}")
    click.echo("ready")
