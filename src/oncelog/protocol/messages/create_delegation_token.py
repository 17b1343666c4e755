"""CreateDelegationToken: create a token with which a client can log in as a user (KIP-48, KIP-373)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, data, int16, int32, int64, string


class CreatableRenewers(Message):
    """`Renewers` of CreateDelegationTokenRequest."""

    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(Message, api_key=38, versions=(1, 3), flexible=2):
    """The request."""

    owner_principal_type: str | None = string(since=3, nullable=3, default=None)
    owner_principal_name: str | None = string(since=3, nullable=3, default=None)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, api_key=38, versions=(1, 3), flexible=2):
    """The response. Its `repr` hides the HMAC, which is the token's password."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3, ignorable=True)
    token_requester_principal_name: str = string(since=3, ignorable=True)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = data()
    throttle_time_ms: int = int32()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(error_code={self.error_code}, token_id={self.token_id!r})"
