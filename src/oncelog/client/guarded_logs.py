"""Let the client continue if a handler of the program's logging raises an exception."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from functools import partial

NAMES = (
    "oncelog.client",
    "oncelog.client.connections",
    "oncelog.client.consumer",
    "oncelog.client.producer",
    "oncelog.client.producer.accumulator",
    "oncelog.client.producer.sequences",
    "oncelog.client.producer.transaction_manager",
    "oncelog.client.security",
    "oncelog.client.security.tokens",
    "oncelog.net",
    "oncelog.net.tokens",
)
"""The loggers of the client. A test checks that none is missing."""


def guard_logs() -> None:
    """Guard all loggers of the client. They stay loggers of `logging`, with the same handlers and levels.

    Python's own handlers report their errors as `logging.raiseExceptions` says, and so does this. Handlers and filters
    of a program may raise instead. In the middle of a task of the client, the error would end that task.
    """
    for name in NAMES:
        logger = logging.getLogger(name)
        logger.handle = partial(_handle, logger)  # type: ignore[method-assign]


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(logger).handle(logger, record)
    except Exception:  # noqa: BLE001 - any error of the program's handler
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # stderr is closed
                traceback.print_exc()
                print(f"A handler of logging has failed at a line of {record.name}", file=sys.stderr)
