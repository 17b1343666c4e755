"""DescribeDelegationToken: list tokens (KIP-48, KIP-373)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, data, int16, int32, int64, string


class DescribeDelegationTokenOwner(Message):
    """`Owners` of DescribeDelegationTokenRequest."""

    principal_type: str = string()
    principal_name: str = string()


class DescribeDelegationTokenRequest(Message, api_key=41, versions=(1, 3), flexible=2):
    """The request."""

    owners: list[DescribeDelegationTokenOwner] | None = array(DescribeDelegationTokenOwner, nullable=0)


class DescribedDelegationTokenRenewer(Message):
    """`Renewers` of DescribeDelegationTokenResponse."""

    principal_type: str = string()
    principal_name: str = string()


class DescribedDelegationToken(Message):
    """`Tokens` of DescribeDelegationTokenResponse. Its `repr` hides the HMAC, which is the token's password."""

    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3, ignorable=True)
    token_requester_principal_name: str = string(since=3, ignorable=True)
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = data()
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(token_id={self.token_id!r})"


class DescribeDelegationTokenResponse(Message, api_key=41, versions=(1, 3), flexible=2):
    """The response."""

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
