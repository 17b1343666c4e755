"""A program in a terminal of its own (a pty), as a user sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.processes import wait_until

HOME = "\x1b[H"
"""The cursor goes to the first line: a frame begins."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Run a program in a new session whose terminal is a pty of `columns` x `lines`."""

    def __init__(
        self, command: Sequence[str | Path], env: Mapping[str, str], *, columns: int = 120, lines: int = 40
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(columns, lines, notify=False)
        self.attributes = self.modes()
        """The terminal's modes before the program began."""
        # Some libraries set these variables, which count more than the terminal's size.
        inherited = {name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}}
        self._data = bytearray()
        self._is_open = True
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={"TERM": "xterm-256color", **inherited},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,  # Ctrl-C becomes a signal
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program has ended, and we have closed our copy of its end
            while self._is_open:
                if select.select([self._ours], [], [], 0.05)[0]:
                    self._data += os.read(self._ours, 65536)

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def resize(self, columns: int, lines: int, *, notify: bool = True) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if notify:
            self.process.send_signal(signal.SIGWINCH)

    def raw(self) -> str:
        """Return everything that the program has written."""
        return bytes(self._data).decode(errors="replace")

    def frame(self) -> list[str]:
        """Return the lines of the last whole frame, without control sequences."""
        frames = self.raw().split(HOME)
        last = frames[-2] if len(frames) > 2 else frames[-1]
        return [line.rstrip() for line in CONTROL.sub("", last).replace("\r", "").split("\n")]

    def wait_for(self, text: str) -> None:
        """Return when a frame has this text."""

        def seen() -> bool:
            assert self.process.poll() is None or text in self.raw(), self.raw()
            return any(text in line for line in self.frame())

        wait_until(seen, f"the terminal shows {text!r}")

    def wait_until_gone(self, text: str) -> None:
        """Return when no line of the last frame has this text."""
        wait_until(lambda: not any(text in line for line in self.frame()), f"{text!r} is gone")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait(self) -> int:
        """Return the exit status."""
        return self.process.wait(timeout=60)

    def hang_up(self) -> None:
        """Close the terminal, as its window does. The kernel sends SIGHUP, and writing to the terminal fails."""
        if self._is_open:
            self._is_open = False
            self._thread.join()
            os.close(self._theirs)
            os.close(self._ours)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()
