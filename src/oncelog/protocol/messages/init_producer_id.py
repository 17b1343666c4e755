"""InitProducerId: get a producer id and an epoch (KIP-98, 360, 939)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, boolean, int16, int32, int64, string

NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction with two-phase commit, which has none (KIP-939)."""


class InitProducerIdRequest(Message, api_key=22, versions=(0, 6), flexible=2):
    """The request."""

    transactional_id: str | None = string(nullable=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


class InitProducerIdResponse(Message, api_key=22, versions=(0, 6), flexible=2):
    """The response."""

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = int16(since=6, default=-1)
