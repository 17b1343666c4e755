"""Set the limits of a broker process: its file descriptors and its garbage collections."""

from __future__ import annotations

import contextlib
import gc
import resource
import time

OPEN_FILES = 512
"""The file descriptors that the logs may hold, if the limit of the process allows it (`share_descriptors`)."""
OTHER_FILES = 64
"""The file descriptors for everything except logs and connections: metadata, locks, the event loop."""
ALLOCATIONS_A_COLLECTION = 10_000
"""The young-generation threshold of the garbage collector. A collection of this many objects takes 3 ms."""
YOUNG_COLLECTIONS = 2
"""The collections of the young generation before a collection of the next one."""
LONG_COLLECTION_S = 0.005
"""If a collection takes more CPU time than this, the surviving objects are frozen."""


def share_descriptors(limit: int) -> tuple[int, int]:
    """Divide the process's file descriptors. Return the numbers for logs and for connections.

    Connections get at least half of the limit.
    """
    logs = min(OPEN_FILES, limit // 4)
    return logs, max(limit - logs - OTHER_FILES, limit // 2)


def descriptor_limit() -> int:
    """Return the file descriptor limit of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def allow_many_files() -> None:
    """Raise the file descriptor limit to this user's hard limit. Each connection needs a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS reports a limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit_garbage_collection() -> None:
    """Exclude all existing objects from garbage collection, and later the long-lived objects of a large broker.

    A collection blocks the event loop. For the objects of 20,000 open logs, it takes 0.2 s. So after a long collection,
    all surviving objects are frozen. A frozen object is still freed when its last reference disappears.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_A_COLLECTION, YOUNG_COLLECTIONS, 10)
    started = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.thread_time()
        elif info["generation"] and time.thread_time() - started > LONG_COLLECTION_S:
            gc.freeze()

    gc.callbacks.append(watch)
