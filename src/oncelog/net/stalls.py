"""Log requests and tasks that block the event loop. This is a debug mode.

`StallWatch` times each step of a request and of a background task. For other callbacks, a thread schedules a beat on
the loop, and samples the loop's stack if the beat is late. A server that creates no `StallWatch` has no overhead.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from oncelog.net.coroutine_steps import in_steps
from oncelog.net.server import Chunks, Deferred, Handler, Session

T = TypeVar("T")

SAMPLED_FRAMES = 4
"""Number of innermost stack frames in a log line."""
BEATS = 4
"""Beats that the thread sends within one limit."""

_log = logging.getLogger("oncelog.stalls")


class StallWatch:
    """Log every step on the event loop that takes longer than a limit."""

    def __init__(self, limit_ms: int, describe: Callable[[memoryview, Session], str]) -> None:
        """Time steps from now on, and other callbacks after `start`.

        `describe(frame, session)` returns the text that identifies a request in the log.
        """
        self._limit_s = limit_ms / 1000
        self._describe = describe
        self._loop: asyncio.AbstractEventLoop
        self._loop_thread: int
        self._beat = threading.Event()
        self._closed = threading.Event()
        self._sample = ""
        self._explained = False

    def start(self) -> None:
        """Start the thread that watches the running event loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._watch, name="stall watch", daemon=True).start()

    def close(self) -> None:
        """Stop the thread. Steps are still timed."""
        self._closed.set()

    def handler(self, inner: Handler) -> Handler:
        """Return a frame handler that times the work of `inner` on each request."""

        def handle(frame: memoryview, session: Session) -> Chunks | Deferred | None:
            started, cpu = time.perf_counter(), time.thread_time()
            result = inner(frame, session)
            if time.perf_counter() - started > self._limit_s:
                self._report(self._describe(frame, session), started, cpu)
            if isinstance(result, Deferred) and isinstance(result.answer, Coroutine):
                result.answer = self.timed(result.answer, self._describe(frame, session))
            return result

        return handle

    async def timed(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run `work`, and time each of its steps."""
        started = cpu = 0.0

        def begins() -> None:
            nonlocal started, cpu
            started, cpu = time.perf_counter(), time.thread_time()

        def ends() -> None:
            if time.perf_counter() - started > self._limit_s:
                self._report(name, started, cpu)

        return await in_steps(work, begins, ends)

    def _report(self, what: str, started: float, cpu: float) -> None:
        self._explained = True
        held_ms, cpu_ms = 1000 * (time.perf_counter() - started), 1000 * (time.thread_time() - cpu)
        sample, self._sample = self._sample, ""
        _log.warning("%s held the event loop for %.0f ms (%.0f ms of CPU)%s", what, held_ms, cpu_ms, sample)

    def _watch(self) -> None:
        while not self._closed.wait(self._limit_s / BEATS):
            self._beat.clear()
            self._explained, self._sample = False, ""
            started = time.perf_counter()
            try:
                self._loop.call_soon_threadsafe(self._beat.set)
            except RuntimeError:  # the loop is closed
                return
            if self._beat.wait(self._limit_s):
                continue
            self._sample = sample = _stack_text(sys._current_frames().get(self._loop_thread))
            while not self._beat.wait(self._limit_s):
                if self._closed.is_set():
                    return
            if not self._explained:
                held_ms = 1000 * (time.perf_counter() - started)
                _log.warning("a callback held the event loop for %.0f ms%s", held_ms, sample)


def _stack_text(frame: FrameType | None) -> str:
    """Return the innermost calls of a stack, as a part of a log line."""
    calls = traceback.extract_stack(frame)[-SAMPLED_FRAMES:] if frame is not None else []
    return "".join(f"; in {call.name} ({call.filename.rpartition('/')[2]}:{call.lineno})" for call in calls)
