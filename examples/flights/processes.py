"""The demo's processes: start, kill and stop them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """Return the process's children and their children (Spark's JVM and Python workers), or [] without /proc."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = parents.get(pid, [])
    for child in found:
        found.extend(parents.get(child, []))
    return found


class Child:
    """A child process in its own session. Its stdout is read as lines, its stderr goes to a log file."""

    def __init__(self, command: Sequence[str | Path], log: Path, name: str) -> None:
        self.name = name
        self.log = log
        self.lines: list[str] = []
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.pid = self._process.pid
        threading.Thread(target=self._read, name=f"{name} output", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            self.lines.extend(iter(lambda: stdout.readline().rstrip("\n"), ""))

    @property
    def status(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.poll()

    def last(self) -> dict[str, int]:
        """Return the last printed line of JSON, or {} before the first."""
        return json.loads(self.lines[-1]) if self.lines else {}

    def kill(self) -> None:
        """Send SIGKILL to the process and all its descendants, and wait until it is gone."""
        below = descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, patience: float = 30) -> int:
        """Send SIGTERM, then SIGKILL to the remaining processes. Return the exit status."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.kill()
        assert self._process.returncode is not None
        return self._process.returncode

    def tail(self, lines: int) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def reason(self) -> str:
        """Return why the process ended: the last line of its log about a query, otherwise the last line."""
        queries = [line for line in self.tail(1000).splitlines() if line.startswith("query ")]
        return queries[-1] if queries else self.tail(1)


BROKERS = 3
REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
"""Each partition is on all brokers, and acknowledged records are on two of them at least."""


class Brokers:
    """`oncelog up` with three brokers that are killed from time to time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "brokers"
        self._killed = 0
        program = Path(sys.executable).with_name("oncelog")
        command = [program, "up", "--brokers", str(BROKERS), "--port", "0", "--data", self._folder]
        for key, value in REPLICATED.items():
            command += ["--set", f"{key}={value}"]
        self.child = Child(command, folder / "brokers.log", "brokers")

    def wait(self, patience: float = 30) -> str:
        """Wait until the brokers are ready, and return their addresses."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and self.child.status is None:
            for line in self.child.lines:
                if line.startswith("BROKERS="):
                    return line.removeprefix("BROKERS=")
            time.sleep(0.02)
        raise RuntimeError(f"the brokers did not start:\n{self.child.tail(1)}")

    def pid(self, number: int) -> int:
        """Return the process id of one broker (not of the supervisor that restarts it)."""
        return int((self._folder / f"broker-{number}" / "broker.pid").read_text())

    def kill(self, number: int) -> int:
        """SIGKILL one broker, after it has restarted from the previous kill. Return the process id that it had."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                pid = self.pid(number)
                if pid != self._killed:
                    os.kill(pid, signal.SIGKILL)
                    self._killed = pid
                    return pid
            time.sleep(0.02)
