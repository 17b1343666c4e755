"""The data directory of `oncelog up`: create it, and check that the data in it belongs to the brokers that will run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from oncelog.broker.folder_locks import StartError
from oncelog.broker.process import METADATA_FILE, stop_signals
from oncelog.cli.broker_settings import require_utf8
from oncelog.cli.log_format import note
from oncelog.log.checkpoint import PARTITION_METADATA

if TYPE_CHECKING:
    from uuid import UUID

DEFAULT_DATA = ".oncelog"
LOG_DIR_PREFIX = "broker-"
"""The log directory of broker 1 is `broker-1` in the data directory, unless `log.dirs` is set."""

OWNER_WAIT_S = 1.0
"""How long to wait for the identity of a log directory. A disk that hangs must not delay the other brokers."""


@contextlib.contextmanager
def data_folder(data: str | None, *, ephemeral: bool) -> Iterator[str]:
    """Let the body use the absolute path of the directory. If it is `ephemeral`, delete it afterwards.

    Raises UsageError for an impossible choice or path, and ClickException with the text of a StartError of the body.
    """
    if ephemeral and data is not None:
        raise click.UsageError("--data and --ephemeral cannot be used together; omit one of them")
    if ephemeral:  # the supervisor handles the signals later than this
        for number in stop_signals():
            signal.signal(number, _end)
    folder = tempfile.mkdtemp(prefix="oncelog-") if ephemeral else os.path.abspath(data or DEFAULT_DATA)
    require_utf8(folder)
    if data is None and not ephemeral:
        _mention_data_above(folder)
    try:
        yield folder
    except StartError as error:
        raise click.ClickException(str(error)) from error
    finally:
        if ephemeral:
            shutil.rmtree(folder, ignore_errors=True)


def _end(number: int, _: object) -> NoReturn:
    """End in order, so that the temporary directory is deleted."""
    raise SystemExit(128 + number)


def check_data(folder: str, brokers: int, lost: Sequence[str]) -> None:
    """Raise StartError if the data does not suit this number of brokers. `lost` are the paths of `lost.log.dirs`."""
    _check_existing_data(folder, brokers, lost)
    _check_metadata(folder, brokers)


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


def check_owner(settings: Mapping[str, str]) -> None:
    """Raise StartError if a log directory has the data of another broker, for example because two were swapped."""
    number = settings["node.id"]
    for path in settings["log.dirs"].split(","):
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
