"""The kernels of tables, for coroutines: compiling them takes seconds, in which an event loop would stand still."""

from __future__ import annotations

import asyncio

import oncelog.columns  # noqa: F401 first: it says what is missing, and what brings it

# isort: split
from oncelog.columns import native


async def load() -> None:
    """Have them at hand, from another thread where they are not yet."""
    if not native.loaded():
        await asyncio.to_thread(native.load)
