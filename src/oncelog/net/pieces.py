"""Whether a transport can be trusted with pieces of memory that lie apart."""

from __future__ import annotations

import asyncio


def to_be_joined(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether pieces are to be joined before they are written to a transport of this event loop.

    asyncio's own `writelines` joins them itself up to Python 3.11. From 3.12 on it does not, and then it never pauses
    who writes too much (CVE-2024-12254, until 3.12.9 and 3.13.2), and an empty piece at the end is never sent: the loop
    spins, and the transport does not close (gh-155888, mended in late releases of 3.14). uvloop has neither.
    """
    return isinstance(loop, asyncio.BaseEventLoop)
