"""Ask the transaction coordinators of other brokers to verify or add partitions, in AddPartitionsToTxn requests.

While a broker processes a request, further transactions wait for it, and the next request carries all of them. Source:
Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from oncelog.broker.peers import Failure, Peers, Purpose
from oncelog.broker.workers import Workers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.topics import TopicPartition

TRANSACTIONS_A_REQUEST = 200
"""The maximum number of transactions in one request."""
MOST_WAITING = 5000
"""The maximum number of transactions that wait for one broker. Clients must retry further ones."""
TIMEOUT_MS = 30_000
"""The maximum time for a request (Kafka's `request.timeout.ms`)."""

_NOT_VERIFIED = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE}
"""A producer must not see the error of this broker's authorization."""


class _Question(NamedTuple):
    transaction: AddPartitionsToTxnTransaction
    answer: asyncio.Future[dict[TopicPartition, ErrorCode]]


class RemoteCoordinators:
    """The transactions that wait for the coordinators of other brokers. Each has a request that waits for it.

    If a request fails, all transactions that wait for its broker fail with it. Clients retry.
    """

    def __init__(self, peers: Peers, workers: Workers) -> None:
        self._peers = peers
        self._workers = workers
        self._waiting: dict[int, list[_Question]] = {}
        """The transactions for each broker that a task sends to."""

    async def add_partitions(
        self,
        broker: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Return an error for each partition. Without a response, the errors are NETWORK_EXCEPTION."""
        by_topic: dict[str, list[int]] = {}
        for topic, index in partitions:
            by_topic.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in by_topic.items()],
        )
        question = _Question(transaction, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(broker)
        if waiting is not None and len(waiting) >= MOST_WAITING:
            return _same(question, ErrorCode.NETWORK_EXCEPTION)
        if waiting is None:
            waiting = self._waiting[broker] = []
            self._workers.spawn(self._drain(broker, waiting), f"transactions for broker {broker}")
        waiting.append(question)
        return await question.answer

    async def _drain(self, broker: int, waiting: list[_Question]) -> None:
        batch: list[_Question] = []
        try:
            while waiting:
                batch = _take(waiting)
                request = AddPartitionsToTxnRequest(transactions=[question.transaction for question in batch])
                response = await self._peers.request(
                    broker, Purpose.TRANSACTIONS, request, AddPartitionsToTxnResponse, TIMEOUT_MS
                )
                _answer(batch, response)
                if isinstance(response, Failure):  # the others have waited as long, and must not wait again
                    batch = []
                    for _ in range(0, len(waiting), TRANSACTIONS_A_REQUEST):
                        batch, waiting[:] = waiting[:TRANSACTIONS_A_REQUEST], waiting[TRANSACTIONS_A_REQUEST:]
                        _answer(batch, response)
                        await asyncio.sleep(0)
        finally:
            del self._waiting[broker]
            for question in (*batch, *waiting):  # after an error, or if the broker stops
                _settle(question, _same(question, ErrorCode.NETWORK_EXCEPTION))


def _take(waiting: list[_Question]) -> list[_Question]:
    """Remove the first transactions from the list. The response names each transactional id only once."""
    batch: dict[str, _Question] = {}
    rest: list[_Question] = []
    for question in waiting:
        name = question.transaction.transactional_id
        if name in batch or len(batch) == TRANSACTIONS_A_REQUEST:
            rest.append(question)
        else:
            batch[name] = question
    waiting[:] = rest
    return list(batch.values())


def _answer(batch: list[_Question], response: AddPartitionsToTxnResponse | Failure) -> None:
    error = ErrorCode.NETWORK_EXCEPTION
    found: dict[str, AddPartitionsToTxnResult] = {}
    if isinstance(response, AddPartitionsToTxnResponse):
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            error = _NOT_VERIFIED.get(code, code)
        else:
            found = {result.transactional_id: result for result in response.results_by_transaction}
    for question in batch:
        answer = _same(question, error)
        result = found.get(question.transaction.transactional_id)
        for topic in () if result is None else result.topic_results:
            for each in topic.results_by_partition:
                answer[topic.name, each.partition_index] = ErrorCode.of(each.partition_error_code)
        _settle(question, answer)


def _same(question: _Question, error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
    return {(topic.name, index): error for topic in question.transaction.topics for index in topic.partitions}


def _settle(question: _Question, answer: dict[TopicPartition, ErrorCode]) -> None:
    if not question.answer.done():
        question.answer.set_result(answer)
