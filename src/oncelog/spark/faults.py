"""Kill a process of the sink for tests: before the n-th operation of a program.

`ONCELOG_SINK_FAULT=plan:5` kills the process that plans before the operation number 5 (from 0) is sent; `task:`,
`commit:` and `abort:` likewise. `plan:5:FILE` does so only if FILE does not exist, and creates it: once. `@FILE`: the
current content of the file, if it exists, because Spark's processes get their environment once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "ONCELOG_SINK_FAULT"


class _Count:
    """The program that runs in this process, and the number of operations that it has sent."""

    program = ""
    sent = 0


def enter(program: str) -> None:
    """Record that a program begins."""
    _Count.program, _Count.sent = program, 0


def reach(operation: str) -> None:
    """Record that an operation is about to be sent. Kill the process if a test wants it here."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted.startswith("@"):
        named = Path(wanted[1:])
        wanted = named.read_text().strip() if named.exists() else ""
    if wanted:
        program, number, once = (*wanted.split(":", 2), "")[:3]
        if program == _Count.program and int(number) == _Count.sent and _first_time(once):
            os.kill(os.getpid(), signal.SIGKILL)
    _Count.sent += 1


def _first_time(once: str) -> bool:
    if not once:
        return True
    try:
        Path(once).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
