"""Load the kernels of tables for coroutines: compiling takes seconds, and must not block the event loop."""

from __future__ import annotations

import asyncio

import oncelog.columns  # noqa: F401 first: it says what is missing, and what brings it

# isort: split
from oncelog.columns import native


async def load() -> None:
    """Load the kernels, in another thread unless they are loaded."""
    if not native.loaded():
        await asyncio.to_thread(native.load)
