"""The errors that the client raises.

    OncelogError
    ├── ConfigError                  an option is unknown, malformed, or contradicts another one
    ├── UsageError                   a call that the object's state does not allow
    │   └── ClientClosedError            the client is closed, or was closed while the call waited
    ├── BadRecordError               a key or value is not what its format says; names topic, partition and offset
    ├── PartlySentError              part of a table was sent before an error; has its future, and the other rows
    ├── WakeupError                  `Consumer.wakeup` ended a poll
    └── KafkaError                   a broker failed or refused a request; `.code` is Kafka's, `.advice` says what to do
        ├── RetriableError           may succeed later; the client has retried until its time was up
        │   ├── ConnectionFailedError    no broker could be reached, or it hung up before it answered
        │   ├── TimedOutError            time was up (request, delivery, buffer memory, metadata)
        │   │   └── DeliveryTimeoutError     a batch was given up unanswered: its records may or may not be in the log
        │   └── UnknownTopicError        no such topic or partition, as far as the brokers know by now
        ├── ServerError              the broker failed and does not say why: read its log
        ├── RequestError             the request or its data is wrong and stays wrong
        │   ├── RecordTooLargeError
        │   ├── CorruptRecordError       a batch in the log is damaged: seek past it
        │   └── OffsetOutOfRangeError    the position is not in the log and there is no reset policy
        │       └── LogTruncatedError        the log was cut before the position (KIP-320)
        ├── GroupError               the consumer's membership is gone: poll to join again
        │   └── FencedMemberError        another member with the same static id has taken over: close
        ├── TransactionEndedError    a prepared transaction has ended the other way
        │   ├── TransactionAbortedError      it was to be committed; nothing of it is visible
        │   └── TransactionCommittedError    it was to be aborted
        ├── OutcomeUnknownError      how a prepared transaction has ended is not known (any more)
        ├── AbortableError           the transaction cannot be committed: abort, `seek_to_committed`, begin another
        │   └── OutOfOrderError          sequence numbers do not follow each other
        │       ├── SequenceGapError         records before these are missing from the log
        │       └── StaleSequenceError       these were sent before; newer ones are in the log
        └── FatalError               close this producer
            ├── FencedError              a newer producer with the same transactional id is at work
            ├── AuthorizationError
            └── UnsupportedError         the broker lacks a feature that the call needs

The class alone says what to do, so the class of an error depends on where it happens. Every error inside a transaction
is an AbortableError or a FatalError; its `__cause__` is the original error. Outside a transaction there is no
AbortableError.

`CLASSES` maps a code to its default class, `ADVICE` to what to do. Codes are those of Kafka's `Errors`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from oncelog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ADVICE",
    "CLASSES",
    "AbortableError",
    "AuthorizationError",
    "BadRecordError",
    "ClientClosedError",
    "ConfigError",
    "ConnectionFailedError",
    "CorruptRecordError",
    "DeliveryTimeoutError",
    "FatalError",
    "FencedError",
    "FencedMemberError",
    "GroupError",
    "KafkaError",
    "LogTruncatedError",
    "OffsetOutOfRangeError",
    "OncelogError",
    "OutOfOrderError",
    "OutcomeUnknownError",
    "PartlySentError",
    "RecordTooLargeError",
    "RequestError",
    "RetriableError",
    "SequenceGapError",
    "ServerError",
    "StaleSequenceError",
    "TimedOutError",
    "TransactionAbortedError",
    "TransactionCommittedError",
    "TransactionEndedError",
    "UnknownTopicError",
    "UnsupportedError",
    "UsageError",
    "WakeupError",
    "abortable",
    "error_for",
    "fatal",
    "outside_transaction",
]


_ANEW = (
    "abort (leaving `with producer.transaction()` does), take a consumer whose records were processed in it back by "
    "its seek_to_committed(), then begin another transaction"
)
"""What to do about a transaction that cannot be committed. Without the middle part, a loop loses records: its
consumer has moved past the input of the aborted transaction, and the next transaction would commit that position.
"""


class OncelogError(Exception):
    """The base class of all errors that oncelog's client raises."""


class ConfigError(OncelogError, ValueError):
    """An option is unknown, malformed, or contradicts another one; the message names it."""


class UsageError(OncelogError, RuntimeError):
    """The object's state does not allow the call, for example `commit` without a transaction."""


class ClientClosedError(UsageError):
    """The client is closed, or another thread or task closed it while this call waited: make a new client.

    The operation may have succeeded nevertheless.
    """


