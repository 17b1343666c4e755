"""The server's side of OAUTHBEARER, without I/O.

Sources: RFC 7628 and RFC 6750; Kafka's `OAuthBearerSaslServer` and `OAuthBearerClientInitialResponse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from oncelog.net.sasl_server import RejectedLoginError

INVALID = '{"status":"invalid_token"}'
"""What a client with a wrong token gets. It does not say what is wrong, because the client may be a stranger."""
MALFORMED = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
MAX_MESSAGE = 163_840
"""The maximum number of bytes of a client's first message."""
MAX_PAIRS = 100
"""The maximum number of fields in it: the token and its extensions."""
_PAIRS = rf"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01){{0,{MAX_PAIRS}}}"
_FIRST = re.compile(rf"n,(?:a=((?:[^=,\0]|=2C|=3D)+))?,\x01({_PAIRS})\x01")
_BEARER = re.compile(r"([A-Za-z]+) +([A-Za-z0-9\-._~+/]+=*)")


class TokenUser(NamedTuple):
    """Whom a valid token identifies. `expires_ms` is the end of its life, in ms since 1970."""

    user: str
    expires_ms: int


class OAuthBearerServer:
    """The mechanism OAUTHBEARER: the client sends a token, and the server checks it.

    `check` returns None for a token that is not valid. The server answers such a token with a JSON object. The client
    answers that with the byte 1, and then the login fails. So the client can read the JSON object.
    """

    def __init__(self, check: Callable[[str], TokenUser | None]) -> None:
        self._check = check
        self._failed = False
        self.user = ""
        self.expires_ms: int | None = None
        self.by_token = False

    def answer(self, message: bytes) -> bytes:
        """Check the token in the client's first message. Raises RejectedLoginError, also for any second message."""
        if self._failed:
            raise RejectedLoginError(INVALID if message == b"\x01" else MALFORMED)
        claimed, token = _parse(message)
        found = self._check(token)
        if found is None:
            self._failed = True
            return INVALID.encode()
        if claimed not in ("", found.user):
            raise RejectedLoginError(
                f"Authentication failed: Client requested an authorization id ({claimed}) that is different from the "
                f"token's principal name ({found.user})"
            )
        self.user, self.expires_ms = found
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """Return the user that the client claims to be, or "", and the token. Raises RejectedLoginError.

    Extensions (KIP-342) have no effect.
    """
    try:
        found = _FIRST.fullmatch(message.decode()) if len(message) <= MAX_MESSAGE else None
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise RejectedLoginError(MALFORMED)
    pairs = [pair.partition("=")[::2] for pair in found[2].split("\x01")[:-1]]
    fields = dict(pairs)
    bearer = _BEARER.fullmatch(fields.get("auth", ""))
    if bearer is None or bearer[1].lower() != "bearer" or len(fields) < len(pairs):
        raise RejectedLoginError(MALFORMED)
    return (found[1] or "").replace("=2C", ",").replace("=3D", "="), bearer[2]
