"""Reserve large pieces of memory."""

from __future__ import annotations

import mmap


def reserved(size: int) -> memoryview:
    """Return writable memory of `size` bytes, at least one. The system provides its pages as they are written.

    A `bytearray` would be zeroed first, and all threads wait for that: 128 MiB take up to 0.1 s. Raises MemoryError if
    the system cannot reserve so much. `mmap` itself raises OSError, which callers would treat as a disk failure.
    """
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"cannot reserve {size} bytes: {error}") from error
