"""`oncelog up`: run brokers in the foreground and restart those that die."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from oncelog.broker.config.sources import set_option
from oncelog.broker.folder_locks import FolderLock, StartError
from oncelog.broker.process import METADATA_FILE, Launch, TopicSpec, stop_signals
from oncelog.broker.service_manager import ServiceManager
from oncelog.cli.broker_settings import (
    gather,
    of_broker,
    require_own_ports,
    require_utf8,
    require_way_between,
    topic_specs,
    warn_of_access,
    with_address,
    with_settings,
)
from oncelog.cli.changed_settings import ChangedSettings
from oncelog.cli.kafka_image import with_kafka_image
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import Warnings, note, with_log_format
from oncelog.cli.scram_users import scram_users, with_users
from oncelog.cli.secure import lines_for_clients, mention_files, secured, with_own_listener
from oncelog.cli.secure_files import CLIENT
from oncelog.cli.supervisor import Supervisor
from oncelog.cli.up_console import ConsoleBeside
from oncelog.log.checkpoint import PARTITION_METADATA

if TYPE_CHECKING:
    from uuid import UUID

DEFAULT_DATA = ".oncelog"
LOG_DIR_PREFIX = "broker-"
"""The log directory of broker 1 is `broker-1` in the data directory, unless `log.dirs` is set."""
LOST = "lost.log.dirs"

OWNER_WAIT_S = 1.0
"""How long to wait for the identity of a log directory. A disk that hangs must not delay the other brokers."""
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
    if ephemeral and data is not None:
        raise click.UsageError("--data and --ephemeral cannot be used together; omit one of them")
    beside = ConsoleBeside(console_port)
    specs = topic_specs(topics, brokers)
    changes = ChangedSettings(config_file)

    def read() -> list[dict[str, str]]:
        given = gather(config_file, assignments)
        given = with_own_listener(given) if secure else given
        settings = with_address(given, host=host, port=port, advertise=advertise)
        if metrics_port is not None:
            settings["metrics.port"] = str(metrics_port)
        each = [of_broker(settings, number) for number in range(1, brokers + 1)]
        require_own_ports(each)
        require_way_between(settings, brokers)
        return each

    each = read()
    chosen = _own_log_dirs(dict(set_option(text) for text in assignments), brokers)
    if ephemeral:  # the supervisor handles the signals later than this
        for number in stop_signals():
            signal.signal(number, _end)
    folder = tempfile.mkdtemp(prefix="oncelog-") if ephemeral else os.path.abspath(data or DEFAULT_DATA)
    require_utf8(folder)
    if data is None and not ephemeral:
        _mention_data_above(folder)
    try:
        lock = FolderLock(folder)
        _check_existing_data(folder, brokers, _paths(each[0].get(LOST, "")))
        _check_metadata(folder, brokers)
        files = None
        chosen_by_secure: dict[str, str] = {}
        if secure:
            chosen_by_secure, users, files = secured(each, folder, users)
            each = [settings | chosen_by_secure for settings in each]
            for text in files.notes:
                note(text)
        else:
            mention_files(each[0], folder)
        launches = [
            msgspec.structs.replace(_launch(folder, own, number, brokers, specs, log_dirs=chosen), users=users)
            for number, own in enumerate(each, 1)
        ]
        for launch in launches:
            _check_owner(launch)
        warn_of_access(*each)
        changes.read = lambda number: _launch(
            folder, read()[number - 1] | chosen_by_secure, number, brokers, (), log_dirs=chosen
        )
        beside.config = None if files is None else files.path(CLIENT)
        with beside:
            status = Supervisor(
                launches,
                restart=not no_restart,
                changes=changes,
                parent=parent,
                faults=fault_signals,
                ready_lines=lambda addresses: [
                    *beside.start(addresses),
                    *([] if files is None else lines_for_clients(files, addresses)),
                ],
                manager=ServiceManager.from_environment(os.environ, os.getpid(), Warnings()),
            ).run()
        lock.release()
    except StartError as error:
        raise click.ClickException(str(error)) from error
    finally:
        if ephemeral:
            shutil.rmtree(folder, ignore_errors=True)
    return status


def _end(number: int, _: object) -> NoReturn:
    """End in order, so that the temporary directory is deleted."""
    raise SystemExit(128 + number)


def _own_log_dirs(assigned: Mapping[str, str], brokers: int) -> str | None:
    """Return the `log.dirs` of `--set`, if any. Raises UsageError for settings that `oncelog up` itself chooses."""
    for key in ("node.id", "broker.id"):
        if key in assigned:
            raise click.UsageError(
                f"--set {key} has no effect: `oncelog up` numbers its brokers from 1. To run one broker with another "
                "id, use `oncelog broker --config FILE`"
            )
    for key in ("log.dirs", "log.dir"):
        if key in assigned and brokers > 1:
            raise click.UsageError(f"{key} cannot be set for several brokers; use --data")
    return assigned.get("log.dirs")


def _launch(
    folder: str,
    settings: dict[str, str],
    number: int,
    brokers: int,
    topics: tuple[TopicSpec, ...],
    *,
    log_dirs: str | None,
) -> Launch:
    """Return the parameters of one broker.

    `log_dirs` is that of the command line: a file may describe another installation.
    """
    own = {"node.id": str(number), "log.dirs": log_dirs or os.path.join(folder, f"{LOG_DIR_PREFIX}{number}")}
    for key in ("log.dirs", "log.dir"):
        if number == 1 and key in settings and settings[key] != log_dirs:
            instead = f"ignored, because `oncelog up` keeps its data in {folder}"
            note(f"{key}={settings[key]} is {instead}; to change that, use --data or --set log.dirs=...")
    kept = {key: value for key, value in settings.items() if key not in ("log.dir", "broker.id")}
    if brokers > 1 and LOST in kept:  # the others are unknown until they have started once
        others = [os.path.join(folder, f"{LOG_DIR_PREFIX}{each}") for each in range(1, brokers + 1) if each != number]
        if lost := [path for path in _paths(kept.pop(LOST)) if path not in others]:
            own[LOST] = ",".join(lost)
    metadata = os.path.join(folder, METADATA_FILE)
    exists = brokers > 1 and os.path.exists(metadata)
    return Launch({**kept, **own}, metadata, topics, brokers=brokers, cluster_exists=exists)


def _paths(setting: str) -> list[str]:
    """Return the absolute paths in a setting that names directories."""
    return [os.path.abspath(path.strip()) for path in setting.split(",") if path.strip()]


def _check_existing_data(folder: str, brokers: int, lost: Sequence[str]) -> None:
    """Raise StartError if the data belongs to more brokers, or if several brokers could not use the logs of broker 1.

    In both cases, records may have their only copy in a directory that no broker would use.
    """
    numbers = [name.removeprefix(LOG_DIR_PREFIX) for name in os.listdir(folder) if name.startswith(LOG_DIR_PREFIX)]
    stored = _stored_log_dirs(folder)
    known = max((*stored, *(int(number) for number in numbers if number.isdigit())), default=1)
    if known > brokers:
        raise StartError(f"{folder} has the data of broker {known}; run `oncelog up --brokers {known}`")
    if brokers == 1 or stored.keys() != {1}:
        return
    from oncelog.broker.storage.log_dir_registry import at_present_paths

    own = os.path.join(folder, f"{LOG_DIR_PREFIX}1")
    moved = _directory_id(own)  # the directory's former path is stored
    former = at_present_paths(stored[1], [own])
    paths = sorted(path for path, (key, _) in former.items() if path not in lost and key != moved)
    if any(path != own for path in paths):
        listed = ",".join(paths)
        raise StartError(
            f"the logs of broker 1 are in {listed}, and several brokers can only use {own}. To keep the records, run "
            f"`oncelog up --data {folder} --set log.dirs={listed}` without --brokers"
        )


def _check_metadata(folder: str, brokers: int) -> None:
    """Raise StartError if several brokers have logs, but no metadata.

    A broker without logs would create the metadata of a new cluster, and the others would set their logs aside.
    """
    metadata = os.path.join(folder, METADATA_FILE)
    if brokers == 1 or os.path.exists(metadata):
        return
    paths = [os.path.join(folder, f"{LOG_DIR_PREFIX}{number}") for number in range(1, brokers + 1)]
    if used := [path for path in paths if _has_logs(path)]:
        remedy = "It cannot be rebuilt from the logs of several brokers"
        if used == paths[:1]:
            remedy = (
                f"If there is none, rebuild it with `oncelog up --data {folder} --set restore.metadata=true`, without "
                "--brokers"
            )
        listed = ", ".join(used)
        raise StartError(
            f"{metadata} is missing, but there are logs in {listed}. Restore the file from a backup. {remedy}"
        )


def _has_logs(path: str) -> bool:
    """Return whether a log directory has logs that oncelog has written. Apache Kafka's are imported."""
    from oncelog.broker.storage.data_directory import FORMAT_KEY

    if FORMAT_KEY not in _identity(path):
        return False
    return any(os.path.exists(os.path.join(path, name, PARTITION_METADATA)) for name in os.listdir(path))


