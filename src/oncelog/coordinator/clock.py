"""The two clocks of a moment."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """Both in ms. Sessions and all other timers go by `steady_ms`: a wall clock that is set expels nobody."""

    wall_ms: int
    """Since the epoch: what records say, and what is compared with them."""
    steady_ms: int
    """Since any moment; it never jumps."""
