"""Find the processes of a running pipeline by their command lines."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from support.processes import children, gone

MARKS = {
    "jvm": "org.apache.spark.deploy.SparkSubmit",
    "executor": "CoarseGrainedExecutorBackend",
    "python": "pyspark.daemon",
}
"""The part of the command line that identifies each kind of process."""


def command_line(pid: int) -> str:
    """Return the command line, or an empty one if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def of_kind(kind: str, roots: Iterable[int]) -> list[int]:
    """Return the processes of one kind among these and their descendants."""
    every = [pid for root in roots for pid in (root, *children(root))]
    return [pid for pid in every if MARKS[kind] in command_line(pid)]


def signal_all(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Census:
    """Record every process below some roots, so that none is left, and no unrelated process with a reused id is
    killed.
    """

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def look(self, roots: Iterable[int]) -> None:
        """Record the current processes."""
        for root in roots:
            for pid in (root, *children(root)):
                self._seen.setdefault(pid, _born(pid))

    def end(self) -> None:
        """SIGKILL the remaining processes."""
        signal_all(pid for pid, born in self._seen.items() if born and _born(pid) == born and not gone(pid))


def _born(pid: int) -> str:
    """Return when a process started, in the kernel's units, or an empty string if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