def _stored_log_dirs(folder: str) -> dict[int, dict[UUID, str]]:
    """Return the log directories that the metadata contains, by broker and directory.id. Empty if it is unreadable."""
    metadata = os.path.join(folder, METADATA_FILE)
    if not os.path.exists(metadata):
        return {}
    from oncelog.broker.storage import log_dir_registry
    from oncelog.cluster.store import StoreError
    from oncelog.cluster.store_sqlite import SqliteStore

    try:
        with contextlib.closing(SqliteStore(metadata)) as store:
            return log_dir_registry.read_all(store)
    except (StoreError, OSError):  # the broker reports it
        return {}


def _check_owner(launch: Launch) -> None:
    """Raise StartError if a log directory has the data of another broker, for example because two were swapped."""
    number = launch.settings["node.id"]
    for path in launch.settings["log.dirs"].split(","):
        found: dict[str, str] = {}
        reader = threading.Thread(target=_read_identity, args=(path.strip(), found), daemon=True)
        reader.start()
        reader.join(OWNER_WAIT_S)
        owner = found.get("node.id", number)
        if owner != number:
            raise StartError(
                f"{path.strip()} is the log directory of broker {owner}, but broker {number} would use it. Move the "
                f"data back, so that {LOG_DIR_PREFIX}N has the data of broker N, or run it as broker {owner} with "
                "`oncelog broker --config FILE`"
            )


