"""What an error of the broker means to a producer: the class of the exception depends on where the error occurs.

Inside a transaction, each error is an AbortableError or a FatalError. Outside of it, there is no AbortableError. So the
class alone says what the caller must do. The original error is the `__cause__`.
"""

from __future__ import annotations

from typing import TypeVar

from oncelog.errors import (
    AbortableError,
    DeliveryTimeoutError,
    FatalError,
    KafkaError,
    RetriableError,
    StaleSequenceError,
)

E = TypeVar("E", bound=KafkaError)


def abortable(error: KafkaError) -> AbortableError:
    """Convert an error inside a transaction to an AbortableError.

    A retriable error becomes abortable as well, because a retry would fail in the same transaction (KIP-1050).
    """
    return error if isinstance(error, AbortableError) else _caused(AbortableError, error)


def fatal(error: KafkaError) -> FatalError:
    """Convert an error to a FatalError: the producer cannot continue."""
    return error if isinstance(error, FatalError) else _caused(FatalError, error)


def outside_transaction(error: KafkaError, *, in_doubt: bool = False) -> KafkaError:
    """Convert an error of a batch for a producer that has no transaction to abort.

    A rejected batch is not in the log, so the caller may send its records again. This does not apply if an earlier
    attempt may be in the log (`in_doubt`, or the broker reports that the batch is stale).
    """
    if not isinstance(error, AbortableError):
        return error
    lost = in_doubt or isinstance(error, StaleSequenceError)
    return _caused(DeliveryTimeoutError if lost else RetriableError, error)


def _caused(kind: type[E], cause: KafkaError) -> E:
    made = kind(cause.message, cause.code)
    made.__cause__ = cause
    return made
