"""Call `on_statistics` at intervals. A timer of the event loop, and no other I/O."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from oncelog.client.metrics.results import ClientMetrics

M = TypeVar("M", bound=ClientMetrics)

log = logging.getLogger("oncelog.client")


def start_statistics(
    options: Mapping[str, Any], loop: asyncio.AbstractEventLoop, closed: Callable[[], bool], metrics: Callable[[], M]
) -> None:
    """Call the option `on_statistics` with the metrics every `statistics_interval_ms`, until `closed()`. Any thread.

    An error of the callback is logged, because no caller would get it.
    """
    seconds = options["statistics_interval_ms"] / 1000
    callback: Callable[[M], object] | None = options["on_statistics"]
    if callback is None:
        return

    def report() -> None:
        if closed():
            return
        loop.call_later(seconds, report)
        try:
            callback(metrics())
        except Exception:
            log.exception("the callback on_statistics raised an error; ignoring it")

    loop.call_soon_threadsafe(loop.call_later, seconds, report)
