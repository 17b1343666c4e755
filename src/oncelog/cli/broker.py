"""`oncelog broker`: one broker from a properties file, for several machines."""

from __future__ import annotations

import click

from oncelog.broker.process import Launch, run
from oncelog.cli.broker_settings import gather


@click.command()
@click.option(
    "--config",
    "config_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A server.properties file.",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, by Kafka's name.")
def broker(config_file: str, assignments: tuple[str, ...]) -> int:
    """Run one broker in the foreground until SIGTERM or Ctrl-C. Its data is in log.dirs."""
    return run(Launch(gather(config_file, assignments)))
