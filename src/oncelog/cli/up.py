"""`oncelog up`: run brokers in the foreground and restart those that die."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from oncelog.broker.folder_locks import FolderLock
from oncelog.broker.service_manager import ServiceManager
from oncelog.cli.broker_settings import topic_specs, warn_of_access, with_settings
from oncelog.cli.changed_settings import ChangedSettings
from oncelog.cli.data_folder import DEFAULT_DATA, check_data, check_owner, data_folder
from oncelog.cli.kafka_image import with_kafka_image
from oncelog.cli.launches import LOST, Launches, SettingsOptions, paths_in
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import Warnings, note, with_log_format
from oncelog.cli.scram_users import scram_users, with_users
from oncelog.cli.secure import lines_for_clients, mention_files, secured
from oncelog.cli.secure_files import CLIENT
from oncelog.cli.supervisor import Supervisor
from oncelog.cli.up_console import ConsoleBeside

if TYPE_CHECKING:
    from oncelog.broker.process import ScramUser
    from oncelog.cli.secure_files import SecureFiles

MOST_BROKERS = 64
"""A broker can use a whole CPU core. A larger number is a mistake, and would make the machine unusable."""


@click.command(epilog=examples("oncelog up --topic orders:6", "oncelog up --ephemeral --port 0"))
@click.option(
    "--brokers",
    type=click.IntRange(1, MOST_BROKERS),
    default=1,
    metavar="N",
    help=f"Number of brokers, one process each, at most {MOST_BROKERS}. Default: 1.",
)
@click.option("--host", help="Address to listen on. Default: 127.0.0.1.")
@click.option("--advertise", metavar="HOST[:PORT]", help="Address that clients connect to. Default: that of --host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on. Default: 9092. 0: any free port.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics. Broker 2 uses the next port, and so on.",
)
@click.option(
    "--console-port",
    type=click.IntRange(0, 65535),
    help="Show the cluster in a browser, at http://127.0.0.1:PORT/ (needs the extra console). 0: any free port.",
)
@click.option("--data", type=click.Path(file_okay=False), help=f"Directory for all data. Default: ./{DEFAULT_DATA}.")
@click.option("--ephemeral", is_flag=True, help="Keep all data in a temporary directory, and delete it at the end.")
@click.option(
    *("--topic", "topics"),
    multiple=True,
    metavar="NAME[:PARTITIONS[:RF]]",
    help="Create this topic if it does not exist. Repeatable.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Read broker settings from this server.properties file. A broker that restarts reads it again.",
)
@with_settings
@click.option(
    "--secure",
    is_flag=True,
    help="Require TLS and a login. Create a certificate and a user in the data directory, and print how to connect.",
)
@with_users
@with_log_format()
@with_kafka_image
@click.option("--no-restart", is_flag=True, help="Exit when the broker dies, instead of restarting it.")
@click.option("--exit-with-parent", is_flag=True, help="Stop when the process that ran this command ends.")
@click.option("--parent-pid", type=int, hidden=True, help="Stop when this process, which ran the command, ends.")
@click.option("--fault-signals", is_flag=True, hidden=True, help="Kill the broker on SIGUSR1, restart it on SIGUSR2.")
def up(
    brokers: int,
    host: str | None,
    advertise: str | None,
    port: int | None,
    metrics_port: int | None,
    console_port: int | None,
    data: str | None,
    ephemeral: bool,
    topics: tuple[str, ...],
    config_file: str | None,
    assignments: tuple[str, ...],
    secure: bool,
    add_scram: tuple[str, ...],
    scram_files: tuple[str, ...],
    no_restart: bool,
    exit_with_parent: bool,
    parent_pid: int | None,
    fault_signals: bool,
) -> int:
    """Run brokers in the foreground until SIGTERM or Ctrl-C. Restart each one that dies.

    When all brokers accept requests, the command prints one line BROKERS=HOST:PORT,... on stdout. Broker 2 listens on
    the port after that of broker 1, and so on. If a broker of an existing cluster cannot start, the others run, and the
    command retries.
    """
    users = scram_users(add_scram, scram_files)
    # A parent that knows its id passes it: it may be killed before this line, and getppid() would then be another's.
    parent = os.getppid() if exit_with_parent and parent_pid is None else parent_pid
    beside = ConsoleBeside(console_port)
    specs = topic_specs(topics, brokers)
    changes = ChangedSettings(config_file)
    options = SettingsOptions(brokers, config_file, assignments, host, port, advertise, metrics_port, secure)
    each, log_dirs = options.read(), options.own_log_dirs()
    with data_folder(data, ephemeral=ephemeral) as folder:
        lock = FolderLock(folder)
        check_data(folder, brokers, paths_in(each[0].get(LOST, "")))
        chosen, users, files = _protected(each, folder, users) if secure else _open(each, folder, users)
        first = Launches(folder, brokers, specs, log_dirs, chosen, users)
        launches = [first.of(number, own) for number, own in enumerate(each, 1)]
        for launch in launches:
            check_owner(launch.settings)
        warn_of_access(*(launch.settings for launch in launches))
        later = first._replace(topics=(), users=())
        changes.read = lambda number: later.of(number, options.read()[number - 1])

        def ready_lines(addresses: str) -> list[str]:
            beside.start(addresses, None if files is None else files.path(CLIENT))
            return [] if files is None else lines_for_clients(files, addresses)

        with beside:
            status = Supervisor(
                launches,
                restart=not no_restart,
                changes=changes,
                parent=parent,
                faults=fault_signals,
                ready_lines=ready_lines,
                manager=ServiceManager.from_environment(os.environ, os.getpid(), Warnings()),
            ).run()
        lock.release()
    return status


_Protection = tuple[Mapping[str, str], tuple["ScramUser", ...], "SecureFiles | None"]
"""Further settings of all brokers, the users to add, and the files of `--secure`."""


def _protected(each: Sequence[Mapping[str, str]], folder: str, users: tuple[ScramUser, ...]) -> _Protection:
    """Create what `--secure` needs, or use what an earlier start has created."""
    chosen, users, files = secured(each, folder, users)
    for text in files.notes:
        note(text)
    return chosen, users, files


def _open(each: Sequence[Mapping[str, str]], folder: str, users: tuple[ScramUser, ...]) -> _Protection:
    mention_files(each[0], folder)
    return {}, users, None
