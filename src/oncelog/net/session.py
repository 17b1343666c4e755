"""One connection: its client, why none of its requests is handled now, its deadlines, and the callbacks for its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

from oncelog.net.server_options import DEFAULT_LISTENER, MAX_REQUEST_BYTES, Listener

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that did not authenticate."""

BUSY = 1
"""The server handles a request, and must not handle another one meanwhile."""
IN_ORDER = 2
"""The next request must wait until earlier responses are sent."""
UNREAD = 4
"""The client reads its responses too slowly."""
TURN_TAKEN = 8
"""Other connections have their turn first."""
CLOSED = 16
"""The connection is closed, or will be as soon as the last responses are sent."""
REJECTED = 32
"""The login has failed, and the connection closes soon."""
THROTTLED = 64
"""The client has exceeded a quota, and must pause."""
OUTSIDE = 128
"""The connection is not admitted yet."""


LONGEST_NAME = 255
"""The longest client id or group id in characters that a session remembers for metrics."""


class Deadline(Enum):
    """What a client must do until a time, or its connection is closed. The value is the reason in the log."""

    IDLE = "it is idle"


class Session:
    """One connection of a client, from its acceptance to its end. Server and handlers share it."""

    __slots__ = (
        "_callbacks",
        "active",
        "client_id",
        "commits_for",
        "connection_id",
        "deadlines",
        "draft",
        "drop",
        "encrypted",
        "gone",
        "host",
        "isolation_level",
        "listener",
        "login",
        "muted",
        "port",
        "principal",
        "request_limit",
        "software",
        "throttle",
        "token_authenticated",
        "unread",
    )

    def __init__(
        self,
        host: str = "",
        port: int = 0,
        connection_id: int = 0,
        listener: Listener = DEFAULT_LISTENER,
        request_limit: int = MAX_REQUEST_BYTES,
    ) -> None:
        self.host = host
        self.port = port
        self.connection_id = connection_id
        """Unique within the server; 0 until the server has accepted the connection."""
        self.listener = listener
        """The listener that accepted the connection."""
        self.principal = ANONYMOUS
        """The client, as an authorizer knows it."""
        self.token_authenticated = False
        """Whether the client has logged in with a delegation token."""
        self.client_id = ""
        """The client id of the last Fetch or OffsetCommit, for the lag of groups."""
        self.isolation_level = -1
        """The isolation level of the last Fetch of a consumer; -1 if there was none."""
        self.commits_for: str | None = None
        """The group of the last OffsetCommit."""
        self.encrypted = listener.tls is not None
        """Whether the connection uses TLS."""
        self.muted = 0
        """The reasons why the next request is not handled now, as bits: BUSY, IN_ORDER, UNREAD, TURN_TAKEN, CLOSED,
        REJECTED, THROTTLED, OUTSIDE."""
        self.gone = False
        """The client has closed its sending side, or the connection is lost."""
        self.software = "unknown", "unknown"
        """The name and the version of the client's software, from its ApiVersions request."""
        self.request_limit = request_limit
        """The largest frame in bytes that the client may send now."""
        self.active = True
        """Whether the client has done anything since the server's last sweep."""
        self.deadlines: dict[Deadline, float] = {}
        """When the server closes the connection, by the event loop's clock."""
        self.draft = 0
        """Memory in bytes of a response that is not complete yet. `Unsent` counts it."""
        self.unread = 0
        """Memory in bytes of the responses that the client has not read. `Unsent` counts it."""
        self._callbacks: list[Callable[[], None]] = []
        self.drop: Callable[[float, str], Any] = _nothing_to_drop
        """Close the connection after some seconds, for a reason that the log shows. The result has `cancel()`."""
        self.throttle: Callable[[float], None] = _nothing_to_throttle
        """Handle no request for at least some seconds."""
        self.login: Any = None
        """The state of the login; None if the listener has no logins."""

    def fetches(self, client_id: str, isolation_level: int) -> None:
        """Remember that a consumer fetches with this connection."""
        self.client_id = client_id if len(client_id) <= LONGEST_NAME else ""
        self.isolation_level = isolation_level

    def commits(self, client_id: str, group_id: str) -> None:
        """Remember that a client commits offsets of a group with this connection."""
        self.client_id = client_id if len(client_id) <= LONGEST_NAME else ""
        self.commits_for = group_id if len(group_id) <= LONGEST_NAME else None

    def mute(self, reason: int) -> None:
        """Handle no request until this reason, and each other one, has ended."""
        self.muted |= reason

    def unmute(self, reason: int) -> None:
        """End one reason."""
        self.muted &= ~reason

    @property
    def idle_from(self) -> float:
        """When the client will be idle if it does nothing; infinite if it was active since the last sweep."""
        return math.inf if self.active else self.deadlines[Deadline.IDLE]

    def missed(self, now: float) -> Deadline | None:
        """Return the nearest deadline if it has passed, otherwise None."""
        nearest = min(self.deadlines, key=self.deadlines.__getitem__, default=None)
        return None if nearest is None or now < self.deadlines[nearest] else nearest

    def on_disconnect(self, callback: Callable[[], None]) -> DisconnectCallback:
        """Call `callback` when the client disconnects, or at once if it has disconnected.

        The client may disconnect while a worker thread decodes its request. The result is a context manager that
        removes the callback at its end, for requests that may wait long.
        """
        self._callbacks.append(callback)
        if self.gone:
            callback()
        return DisconnectCallback(self._callbacks, callback)

    def disconnected(self) -> None:
        """Call all callbacks, because the client has disconnected."""
        self.gone = True
        for callback in tuple(self._callbacks):
            callback()

    def lost(self) -> None:
        """Drop all references to the connection, because it is lost, and to the login."""
        self.drop, self.throttle = _nothing_to_drop, _nothing_to_throttle
        self.login = None

    @property
    def waiting(self) -> int:
        """The number of callbacks."""
        return len(self._callbacks)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _nothing_to_drop(_delay_s: float, _reason: str) -> None:
    """There is no connection."""


def _nothing_to_throttle(_delay: float) -> None:
    """There is no connection."""


class DisconnectCallback:
    """One callback of a session; removed at the end of a `with` block."""

    __slots__ = ("_all", "_callback")

    def __init__(self, callbacks: list[Callable[[], None]], callback: Callable[[], None]) -> None:
        self._all = callbacks
        self._callback = callback

    def __enter__(self) -> None:
        """Enter the wait."""

    def __exit__(self, *error: object) -> None:
        """Remove the callback."""
        self.remove()

    def remove(self) -> None:
        """Remove the callback. Call it once."""
        self._all.remove(self._callback)
