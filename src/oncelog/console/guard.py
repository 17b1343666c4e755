"""Decide which requests the console answers, and add the headers that restrict what a browser may do with a page.

- `Host` must name this machine. Otherwise a page of another site could reach the console under its own name (DNS
  rebinding).
- A request that changes something must come from a page of the console itself: `Sec-Fetch-Site` and `Origin` say so.
- Unless the console listens on localhost, a browser must have logged in with the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

COOKIE = "oncelog_console"
LONGEST_ADDRESS = 4096
"""Bytes of a path with its query."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
OPEN_PATHS = ("/login", "/static/")
"""What a browser needs before it has logged in."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Headers of every response. Neither a script nor a style inside a page runs, so a record's value cannot be one."""


class RefusedError(Exception):
    """A request that is not answered: its HTTP status, and a sentence for a person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def is_loopback(host: str) -> bool:
    """Return whether an address or name to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """The rules of one console. `names` are further host names by which browsers may address it.

    `token` is None if no login is needed.
    """

    names: frozenset[str] = frozenset()
    token: str | None = field(default=None, repr=False)

    def check(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        """Raise RefusedError for a request that must not be answered. `target` is the path with its query.

        The names of `headers` are in lower case.
        """
        if len(target) > LONGEST_ADDRESS:
            raise RefusedError(414, f"The address is longer than {LONGEST_ADDRESS} bytes.")
        self._check_host(headers.get("host", ""))
        if method in SAFE_METHODS:
            site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
            follows_a_link = mode == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
            if site in ("cross-site", "same-site") and not follows_a_link:
                raise RefusedError(403, "A page of another site may link to the console, but not read or show it.")
            return
        if method != "POST":
            raise RefusedError(405, f"The console does not know the method {method[:20]}.")
        self._check_origin(headers)

    def _check_host(self, host: str) -> None:
        try:
            name = "" if set(host) & set("/?#@\\") else (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            name = ""
        if name == "localhost" or name in self.names:
            return
        try:
            ipaddress.ip_address(name)  # no name server can bind a page of another site to a number
        except ValueError:
            raise RefusedError(
                421, f"The console does not answer under the name {name[:80]!r}. Start it with --name {name[:80]}."
            ) from None

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site not in (None, "same-origin"):
            raise RefusedError(403, "This request comes from a page of another site, so nothing was changed.")
        if origin is None:
            raise RefusedError(
                403, "This request does not say from which page it comes (Origin), so nothing was changed."
            )
        parts = urlsplit(origin) if origin.isprintable() else urlsplit("")
        if parts.scheme not in ("http", "https") or parts.netloc.lower() != headers.get("host", "").lower():
            raise RefusedError(403, "This request comes from a page of another site, so nothing was changed.")

    def session(self) -> str:
        """Return the value of the cookie of a browser that has logged in. It does not contain the token."""
        return hmac.new((self.token or "").encode(), b"oncelog console session", hashlib.sha256).hexdigest()

    def knows(self, token: str) -> bool:
        """Return whether a person has entered the right token."""
        return self.token is not None and hmac.compare_digest(self.token.encode(), token.encode("utf-8", "replace"))

    def logged_in(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request may see the page at `path`."""
        if self.token is None or path.startswith(OPEN_PATHS):
            return True
        own = self.session().encode()
        # Programs on other ports of the host may have set cookies of any form, and browsers send them, too.
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return any(
            name == COOKIE and hmac.compare_digest(own, value.encode("utf-8", "replace")) for name, _, value in cookies
        )
