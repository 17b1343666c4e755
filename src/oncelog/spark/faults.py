"""The one seam at which tests kill a process of the sink: before the n-th operation of a program.

`ONCELOG_SINK_FAULT=plan:5` kills the process that plans before the fifth operation that it sends (from 0), and likewise
`task:`, `commit:` and `abort:`; `plan:5:FILE` only if FILE does not exist yet, and makes it: so it happens once.
`@FILE`: what that file says now, if it exists (Spark's processes get their environment once).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "ONCELOG_SINK_FAULT"


class _Count:
    """Of this process: which program runs, and how many operations it has sent."""

    program = ""
    sent = 0


def enter(program: str) -> None:
    """A program begins."""
    _Count.program, _Count.sent = program, 0


def reach(operation: str) -> None:
    """An operation is about to be sent."""
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
