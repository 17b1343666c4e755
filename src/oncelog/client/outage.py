"""An outage of all brokers, as one client sees it."""

from __future__ import annotations

import logging

SILENT_SECONDS = 3.0
"""How long no broker can be reached before the client logs it. A broker that restarts is back sooner."""

log = logging.getLogger(__name__)


class Outage:
    """Log each outage once: a client that retries in silence looks like one that hangs."""

    def __init__(self) -> None:
        self.reached = False
        """Whether a broker has ever been reached."""
        self.reason = ""
        """Why no broker could be reached the last time; empty if one was."""
        self._since: float | None = None
        self._logged = False

    def failed(self, reason: str, now: float) -> None:
        """Note that no broker could be reached at this time, in seconds."""
        self.reason = reason
        if self._since is None:
            self._since = now
        elif not self._logged and now - self._since >= SILENT_SECONDS:
            self._logged = True
            log.warning("%s; still trying", reason)

    def over(self) -> None:
        """Note that a broker was reached."""
        self.reached = True
        self.reason, self._since, self._logged = "", None, False
