"""ListTransactions and DescribeTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from operator import attrgetter

from oncelog.coordinator import patterns
from oncelog.coordinator.transactions.metadata import STATES_BY_TEXT, TransactionMetadata
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import describe_transactions, list_transactions


def selected(
    transactions: Iterable[TransactionMetadata],
    states: Container[str],
    producer_ids: Container[int],
    duration_ms: int,
    now_ms: int,
) -> list[TransactionMetadata]:
    """Return the transactions that pass the filters. An empty filter, or a negative duration, lets all pass."""
    return [
        transaction
        for transaction in transactions
        if (not producer_ids or transaction.producer_id in producer_ids)
        and (not states or transaction.state.text in states)
        and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
    ]


def matching(transactions: Iterable[TransactionMetadata], text: str) -> Iterator[TransactionMetadata | None]:
    """Yield each transaction whose whole id matches the pattern `text`, and None when the caller may pause.

    Raises INVALID_REGULAR_EXPRESSION.
    """
    return patterns.matching(patterns.Pattern(text), transactions, attrgetter("transactional_id"))


def list_response(
    transactions: Iterable[TransactionMetadata], request: list_transactions.ListTransactionsRequest
) -> list_transactions.ListTransactionsResponse:
    """Return the response with these transactions."""
    return list_transactions.ListTransactionsResponse(
        unknown_state_filters=[text for text in request.state_filters if text not in STATES_BY_TEXT],
        transaction_states=[
            list_transactions.TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.text,
            )
            for transaction in transactions
        ],
    )


def description(transaction: TransactionMetadata) -> describe_transactions.TransactionState:
    """Return the description of one transactional id."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    return describe_transactions.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.text,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            describe_transactions.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


def no_description(transactional_id: str, error: ErrorCode) -> describe_transactions.TransactionState:
    """Return an error instead of a description."""
    return describe_transactions.TransactionState(transactional_id=transactional_id, error_code=error)
