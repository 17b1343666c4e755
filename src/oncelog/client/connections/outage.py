"""Log an outage of all brokers."""

from __future__ import annotations

import logging

SILENT_SECONDS = 3.0
"""The client logs an outage that lasts longer. A restarting broker is back sooner."""

log = logging.getLogger(__name__)


class Outage:
    """Log each outage once, because a client that retries silently appears to hang."""

    def __init__(self) -> None:
        self.reached = False
        """Whether the client has ever reached a broker."""
        self.reason = ""
        """Why the last attempt to reach a broker failed; empty if it succeeded."""
        self._since: float | None = None
        self._logged = False

    def failed(self, reason: str, now: float) -> None:
        """Record that the client could not reach any broker at the time `now` (in seconds)."""
        self.reason = reason
        if self._since is None:
            self._since = now
        elif not self._logged and now - self._since >= SILENT_SECONDS:
            self._logged = True
            log.warning("%s; still trying", reason)

    def over(self) -> None:
        """Record that the client has reached a broker."""
        self.reached = True
        self.reason, self._since, self._logged = "", None, False
