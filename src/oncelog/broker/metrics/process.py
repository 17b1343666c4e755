"""What the system says about this process: processor time, memory, file descriptors, start."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator

from oncelog.broker.metrics import catalog as names
from oncelog.broker.metrics.exposition import Metric

STATUS = "/proc/self/statm"
DISKS = "/proc/self/io"
DESCRIPTORS = "/proc/self/fd"


class Process:
    """The process that creates this object."""

    def __init__(self) -> None:
        self._started_s = time.time()

    @staticmethod
    def thread_cpu_s() -> float:
        """Return the processor time in seconds that the calling thread has used."""
        return time.thread_time()

    def read(self) -> Iterator[tuple[Metric, float]]:
        """Yield each metric with its value. What the system does not tell is omitted."""
        yield names.CPU, time.process_time()
        with contextlib.suppress(OSError), open(STATUS, encoding="ascii") as file:
            virtual, resident, *_ = file.read().split()
            yield names.MEMORY, int(resident) * resource.getpagesize()
            yield names.VIRTUAL_MEMORY, int(virtual) * resource.getpagesize()
        with contextlib.suppress(OSError), open(DISKS, encoding="ascii") as file:
            counts = dict(line.split(": ") for line in file.read().splitlines())
            yield names.DISK_READ, int(counts["read_bytes"])
            yield names.DISK_WRITTEN, int(counts["write_bytes"])
        with contextlib.suppress(OSError):
            yield names.OPEN_FILES, len(os.listdir(DESCRIPTORS))
        yield names.MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield names.STARTED, self._started_s
