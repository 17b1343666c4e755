"""`oncelog broker`: run one broker from a properties file, for example as a system service."""

from __future__ import annotations

import contextlib

import click

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.process import Launch, run
from oncelog.cli.broker_settings import gather, warn_of_access, with_settings
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import with_log_format
from oncelog.cli.scram_users import scram_users, with_users


@click.command(epilog=examples("oncelog broker --config server.properties --set log.dirs=/data/oncelog"))
@click.option(
    "--config",
    "config_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Read broker settings from this server.properties file.",
)
@with_settings
@with_users
@with_log_format()
def broker(
    config_file: str, assignments: tuple[str, ...], add_scram: tuple[str, ...], scram_files: tuple[str, ...]
) -> int:
    """Run one broker in the foreground until SIGTERM or Ctrl-C, with its data in log.dirs."""
    users = scram_users(add_scram, scram_files)
    settings = gather(config_file, assignments)
    with contextlib.suppress(ConfigError):  # the broker reports it
        warn_of_access(settings)
    return run(Launch(settings, users=users))
