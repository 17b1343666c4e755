"""Log what keeps a client waiting: once when it has lasted for seconds, and once when it is over. No I/O.

A client that retries silently appears to hang, and a client that logs each attempt fills its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

SILENT_SECONDS = 3.0
"""A trouble that ends earlier is not logged. A broker restarts in less time."""
GAP_SECONDS = 30.0
"""How much longer than the longest attempt a subject may be silent. After that it is over, although no caller said so.
"""
QUIET_SECONDS = 60.0
"""How long nothing more is logged of a subject after its warning, if it comes back."""
MAX_SUBJECTS = 100
"""How many subjects are remembered. After that, the oldest one is forgotten."""


class _Trouble:
    """`logged_at`: when the last warning was logged. `open`: it lasts. `warned`: it lasts and was logged.

    `cause`: the last error, if there is one.
    """

    __slots__ = ("cause", "logged_at", "open", "seen", "since", "warned", "why")

    def __init__(self) -> None:
        self.open = self.warned = False
        self.since = self.seen = 0.0
        self.logged_at = float("-inf")
        self.why = ""
        self.cause: BaseException | None = None


class Troubles:
    """The troubles of one part of a client, by subject.

    `now()` returns monotonic seconds. `attempt_s` is how long one attempt takes at most. `outage()` returns why no
    broker at all can be reached, or an empty string. An outage has its own warning, so nothing else is recorded then.
    """

    def __init__(
        self,
        log: logging.Logger,
        now: Callable[[], float],
        *,
        attempt_s: float = 0.0,
        outage: Callable[[], str] = lambda: "",
    ) -> None:
        self._log = log
        self._now = now
        self._gap_s = attempt_s + GAP_SECONDS
        self._outage = outage
        self._known: dict[Hashable, _Trouble] = {}

    def waiting(
        self, subject: Hashable, why: str, cause: BaseException | None = None, *, lasted_s: float = 0.0
    ) -> None:
        """Record that the client waits. `why` is a sentence without a full stop: what happened, and what helps.

        `cause` is the error after which the client retries. `lasted_s` is how long a single attempt has lasted, in
        seconds, if it has not ended.
        """
        if self._outage():
            return
        now = self._now()
        trouble = self._known.get(subject)
        if trouble is None:
            if len(self._known) >= MAX_SUBJECTS:
                del self._known[next(iter(self._known))]
            trouble = self._known[subject] = _Trouble()
        begins = not trouble.open or now - trouble.seen > self._gap_s
        if begins:
            trouble.open, trouble.warned, trouble.since = True, False, now - lasted_s
        trouble.seen, trouble.why, trouble.cause = now, why, cause
        if begins and not lasted_s:
            return
        late = now - trouble.since >= SILENT_SECONDS and now - trouble.logged_at >= QUIET_SECONDS
        if late and not trouble.warned:
            trouble.warned, trouble.logged_at = True, now
            self._log.warning("%s; still %s", why, "waiting" if lasted_s else "retrying")

    def over(self, subject: Hashable) -> None:
        """Record that the client does not wait for this any more."""
        trouble = self._known.get(subject)
        if trouble is None or not trouble.open:
            return
        trouble.open = False
        if trouble.warned:
            self._log.warning("over after %.0f s: %s", self._now() - trouble.since, trouble.why)

    def forget(self, subject: Hashable) -> None:
        """Record, without a log line, that the client does not wait for this any more, because it has given up."""
        trouble = self._known.get(subject)
        if trouble is not None:
            trouble.open = False

    def why(self) -> str:
        """Return why the client waits now, or an empty string (any thread)."""
        reasons = (trouble.why for trouble in self._known.copy().values() if trouble.open)
        return self._outage() or next(reasons, "")

    def cause(self) -> BaseException | None:
        """Return the last error of what the client waits for now, if there is one (any thread)."""
        causes = (trouble.cause for trouble in self._known.copy().values() if trouble.open)
        return None if self._outage() else next(causes, None)
