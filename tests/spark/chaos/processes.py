"""What a running pipeline consists of, by the command lines of its processes."""

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
"""Kind of process: what its command line has in it."""


def command_line(pid: int) -> str:
    """Empty for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def of_kind(kind: str, roots: Iterable[int]) -> list[int]:
    """Processes below these (and they themselves) of one kind."""
    every = [pid for root in roots for pid in (root, *children(root))]
    return [pid for pid in every if MARKS[kind] in command_line(pid)]


def signal_all(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Census:
    """Every process ever seen below some roots: none is left behind, and no stranger with its number is killed."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def look(self, roots: Iterable[int]) -> None:
        """Note who is there."""
        for root in roots:
            for pid in (root, *children(root)):
                self._seen.setdefault(pid, _born(pid))

    def end(self) -> None:
        """SIGKILL whoever is left."""
        signal_all(pid for pid, born in self._seen.items() if born and _born(pid) == born and not gone(pid))


def _born(pid: int) -> str:
    """When a process began, as the kernel counts; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
