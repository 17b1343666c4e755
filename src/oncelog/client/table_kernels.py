"""Load the compiled functions for tables in coroutines. Compiling takes seconds, and must not block the event loop."""

from __future__ import annotations

import asyncio

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
from oncelog.columns import native


async def load() -> None:
    """Load the functions in another thread, unless they are loaded already."""
    if not native.loaded():
        await asyncio.to_thread(native.load)
