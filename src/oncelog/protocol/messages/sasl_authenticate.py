"""SaslAuthenticate: one step of a login, in the format of the mechanism (KIP-152, session lifetime: KIP-368)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, data, int16, int64, string


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible=2):
    """The request. Its `repr` hides the bytes, because they may contain a password."""

    auth_bytes: bytes = data()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(auth_bytes=[hidden])"


class SaslAuthenticateResponse(Message, api_key=36, versions=(0, 2), flexible=2):
    """The response. `session_lifetime_ms` is 0 if the login does not expire."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    auth_bytes: bytes = data()
    session_lifetime_ms: int = int64(since=1, ignorable=True)
