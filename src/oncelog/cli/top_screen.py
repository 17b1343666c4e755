"""The live screen of `oncelog top`: the alternate screen of the terminal, keys, and its state afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from oncelog.cli.top_tables import View
from oncelog.watch.reader import Reader
from oncelog.watch.readings import Picture

QUIT = frozenset(b"qQ\x04")
"""q and Ctrl-D."""


class Screen:
    """Show readings until q, Ctrl-C or SIGTERM. Use it with `async with`: the end restores the terminal.

    Ctrl-Z restores the terminal, too, and `fg` continues. Without a terminal as stdin, there are no keys.
    """

    def __init__(self, subjects: tuple[str, ...], interval: float, hanging_after_ms: int) -> None:
        self._options = (subjects, interval, hanging_after_ms)
        self._interval = interval
        self._live = Live(
            Text("reading ..."), console=Console(), screen=True, auto_refresh=False, redirect_stderr=False
        )
        self._picture: Picture | None = None
        self._quit = asyncio.Event()
        self._signal = 0
        self._keys: list[Any] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._open()
        loop.add_signal_handler(signal.SIGTERM, self._terminated, signal.SIGTERM)
        loop.add_signal_handler(signal.SIGHUP, self._terminated, signal.SIGHUP)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._keys is not None:
            loop.add_reader(sys.stdin.fileno(), self._key)
        return self

    async def __aexit__(self, *exc: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP):
            loop.remove_signal_handler(number)
        if self._keys is not None:
            loop.remove_reader(sys.stdin.fileno())
        self._close()
        if self._signal:  # end as every other program does
            os.kill(os.getpid(), self._signal)

    async def run(self, reader: Reader) -> None:
        """Read and draw in turns until the end."""
        ended = asyncio.ensure_future(self._quit.wait())
        try:
            while not ended.done():
                turn = asyncio.ensure_future(reader.turn())
                try:
                    await asyncio.wait((turn, ended), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    turn.cancel()  # this has no effect on a turn that has ended
                if not turn.done():
                    return
                self._picture = turn.result()
                self._draw()
                await asyncio.wait((ended,), timeout=self._interval)
        finally:
            ended.cancel()

    def _draw(self) -> None:
        if self._picture is not None:
            self._live.update(View(self._picture, *self._options, on_screen=True), refresh=True)

    def _open(self) -> None:
        if sys.stdin is not None and sys.stdin.isatty():
            self._keys = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())
        self._live.start(refresh=True)

    def _close(self) -> None:
        self._live.stop()
        if self._keys is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._keys)

    def _key(self) -> None:
        found = os.read(sys.stdin.fileno(), 64)
        if not found or QUIT.intersection(found):
            self._quit.set()

    def _terminated(self, number: signal.Signals) -> None:
        self._signal = number
        self._quit.set()

    def _suspend(self) -> None:
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()
        self._draw()
