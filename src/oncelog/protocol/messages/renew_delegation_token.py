"""RenewDelegationToken: let a token expire later (KIP-48)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, data, int16, int32, int64


class RenewDelegationTokenRequest(Message, api_key=39, versions=(1, 2), flexible=2):
    """The request. Its `repr` hides the HMAC, which is the token's password."""

    hmac: bytes = data()
    renew_period_ms: int = int64()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(renew_period_ms={self.renew_period_ms})"


class RenewDelegationTokenResponse(Message, api_key=39, versions=(1, 2), flexible=2):
    """The response."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
