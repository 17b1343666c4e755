"""Looking in: ListTransactions and DescribeTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oncelog.coordinator.transactions.states import STATES_BY_TEXT
from oncelog.coordinator.transactions.transaction import Transaction
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages import describe_transactions, list_transactions


def list_response(
    transactions: Iterable[Transaction], request: list_transactions.ListTransactionsRequest, now_ms: int
) -> list_transactions.ListTransactionsResponse:
    """Those that pass every filter; INVALID_REGULAR_EXPRESSION is raised for a pattern that is none.

    A filter that is empty (a duration: negative) lets all pass. The pattern must match the whole transactional id.
    """
    try:
        pattern = re.compile(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except re.error as error:
        message = f"not a regular expression: {request.transactional_id_pattern!r}: {error}"
        raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error
    states = {STATES_BY_TEXT[text] for text in request.state_filters if text in STATES_BY_TEXT}
    producer_ids = set(request.producer_id_filters)

    def passes(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not request.state_filters or transaction.state in states)
            and (request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter)
            and (pattern is None or pattern.fullmatch(transaction.transactional_id) is not None)
        )

    return list_transactions.ListTransactionsResponse(
        unknown_state_filters=[text for text in request.state_filters if text not in STATES_BY_TEXT],
        transaction_states=[
            list_transactions.TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.text,
            )
            for transaction in transactions
            if passes(transaction)
        ],
    )


def description(transaction: Transaction) -> describe_transactions.TransactionState:
    """All there is to say of one transactional id."""
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
    """Why there is none."""
    return describe_transactions.TransactionState(transactional_id=transactional_id, error_code=error)