class BadRecordError(OncelogError, ValueError):
    """A record's key or value (`column`) does not match its format; the consumer's position is before the record."""

    def __init__(self, column: str, topic: str, partition: int, offset: int, reason: str) -> None:
        self.column, self.topic, self.partition, self.offset, self.reason = column, topic, partition, offset, reason
        super().__init__(
            f"the {column} of {topic}-{partition} at offset {offset} cannot be read: {reason.rstrip('. ')}. Seek past "
            "it, or have its format keep such values apart: "
            f"{column}=Json(..., keep_bad=True), or Avro(..., keep_bad=True)"
        )

    def __reduce__(self) -> tuple[type[BadRecordError], tuple[str, str, int, int, str]]:
        return type(self), (self.column, self.topic, self.partition, self.offset, self.reason)


class SentRows(Protocol):
    """The future that `send_table` returns: the outcome of `rows` rows."""

    rows: int

    def done(self) -> bool:
        """Return whether the outcome of every row is known."""

    def result(self, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Wait up to `timeout` seconds. Return (topic, partition) -> offset of the first row there."""

    def __await__(self) -> Generator[object, None, dict[tuple[str, int], int]]: ...


class PartlySentError(OncelogError):
    """`send_table` failed (`__cause__`) after it had sent part of a table outside a transaction. Do not send the whole
    table again: that would duplicate those rows.

    `sent`: the future of the rows that were sent. `unsent`: the other rows as a `pyarrow.RecordBatchReader`, among them
    any row that cannot be sent. Send them after the cause is removed.
    """

    def __init__(self, message: str, sent: SentRows, unsent: pa.RecordBatchReader) -> None:
        self.sent, self.unsent = sent, unsent
        super().__init__(
            f"{message.rstrip('. ')}. Do not send the table again: error.unsent has the rows that were not sent"
        )


class WakeupError(OncelogError):
    """`wakeup` ended a poll. The consumer is as before, and the poll returned no records."""


class KafkaError(OncelogError):
    """A broker failed or rejected a request. `code` is Kafka's error code, `advice` one sentence on what to do."""

    default_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    default_advice: ClassVar[str] = "Look into the broker's log."
    own_advice: ClassVar[bool] = False
    """Whether the class's advice is better than that of its code."""

    def __init__(self, message: str = "", code: ErrorCode | None = None) -> None:
        self.code = self.default_code if code is None else code
        self.message = message.rstrip(". ") or self.code.text
        self.advice = self._advice()
        super().__init__(f"{self.message} ({self.code.name}). {self.advice}")

    def __reduce__(self) -> tuple[type[KafkaError], tuple[str, ErrorCode]]:
        return type(self), (self.message, self.code)

    def _advice(self) -> str:
        """Return the advice of the class, and that of the code if it does not contradict the class."""
        specific = ADVICE.get(self.code)
        if specific is None or self.own_advice:
            return self.default_advice
        usual = _class_of(self.code)
        if isinstance(self, usual):
            return specific
        return f"{specific} {self.default_advice}" if usual is RequestError else self.default_advice

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return isinstance(self, RetriableError)


class RetriableError(KafkaError):
    """The call may succeed later. The client has retried it until its time was up."""

    default_code = ErrorCode.REQUEST_TIMED_OUT
    default_advice = "Try again."


class ConnectionFailedError(RetriableError):
    """No broker could be reached, or the broker closed the connection before it answered."""

    default_code = ErrorCode.NETWORK_EXCEPTION
    default_advice = "Check bootstrap_servers and that the broker runs, then try again."


class TimedOutError(RetriableError):
    """Time was up. The request may have taken effect nevertheless."""

    default_advice = "Check that the broker is up and keeps pace, then try again or allow more time."


class DeliveryTimeoutError(TimedOutError):
    """A batch was given up without an answer (delivery.timeout.ms, or its sequences were lost).

    Its records may or may not be in the log.
    """

    default_advice = "Read the partition to learn whether the records are there; sending them again may double them."


class UnknownTopicError(RetriableError):
    """The brokers know of no such topic or partition."""

    default_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    default_advice = "Create the topic, or check its name and the partition's number."


class ServerError(KafkaError):
    """The broker failed and does not say why. The request may have taken effect."""

    default_advice = "Read the broker's log to learn what failed, and whether the request took effect."


class RequestError(KafkaError):
    """The request or its data is wrong. A retry fails again."""

    default_code = ErrorCode.INVALID_REQUEST
    default_advice = "Correct what the message names; trying again changes nothing."


class RecordTooLargeError(RequestError):
    """A record or batch is larger than the client or the broker allows."""

    default_code = ErrorCode.MESSAGE_TOO_LARGE


class CorruptRecordError(RequestError):
    """A batch in the log is damaged: its checksum or its contents are wrong."""

    default_code = ErrorCode.CORRUPT_MESSAGE
    default_advice = "Seek past the batch, or restore the partition from a replica or a backup."


class OffsetOutOfRangeError(RequestError):
    """The position is not in the log, and auto_offset_reset is `none`."""

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE


class LogTruncatedError(OffsetOutOfRangeError):
    """The log was cut below the consumer's position (unclean election, lost disk), and auto_offset_reset is `none`.

    The message has the offset at which the log ended after the cut.
    """


class GroupError(KafkaError):
    """The consumer's membership of its group has ended or changed."""

    default_code = ErrorCode.UNKNOWN_MEMBER_ID
    default_advice = "Poll again: the consumer joins anew, and what was not committed is delivered again."


class FencedMemberError(GroupError):
    """Another consumer with the same group_instance_id has taken over."""

    default_code = ErrorCode.FENCED_INSTANCE_ID
    default_advice = "Close this consumer; give every consumer its own group_instance_id."


class AbortableError(KafkaError):
    """The transaction in progress cannot be committed."""

    default_code = ErrorCode.TRANSACTION_ABORTABLE
    default_advice = f"{_ANEW[0].upper()}{_ANEW[1:]}."


class TransactionEndedError(KafkaError):
    """A prepared transaction cannot be ended as requested, because it has ended the other way."""

    default_code = ErrorCode.INVALID_TXN_STATE
    own_advice = True


class TransactionAbortedError(TransactionEndedError):
    """The prepared transaction was aborted: by its time-out, a newer producer, or another holder of the handle."""

    default_advice = "Nothing of it is visible: do the work again in a new transaction."


class TransactionCommittedError(TransactionEndedError):
    """The prepared transaction was committed by another holder of the handle."""

    default_advice = "Its records are visible and stay; take it as committed."


class OutcomeUnknownError(KafkaError):
    """Neither coordinator nor log shows how a prepared transaction has ended, or its marker is not written yet."""

    default_code = ErrorCode.INVALID_TXN_STATE
    own_advice = True
    default_advice = "Read the partitions with read_committed to learn whether its records are there; ask again later."


class OutOfOrderError(AbortableError):
    """A batch's sequence does not follow the producer's last sequence in the partition."""

    default_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class SequenceGapError(OutOfOrderError):
    """Records before these are missing from the log."""

    default_advice = "Earlier records were lost: abort the transaction, or send them again."


class StaleSequenceError(OutOfOrderError):
    """These records were sent before, and the log has newer ones of the same producer."""

    default_advice = "They are in the log already unless the log was cut: do not send them again unseen."


class FatalError(KafkaError):
    """This producer cannot continue."""

    default_advice = "Close this producer and make a new one."


class FencedError(FatalError):
    """A newer producer with the same transactional id has fenced this one."""

    default_code = ErrorCode.PRODUCER_FENCED
    own_advice = True
    default_advice = "Close this producer; another one with its transactional_id has taken over."


class AuthorizationError(FatalError):
    """The client lacks the permission."""

    default_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    default_advice = "Grant the permission, then make a new client."


class UnsupportedError(FatalError):
    """The broker lacks a feature that the call needs."""

    default_code = ErrorCode.UNSUPPORTED_VERSION
    default_advice = "Use a newer broker, or leave the feature out."


_C = ErrorCode

CLASSES: dict[ErrorCode, type[KafkaError]] = {
    _C.NETWORK_EXCEPTION: ConnectionFailedError,
    _C.UNKNOWN_SERVER_ERROR: ServerError,
    _C.REQUEST_TIMED_OUT: TimedOutError,
    _C.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicError,
    _C.UNKNOWN_TOPIC_ID: UnknownTopicError,
    _C.MESSAGE_TOO_LARGE: RecordTooLargeError,
    _C.RECORD_LIST_TOO_LARGE: RecordTooLargeError,
    _C.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    _C.UNKNOWN_MEMBER_ID: GroupError,
    _C.ILLEGAL_GENERATION: GroupError,
    _C.REBALANCE_IN_PROGRESS: GroupError,
    _C.MEMBER_ID_REQUIRED: GroupError,
    _C.FENCED_MEMBER_EPOCH: GroupError,
    _C.STALE_MEMBER_EPOCH: GroupError,
    _C.FENCED_INSTANCE_ID: FencedMemberError,
    _C.UNRELEASED_INSTANCE_ID: FencedMemberError,
    _C.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderError,
    _C.UNKNOWN_PRODUCER_ID: AbortableError,
    _C.INVALID_PRODUCER_EPOCH: AbortableError,
    _C.INVALID_TXN_STATE: AbortableError,
    _C.INVALID_PRODUCER_ID_MAPPING: AbortableError,
    _C.TRANSACTION_ABORTABLE: AbortableError,
    _C.PRODUCER_FENCED: FencedError,
    _C.TRANSACTION_COORDINATOR_FENCED: FencedError,
    _C.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    _C.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    _C.GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    _C.DELEGATION_TOKEN_AUTHORIZATION_FAILED: AuthorizationError,
    _C.SASL_AUTHENTICATION_FAILED: AuthorizationError,
    _C.UNSUPPORTED_VERSION: UnsupportedError,
    _C.UNSUPPORTED_FOR_MESSAGE_FORMAT: UnsupportedError,
    _C.UNSUPPORTED_COMPRESSION_TYPE: UnsupportedError,
}
"""The class of each code that has its own; every other code is a RetriableError or a RequestError."""

ADVICE: dict[ErrorCode, str] = {
    _C.INVALID_CONFIG: "Give each setting a name and a value that it can have.",
    _C.INVALID_PARTITIONS: "Ask for at least one partition, and for more than the topic has.",
    _C.INVALID_REPLICA_ASSIGNMENT: "Name brokers that are there, each once, and as many for every partition.",
    _C.INVALID_TOPIC_EXCEPTION: "Take a name of ASCII letters, digits, '.', '_' and '-' that is not much like another.",
    _C.TOPIC_DELETION_DISABLED: "Set delete.topic.enable=true where the broker is started.",
    _C.TOPIC_ALREADY_EXISTS: "Take another name, or use the topic that is there.",
    _C.INVALID_TRANSACTION_TIMEOUT: (
        "Lower transaction_timeout_ms, or raise transaction.max.timeout.ms on the broker."
    ),
    _C.INVALID_PRODUCER_EPOCH: (
        f"The transaction timed out or another producer took over: {_ANEW}; if that is refused as fenced, close."
    ),
    _C.INVALID_TXN_STATE: f"The transaction has ended already, mostly by its time-out: {_ANEW}.",
    _C.INVALID_PRODUCER_ID_MAPPING: (
        f"The broker has forgotten the transactional id (transactional.id.expiration.ms): {_ANEW}."
    ),
    _C.INVALID_REPLICATION_FACTOR: "Ask for at most as many replicas as there are brokers.",
    _C.UNRELEASED_INSTANCE_ID: "Close the other consumer with this group_instance_id, or give this one its own.",
    _C.UNSUPPORTED_ASSIGNOR: "Leave group_remote_assignor out, or take one that the broker has.",
    _C.INCONSISTENT_GROUP_PROTOCOL: (
        "The group's other members have no partition_assignment_strategy in common with this one, or are of another "
        "kind."
    ),
    _C.INVALID_REGULAR_EXPRESSION: "The broker takes RE2 patterns: no look-around, no references back.",
    _C.NON_EMPTY_GROUP: "Stop the group's members first.",
    _C.OFFSET_OUT_OF_RANGE: "Seek to an offset that the log still has, or set auto_offset_reset.",
    _C.NOT_ENOUGH_REPLICAS: "Bring replicas back or lower min.insync.replicas, then try again.",
    _C.UNSTABLE_OFFSET_COMMIT: "A transaction with offsets of this group is open: wait until it has ended.",
}
"""What to do, for codes whose class alone does not say it."""


def error_for(code: int, message: str | None = None) -> KafkaError:
    """Return the exception for the error code of a response. `message` names what it is about."""
    known = ErrorCode.of(code)
    kind = _class_of(known)
    if known is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and message:
        kind = StaleSequenceError if "stale" in message else SequenceGapError if "gap" in message else kind
    if known is ErrorCode.UNKNOWN_SERVER_ERROR and code != known:
        message = f"unknown error code {code}" + (f": {message}" if message else "")
    return kind(message or "", known)


def _class_of(code: ErrorCode) -> type[KafkaError]:
    return CLASSES.get(code) or (RetriableError if code.retriable else RequestError)


def abortable(error: KafkaError) -> AbortableError:
    """Convert an error inside a transaction to an AbortableError.

    A retriable error becomes abortable as well: a repeated call would meet the same transaction (KIP-1050).
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


E = TypeVar("E", bound=KafkaError)


def _caused(kind: type[E], cause: KafkaError) -> E:
    made = kind(cause.message, cause.code)
    made.__cause__ = cause
    return made
