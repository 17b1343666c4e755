"""Processes that a test starts and that never outlive it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

POLL = 0.02
"""Seconds between two checks of an expected event."""


def wait_until(condition: Callable[[], object], what: str, *, timeout: float = 120.0) -> None:
    """Wait until `condition()` is true. Raise AssertionError with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not true after {timeout:g} s")
        time.sleep(POLL)


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe that is full until it is read."""
    reader, writer = os.pipe()
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)  # its flags are its own
    try:
        try:
            while True:
                os.write(filler, b"-" * 512)
        except BlockingIOError:
            yield reader, writer
    finally:
        for fd in (filler, writer, reader):
            os.close(fd)


def accepts(bootstrap: str) -> bool:
    """Return whether a process listens at `host:port`."""
    host, _, port = bootstrap.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
        return True
    return False


def gone(pid: int) -> bool:
    """Return whether no process has this id (an unreaped zombie counts as gone)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except ProcessLookupError:
        return True
    return state in "ZX"


def children(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        direct = parents.get(todo.pop(), [])
        found += direct
        todo += direct
    return found


DIES_WITH_US = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
"""Prefix of a command that gets a SIGTERM when the thread that started it ends.

A worker of pytest-xdist exits immediately when the run is interrupted, and would leave its servers running.
"""


class ManagedProcess:
    """A process with its output in files, in its own process group, which is killed as a whole at the end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        directory: Path,
        name: str,
        env: Mapping[str, str] | None = None,
        *,
        stdin: IO[str] | int = subprocess.DEVNULL,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.stdout_path = directory / f"{name}.out"
        self.stderr_path = directory / f"{name}.err"
        with self.stdout_path.open("ab") as out, self.stderr_path.open("ab") as err:
            self.popen = subprocess.Popen(
                [*DIES_WITH_US, *map(str, command)],
                stdin=stdin,
                stdout=out,
                stderr=err,
                env=dict(env) if env is not None else None,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process's id, which is also its group's."""
        return self.popen.pid

    def output(self) -> str:
        """Return the output so far, for error messages."""
        texts = (path.read_text(errors="replace")[-4000:] for path in (self.stdout_path, self.stderr_path))
        return f"{self.name}:\n" + "\n".join(texts)

    def lines(self) -> Iterator[str]:
        """Return the complete lines on its stdout so far."""
        text = self.stdout_path.read_text(errors="replace")
        yield from text[: text.rfind("\n") + 1].splitlines()

    def wait_for(self, condition: Callable[[], object], what: str, *, timeout: float = 120.0) -> None:
        """Wait as `wait_until` does, but fail at once, with the output, if the process ends before."""

        def seen() -> bool:
            ended = self.popen.poll() is not None
            if condition():
                return True
            assert not ended, f"ended with {self.popen.returncode} before: {what}\n{self.output()}"
            return False

        try:
            wait_until(seen, what, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def stop(self, *, timeout: float = 90.0) -> int:
        """Send SIGTERM, wait, then send SIGKILL to the rest of the group. Return the exit status."""
        if self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout)
        self.kill()
        return self.popen.returncode

    def kill(self) -> None:
        """Send SIGKILL to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()
