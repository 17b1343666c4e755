"""What a partition's answer to a transaction marker means for the transaction."""

from __future__ import annotations

from enum import Enum, auto

from oncelog.protocol.errors import ErrorCode


class Outcome(Enum):
    """WRITTEN: done there. RETRY: again later. FENCED: another coordinator, or a newer epoch, has taken over."""

    WRITTEN = auto()
    RETRY = auto()
    FENCED = auto()


_OUTCOMES = {
    ErrorCode.NONE: Outcome.WRITTEN,
    # A log of that age takes no transactional data either, so there is nothing to end.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Outcome.WRITTEN,
    ErrorCode.UNSUPPORTED_VERSION: Outcome.WRITTEN,
    ErrorCode.INVALID_PRODUCER_EPOCH: Outcome.FENCED,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Outcome.FENCED,
}


def marker_outcome(error: ErrorCode) -> Outcome:
    """Kafka's `TransactionMarkerRequestCompletionHandler`, but what it calls impossible is retried, never given up."""
    return _OUTCOMES.get(error, Outcome.RETRY)
