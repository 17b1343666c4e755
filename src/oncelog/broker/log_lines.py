"""Write log lines to a file descriptor without waiting for its reader.

If the reader of a pipe hangs, or a terminal is stopped with Ctrl-S, a write blocks. So a thread writes. At most
`MOST_BYTES` of lines wait for it. Further lines are dropped. When there is space again, a line reports their number.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque

from oncelog.broker.json_lines import own_line

MOST_BYTES = 1024 * 1024
"""The bytes of log lines that may wait for the reader."""


class LineWriter:
    """A stream for `logging.StreamHandler`. All methods may be called in any thread."""

    def __init__(self, fd: int, most_bytes: int = MOST_BYTES) -> None:
        """Create a stream that writes to `fd`. A write error loses the line, as on a full disk or a closed pipe."""
        self._fd = fd
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self.waiting_bytes = 0
        """The bytes of the lines that are not written yet."""

    def write(self, text: str) -> None:
        """Add whole lines, which the thread writes at once, or drop them if too many bytes wait."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self.waiting_bytes + len(data) > self._most_bytes:
                self._dropped += data.count(b"\n")
                return
            self._report()
            self._add(data)

    def drain(self, wait_s: float) -> bool:
        """Wait until all lines are written. Return False if this takes longer than `wait_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.waiting_bytes, wait_s)

    def _add(self, data: bytes) -> None:
        if self._thread is None:  # a daemon: a write that hangs must not keep the process alive
            thread = threading.Thread(target=self._run, name="oncelog-log", daemon=True)
            thread.start()
            self._thread = thread
        self._lines.append(data)
        self.waiting_bytes += len(data)
        self._changed.notify_all()

    def _report(self) -> None:
        """Add a line with the number of dropped lines, if there are any."""
        if self._dropped:
            text = f"oncelog: dropped {self._dropped} log lines, because stderr was not read in time"
            self._dropped = 0
            self._add(f"{own_line(text, os.environ, level='WARNING')}\n".encode())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                data = self._lines.popleft()
            self._write_all(data)
            with self._changed:
                if not self._lines:
                    self._report()
                self.waiting_bytes -= len(data)
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # another process has made the shared file description non-blocking
                    select.select([], [self._fd], [])
        except OSError:
            return


STDERR = LineWriter(2 if sys.stderr is not None else -1)
"""The stderr of this process. If it was closed at the start, lines are lost: descriptor 2 may be another file."""