def _read_identity(path: str, found: dict[str, str]) -> None:
    found.update(_identity(path))


def _directory_id(path: str) -> UUID | None:
    """Return the directory.id of a log directory, or None if it has none."""
    from oncelog.cluster.topics import parse_topic_id

    with contextlib.suppress(ValueError):
        if found := _identity(path).get("directory.id"):
            return parse_topic_id(found)
    return None


def _identity(path: str) -> dict[str, str]:
    """Return the entries of a log directory's meta.properties, or none after an error, which the broker reports."""
    import logging

    from oncelog.broker.storage.data_directory import DataDirectory
    from oncelog.log.disk import OsDisk

    if not os.path.isdir(path):
        return {}
    directory = DataDirectory(OsDisk(), path, 1, logging.getLogger("oncelog.up"), lambda _directory, _error: None)
    with contextlib.suppress(OSError):
        return directory.identity()
    return {}


def _mention_data_above(folder: str) -> None:
    """Print a line if the default directory has no data, but the default directory below a parent has."""
    if os.path.exists(os.path.join(folder, METADATA_FILE)):
        return
    above = os.path.dirname(os.path.dirname(folder))
    while True:
        other = os.path.join(above, DEFAULT_DATA)
        if other != folder and os.path.exists(os.path.join(other, METADATA_FILE)):
            note(f"{folder} is new, but {other} contains older data; to use it, pass --data {other}")
            return
        above, below = os.path.dirname(above), above
        if above == below:
            return
