"""A broker tells its service manager what it does (sd_notify): ready, alive, stopping. The manager is a real socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.processes import ManagedProcess, wait_until

OFTEN_US = 200_000


class Manager:
    """The socket of a service manager, and what has arrived at it."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self.address = address
        self.messages: list[dict[str, str]] = []

    def read(self) -> list[dict[str, str]]:
        """Return all messages so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self.socket.recv(65536).decode().splitlines()
                self.messages.append(dict(line.split("=", 1) for line in lines))
        return self.messages

    def has(self, key: str, value: str | None = None) -> bool:
        """Return whether a message has an assignment."""
        return any(key in each and value in (None, each[key]) for each in self.read())

    def beats(self) -> int:
        """Return the number of signs of life so far."""
        return sum(each.get("WATCHDOG") == "1" for each in self.read())


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    short = tmp_path / "n"  # an address has at most 107 bytes
    made = Manager(str(short) if request.param == "path" else f"@oncelog-test-{os.getpid()}-{tmp_path.name}")
    yield made
    made.socket.close()


@pytest.fixture(params=["broker", "up", "up of three"])
def start(request: pytest.FixtureRequest, tmp_path: Path, manager: Manager) -> Iterator[Callable[..., ManagedProcess]]:
    """Start a command under the manager."""
    made: list[ManagedProcess] = []
    program = Path(sys.executable).with_name("oncelog")
    settings = tmp_path / "server.properties"
    settings.write_text(f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    commands = {
        "broker": [program, "broker", "--config", settings],
        "up": [program, "up", "--data", tmp_path / "data", "--port", "0"],
        "up of three": [program, "up", "--brokers", "3", "--data", tmp_path / "data", "--port", "0"],
    }

    def run(watchdog_us: int | None = OFTEN_US, *, pid: int | None = None) -> ManagedProcess:
        env = {**os.environ, "NOTIFY_SOCKET": manager.address}
        if watchdog_us is not None:
            env["WATCHDOG_USEC"] = str(watchdog_us)
        if pid is not None:
            env["WATCHDOG_PID"] = str(pid)
        made.append(ManagedProcess(commands[request.param], tmp_path, f"run-{len(made)}", env))
        return made[-1]

    yield run
    for each in made:
        each.stop()


def quiet(manager: Manager) -> bool:
    """Return whether no sign of life arrives in five times the limit of the watchdog."""
    before = manager.beats()
    time.sleep(5 * OFTEN_US / 1e6)
    return manager.beats() == before


def broker_pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.rglob("broker.pid"))]


def test_service_is_ready_alive_and_stopping(start: Callable[..., ManagedProcess], manager: Manager) -> None:
    process = start()
    process.wait_for(lambda: manager.has("READY", "1"), "the service is ready")
    wait_until(lambda: manager.beats() >= 5, "signs of life arrive")
    assert any("STATUS" in each for each in manager.read())
    assert not manager.has("STOPPING")
    assert process.stop() == 0
    messages = manager.read()
    assert [each for each in messages if "READY" in each] == [each for each in messages if "READY" in each][:1]
    stopping = next(number for number, each in enumerate(messages) if each.get("STOPPING") == "1")
    assert not any("WATCHDOG" in each or "READY" in each for each in messages[stopping:])


def test_stalled_event_loop_sends_no_sign_of_life(
    start: Callable[..., ManagedProcess], manager: Manager, tmp_path: Path
) -> None:
    """Each broker must be alive: if one of three is paused, the manager gets nothing."""
    process = start()
    process.wait_for(lambda: manager.has("READY", "1"), "the service is ready")
    paused = broker_pids(tmp_path / "data")[-1]
    wait_until(lambda: manager.beats() >= 2, "signs of life arrive")
    os.kill(paused, signal.SIGSTOP)
    try:
        wait_until(lambda: quiet(manager), "no sign of life arrives")  # one may be under way
        before = manager.beats()
        assert quiet(manager)
    finally:
        os.kill(paused, signal.SIGCONT)
    wait_until(lambda: manager.beats() > before, "signs of life continue")


def test_without_a_watchdog_there_are_no_signs_of_life(start: Callable[..., ManagedProcess], manager: Manager) -> None:
    process = start(None)
    process.wait_for(lambda: manager.has("READY", "1"), "the service is ready")
    assert process.stop() == 0
    assert manager.has("STOPPING", "1")
    assert not manager.has("WATCHDOG")


def test_watchdog_of_another_process_is_ignored(start: Callable[..., ManagedProcess], manager: Manager) -> None:
    process = start(pid=1)
    process.wait_for(lambda: manager.has("READY", "1"), "the service is ready")
    assert process.stop() == 0
    assert not manager.has("WATCHDOG")
