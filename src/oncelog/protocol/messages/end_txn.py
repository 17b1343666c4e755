"""EndTxn: commit or abort a transaction (KIP-98, 890)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible=3):
    """The request."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api_key=26, versions=(0, 5), flexible=3):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1, ignorable=True)
    producer_epoch: int = int16(since=5, default=-1, ignorable=True)
