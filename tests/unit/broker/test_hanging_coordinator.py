"""Transactions that another broker's coordinator must verify, while that broker does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog.broker.coordinators.verification import MOST_WAITING, TRANSACTIONS_A_REQUEST, RemoteCoordinators
from oncelog.broker.peers import Failure
from oncelog.broker.workers import Workers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

HANGS, ANSWERS = 2, 3
ASKED = ("t", 0)


class HangingPeers:
    """Broker 2 answers when the test says so, broker 3 at once."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        """The number of transactions in each request to broker 2."""
        self.answer: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    async def request(self, broker: int, _purpose: object, request: AddPartitionsToTxnRequest, *_: object) -> Any:
        if broker == HANGS:
            self.sent.append(len(request.transactions))
            return await self.answer
        part = AddPartitionsToTxnPartitionResult(partition_index=ASKED[1], partition_error_code=0)
        topic = AddPartitionsToTxnTopicResult(name=ASKED[0], results_by_partition=[part])
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=[topic])
                for each in request.transactions
            ]
        )


Ask = Callable[[int, str], Awaitable[dict[tuple[str, int], ErrorCode]]]


def run(body: Callable[[HangingPeers, Ask], Awaitable[None]]) -> None:
    async def main() -> None:
        peers, workers = HangingPeers(), Workers(asyncio.to_thread, logging.getLogger())
        coordinators = RemoteCoordinators(peers, workers)  # type: ignore[arg-type]

        def ask(broker: int, name: str) -> Awaitable[dict[tuple[str, int], ErrorCode]]:
            question = coordinators.add_partitions(broker, name, 1, 0, [ASKED], verify_only=True)
            return asyncio.ensure_future(question)

        try:
            await asyncio.wait_for(body(peers, ask), 60)
        finally:
            await workers.close()

    asyncio.run(main())


def test_transactions_that_wait_for_a_coordinator_fail_together_with_its_request() -> None:
    """Otherwise, each 200 transactions would wait for a time-out of their own, one after the other."""

    async def body(peers: HangingPeers, ask: Ask) -> None:
        asked = [ask(HANGS, f"id-{number}") for number in range(3 * TRANSACTIONS_A_REQUEST)]
        asked += [ask(HANGS, "id-0") for _ in range(5)]  # a client that retries
        while not peers.sent:
            await asyncio.sleep(0)
        assert await ask(ANSWERS, "id-0") == {ASKED: ErrorCode.NONE}
        peers.answer.set_result(Failure("no answer in time", sent=True))
        answers = await asyncio.gather(*asked)
        assert all(answer == {ASKED: ErrorCode.NETWORK_EXCEPTION} for answer in answers)
        assert len(peers.sent) == 1

    run(body)


def test_number_of_transactions_that_wait_for_a_coordinator_is_limited() -> None:
    async def body(peers: HangingPeers, ask: Ask) -> None:
        first = [ask(HANGS, "id-0")]
        while not peers.sent:
            await asyncio.sleep(0)
        asked = [ask(HANGS, f"id-{number}") for number in range(MOST_WAITING)]
        assert await ask(HANGS, "one more") == {ASKED: ErrorCode.NETWORK_EXCEPTION}
        assert await ask(ANSWERS, "one more") == {ASKED: ErrorCode.NONE}
        assert len(peers.sent) == 1
        peers.answer.set_result(Failure("no answer in time", sent=True))
        await asyncio.gather(*first, *asked)

    run(body)
