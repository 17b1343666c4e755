"""Requests of the sink to many coordinators, and the meaning of their errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog import errors
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from oncelog.spark.cluster.batched_lookups import ENDS_IN_FLIGHT, end_all
from oncelog.spark.cluster.transactions import outcome_of
from oncelog.spark.commit.record import Owner


class Coordinators:
    """Two coordinators: number 1 never answers until it fails, number 0 answers at once."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.failed = asyncio.Event()

    def known_coordinator(self, _kind: str, key: str) -> int:
        return int(key) % 2

    async def call_coordinator(self, _kind: str, key: str, _request: EndTxnRequest, _version: int | None) -> Any:
        if self.known_coordinator("transaction", key):
            await self.failed.wait()
            raise errors.TimedOutError("away")
        self.ended.append(key)
        if len(self.ended) == 2 * ENDS_IN_FLIGHT:
            self.failed.set()
        return EndTxnResponse()


def test_unavailable_coordinator_does_not_delay_the_others() -> None:
    async def run() -> list[str]:
        cluster: Any = Coordinators()
        owners = [Owner(str(number), number, 0) for number in range(1, 4 * ENDS_IN_FLIGHT, 2)]
        owners += [Owner(str(number), number, 0) for number in range(0, 4 * ENDS_IN_FLIGHT, 2)]
        with pytest.raises(errors.TimedOutError):
            await asyncio.wait_for(end_all(cluster, owners, True, None), 60)
        ended: list[str] = cluster.ended
        return ended

    assert len(asyncio.run(run())) == 2 * ENDS_IN_FLIGHT


def test_row_too_large_for_its_topic_is_not_reported_as_fenced() -> None:
    partition = PartitionProduceResponse(index=0, error_code=ErrorCode.MESSAGE_TOO_LARGE, error_message="too large")
    response = ProduceResponse(responses=[TopicProduceResponse(name="out", partition_responses=[partition])])
    with pytest.raises(errors.RecordTooLargeError):
        outcome_of(response, "Produce into out-0")
