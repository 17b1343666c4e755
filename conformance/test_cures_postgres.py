"""The cures of examples/cures on a real PostgreSQL server, with kill -9 between the programs' steps."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from support.cures import CURES, Shop
from support.processes import DIES_WITH_US
from support.servers import OncelogCluster


def binaries() -> Path:
    """Return the folder of the newest version that Debian installs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    assert found, "PostgreSQL's server is missing: apt-get install postgresql"
    return found[-1]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Run a server in a temporary folder, and return its address.

    PostgreSQL does not run as root. In that case, it runs as the user postgres. It stops when this process ends,
    because an interrupted run kills the processes of pytest-xdist.
    """
    # Not in pytest's own folder, which only its owner can enter.
    folder = Path(tempfile.mkdtemp(prefix="oncelog-postgres-"))
    user = DIES_WITH_US
    if os.getuid() == 0:
        # setpriv would clear the signal if it changed the user in the same call.
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "TERM"]
        shutil.chown(folder, "postgres", "postgres")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    initdb = [*user, binaries() / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "--no-sync"]
    subprocess.run(initdb, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    command = [*user, binaries() / "postgres", "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), "-k", folder]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _wait(server, url, folder / "log")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(30)
        shutil.rmtree(folder)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the server accepts connections."""
    until = time.monotonic() + 60
    while not _answers(url):
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)


@pytest.fixture
def database(postgres: str, name: str) -> str:
    """Create an empty database on that server."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return postgres.removesuffix("postgres") + name


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "cure"])
@pytest.mark.parametrize("cure", CURES)
def test_cure_on_postgresql(shop_server: OncelogCluster, database: str, name: str, cure: str, naive: bool) -> None:
    CURES[cure](Shop(shop_server, name, database), naive=naive)


def test_cure_survives_a_database_crash(shop_server: OncelogCluster, database: str, name: str) -> None:
    """kill -9 on one of the server's processes undoes all transactions. PostgreSQL recovers, and reading continues."""
    shop = Shop(shop_server, name, database)
    shop.fill()
    assert shop.run("offset_in_database", fault="moved:5") == -signal.SIGKILL
    killed, other = (psycopg.connect(database, autocommit=True) for _ in range(2))
    os.kill(killed.info.backend_pid, signal.SIGKILL)
    # The server still accepts connections until it notices the death. Then it ends all of them, and recovers.
    _wait_until(lambda: not _is_open(other))
    killed.close()
    _wait_until(lambda: _answers(database))
    shop.run("offset_in_database")
    assert shop.balance_error() == 0


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def _is_open(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        connection.close()
        return False
    return True


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
