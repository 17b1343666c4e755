"""Log the rejected items of one request in one line: a small request may have a hundred thousand of them."""

from __future__ import annotations

import logging


class RefusedItems:
    """Count the rejected items of one request, and keep the first one for the log."""

    __slots__ = ("_count", "_first")

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def add(self, item: str, *arguments: object) -> None:
        """Count one rejected item. `item` is a format string that describes it, with its reason."""
        if not self._count:
            self._first = item % arguments
        self._count += 1

    def log(self, logger: logging.Logger, what: str, level: int = logging.INFO) -> None:
        """Log the first item, and how many others were rejected. `what` names the request and what failed."""
        if self._count == 1:
            logger.log(level, "%s: %s", what, self._first)
        elif self._count:
            logger.log(level, "%s: %s (and %d others)", what, self._first, self._count - 1)
