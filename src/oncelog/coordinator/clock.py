"""The time of an operation, on two clocks."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """The time in ms. All timers use `steady_ms`, so a change of the wall clock expires no member."""

    wall_ms: int
    """The time since the epoch. Timestamps in records use it."""
    steady_ms: int
    """The time on a clock that never jumps. Its start is arbitrary."""
