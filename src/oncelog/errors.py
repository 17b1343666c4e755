"""The errors that the client raises.

    OncelogError
    ├── ConfigError                  an option is unknown, malformed, or contradicts another one
    ├── UsageError                   a wrong argument, or a call that the object's state does not allow
    │   └── ClientClosedError            the client is closed, or was closed during the call
    ├── BadRecordError               a key or value does not match its format; names topic, partition and offset
    ├── SerializationError           a serializer or deserializer failed; names topic, partition and offset
    ├── RegistryError                the schema registry could not be reached, or rejected a request
    ├── PartlySentError              an error after part of a table was sent; has its future and the other rows
    ├── PurgedError                  `Producer.purge` dropped a record before it was sent: it is not in the log
    ├── WakeupError                  `Consumer.wakeup` ended a poll
    └── KafkaError                   a broker failed or rejected a request; `.code` is Kafka's, `.advice` what to do
        ├── RetriableError           may succeed later; the client has retried until the timeout
        │   ├── ConnectionFailedError    no broker could be reached, or a connection was lost
        │   ├── TimedOutError            a timeout expired (request, delivery, buffer memory, metadata)
        │   │   └── DeliveryTimeoutError     a batch was not acknowledged: its records may or may not be in the log
        │   └── UnknownTopicError        the brokers do not know the topic or partition
        ├── ServerError              the broker failed without a reason: read its log
        ├── RequestError             the request or its data is wrong; a retry fails again
        │   ├── RecordTooLargeError      a record or batch is too large
        │   ├── CorruptRecordError       a batch in the log is damaged: seek past it
        │   └── OffsetOutOfRangeError    the position is not in the log, and auto_offset_reset is `none`
        │       └── LogTruncatedError        the log was truncated before the position (KIP-320)
        ├── GroupError               the consumer's membership has ended: poll to join again
        │   └── FencedMemberError        another consumer has the same group_instance_id: close this one
        ├── TransactionEndedError    a prepared transaction has already ended in the other way
        │   ├── TransactionAbortedError      commit failed, because the transaction is aborted
        │   └── TransactionCommittedError    abort failed, because the transaction is committed
        ├── OutcomeUnknownError      the outcome of a prepared transaction cannot be determined
        ├── AbortableError           the transaction cannot be committed: abort it, `seek_to_committed`, begin another
        │   └── OutOfOrderError          a batch has an unexpected sequence number
        │       ├── SequenceGapError         earlier records are missing from the log
        │       └── StaleSequenceError       the log has newer records of this producer already
        └── FatalError               close this producer
            ├── FencedError              a newer producer has the same transactional id
            ├── AuthenticationError      TLS or the login failed: correct the options, or the broker's certificate
            ├── AuthorizationError       the client is not authorized
            └── UnsupportedError         the broker lacks a feature that the call needs

The class alone determines what to do, so the class of an error depends on where the error occurs. Inside a transaction,
every error is an AbortableError or a FatalError, and its `__cause__` is the original error. Outside a transaction,
there is no AbortableError.

`CLASSES` maps a code to its default class, `ADVICE` to what to do. Codes are those of Kafka's `Errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from oncelog.error_advice import ADVICE as ADVICE
from oncelog.error_advice import RESTART
from oncelog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.client.types import ConsumerRecord

__all__ = [
    "ADVICE",
    "CLASSES",
    "AbortableError",
    "AuthenticationError",
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
    "PurgedError",
    "RecordTooLargeError",
    "RegistryError",
    "RequestError",
    "RetriableError",
    "SequenceGapError",
    "SerializationError",
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
    "error_for",
]


class OncelogError(Exception):
    """The base class of all errors that oncelog's client raises."""


class ConfigError(OncelogError, ValueError):
    """An option is unknown, malformed, or contradicts another one; the message names it."""


class UsageError(OncelogError, RuntimeError):
    """An argument is wrong, or the object's state does not allow the call, such as `commit` without a transaction."""


class ClientClosedError(UsageError):
    """The client is closed, or another thread or task closed it during this call. Create a new client.

    The operation may have succeeded nevertheless.
    """


class BadRecordError(OncelogError, ValueError):
    """A record's key or value (`column`) does not match its format. The consumer's position is before the record.

    The attributes `topic`, `partition`, `offset` and `reason` describe the record, and `advice` says what to do.
    """

    def __init__(
        self, column: str, topic: str, partition: int, offset: int, reason: str, advice: str | None = None
    ) -> None:
        self.column, self.topic, self.partition, self.offset, self.reason = column, topic, partition, offset, reason
        self.advice = advice or (
            f"Seek to offset {offset + 1} to skip the record, or keep the bytes of such values in a column of their "
            f"own: {column}=Json(..., keep_bad=True) or Avro(..., keep_bad=True)"
        )
        super().__init__(
            f"cannot read the {column} of the record at offset {offset} of {topic}-{partition}: {reason.rstrip('. ')}. "
            f"{self.advice}"
        )

    def with_advice(self, advice: str) -> BadRecordError:
        """Return the error with other advice."""
        return type(self)(self.column, self.topic, self.partition, self.offset, self.reason, advice)

    def __reduce__(self) -> tuple[type[BadRecordError], tuple[str, str, int, int, str, str]]:
        return type(self), (self.column, self.topic, self.partition, self.offset, self.reason, self.advice)


class SerializationError(OncelogError, ValueError):
    """A serializer or deserializer failed for a key or value (`field`). `__cause__` is its error, if it raised one.

    In `send`, nothing was sent, and `partition`, `offset` and `record` are None. In `poll`, the consumer's position is
    before the record, so the next `poll` raises the error again: seek past the record to skip it. `record` is the
    `ConsumerRecord` with its bytes, for example to keep it in another topic.
    """

    def __init__(self, field: str, topic: str, reason: str, record: ConsumerRecord | None = None) -> None:
        self.field, self.topic, self.reason, self.record = field, topic, reason, record
        self.partition = None if record is None else record.partition
        self.offset = None if record is None else record.offset
        reason = reason.rstrip(". ")
        what = f"cannot serialize the {field} of a record for topic {topic!r}: {reason}"
        if record is not None:
            at = f"the record at offset {record.offset} of {topic}-{record.partition}"
            skip = f"To skip the record, seek to offset {record.offset + 1}"
            what = f"cannot deserialize the {field} of {at}: {reason}. {skip}"
        super().__init__(what)

    def __reduce__(self) -> tuple[type[SerializationError], tuple[object, ...]]:
        return type(self), (self.field, self.topic, self.reason, self.record)


class RegistryError(OncelogError):
    """The schema registry could not be reached, or rejected a request. No record is skipped or lost.

    In `send`, nothing was sent. In `poll`, the position is before the record, and the next `poll` tries again.
    `retriable` is True if the registry may answer later. `status` is the HTTP status, or None without an answer.
    """

    def __init__(self, message: str, *, retriable: bool = False, status: int | None = None) -> None:
        self.retriable, self.status = retriable, status
        super().__init__(message)

    def __reduce__(self) -> tuple[Callable[[], RegistryError], tuple[()]]:
        return partial(RegistryError, str(self), retriable=self.retriable, status=self.status), ()


class SentRows(Protocol):
    """The future that `send_table` returns. `rows` is the number of rows that were sent."""

    rows: int

    def done(self) -> bool:
        """Return whether the outcome of every row is known."""

    def result(self, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Wait up to `timeout` seconds (default: no limit). Return (topic, partition) -> offset of its first row."""

    def __await__(self) -> Generator[object, None, dict[tuple[str, int], int]]: ...


class PartlySentError(OncelogError):
    """`send_table` failed after it had sent part of a table outside a transaction. `__cause__` is the original error.

    Do not send the whole table again, because that would duplicate rows. `sent` is the future of the rows that were
    sent. `unsent` has the other rows as a `pyarrow.RecordBatchReader`, including a row that cannot be sent. Remove the
    cause, then send these rows.
    """

    def __init__(self, message: str, sent: SentRows, unsent: pa.RecordBatchReader) -> None:
        self.sent, self.unsent = sent, unsent
        super().__init__(
            f"{message.rstrip('. ')}. Do not send the whole table again; error.unsent has the rows that were not sent"
        )


class PurgedError(OncelogError):
    """`Producer.purge` dropped a record before it was sent. The record is not in the log."""


class WakeupError(OncelogError):
    """`wakeup` ended a poll. The poll returned no records, and the consumer's state has not changed."""


class KafkaError(OncelogError):
    """A broker failed or rejected a request. `code` is Kafka's error code. `advice` is a sentence on what to do."""

    default_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    default_advice: ClassVar[str] = "Read the broker's log for the cause."
    own_advice: ClassVar[bool] = False
    """Whether to use the advice of the class even if its code has one."""

    def __init__(self, message: str = "", code: ErrorCode | None = None, advice: str = "") -> None:
        self.code = self.default_code if code is None else code
        self.message = message.rstrip(". ") or self.code.text
        self.advice = advice or self._advice()
        super().__init__(f"{self.message} ({self.code.name}). {self.advice}")

    def __reduce__(self) -> tuple[type[KafkaError], tuple[str, ErrorCode, str]]:
        return type(self), (self.message, self.code, self.advice)

    def _advice(self) -> str:
        """Return the advice of the code if it does not contradict the class, otherwise the advice of the class."""
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
    """The call may succeed later. The client has retried it until its timeout."""

    default_code = ErrorCode.REQUEST_TIMED_OUT
    default_advice = "Try again."


class ConnectionFailedError(RetriableError):
    """No broker could be reached, or the connection was lost before the response arrived."""

    default_code = ErrorCode.NETWORK_EXCEPTION
    default_advice = "Check bootstrap_servers and that the broker runs, then retry."


class TimedOutError(RetriableError):
    """A timeout expired. The request may have taken effect nevertheless."""

    default_advice = "Check that the broker runs and is not overloaded, then retry, or increase the timeout."


class DeliveryTimeoutError(TimedOutError):
    """A batch was sent but not acknowledged within delivery_timeout_ms, or its sequence numbers were lost.

    `Producer.purge` causes this error, too, for records in flight. The records may or may not be in the log.
    """

    default_advice = "Check whether the records are in the partition; sending them again may duplicate them."
    own_advice = True


class UnknownTopicError(RetriableError):
    """The brokers do not know the topic or the partition."""

    default_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    default_advice = "Create the topic, or check its name and the partition's number."


class ServerError(KafkaError):
    """The broker failed without a reason in its response. The request may have taken effect."""

    default_advice = "Read the broker's log to find out what failed, and whether the request took effect."


class RequestError(KafkaError):
    """The request or its data is wrong. A retry fails again."""

    default_code = ErrorCode.INVALID_REQUEST
    default_advice = "Correct the request as the message says; a retry fails again."


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
    """The log was truncated before the consumer's position, and auto_offset_reset is `none`.

    Causes are an unclean leader election and a lost disk. The message has the offset at which the log was truncated.
    """


class GroupError(KafkaError):
    """The consumer's membership of its group has ended or changed."""

    default_code = ErrorCode.UNKNOWN_MEMBER_ID
    default_advice = (
        "Poll again: the consumer joins the group again, and receives records without a committed offset again."
    )


class FencedMemberError(GroupError):
    """Another consumer with the same group_instance_id has joined the group."""

    default_code = ErrorCode.FENCED_INSTANCE_ID
    default_advice = "Close this consumer, and give every consumer its own group_instance_id."


class AbortableError(KafkaError):
    """The transaction in progress cannot be committed."""

    default_code = ErrorCode.TRANSACTION_ABORTABLE
    default_advice = f"{RESTART[0].upper()}{RESTART[1:]}."


class TransactionEndedError(KafkaError):
    """A prepared transaction cannot be committed or aborted, because it has already ended in the other way."""

    default_code = ErrorCode.INVALID_TXN_STATE
    own_advice = True


class TransactionAbortedError(TransactionEndedError):
    """The prepared transaction was aborted by its timeout, a newer producer, or another process with its handle."""

    default_advice = "None of its records is visible; repeat the work in a new transaction."


class TransactionCommittedError(TransactionEndedError):
    """The prepared transaction was committed by another process with its handle."""

    default_advice = "Its records are visible; treat the transaction as committed."


class OutcomeUnknownError(KafkaError):
    """Neither coordinator nor log shows how a prepared transaction ended, or its marker is not written yet."""

    default_code = ErrorCode.INVALID_TXN_STATE
    own_advice = True
    default_advice = (
        "Retry later, or read the partitions with read_committed to find out whether its records are visible."
    )


class OutOfOrderError(AbortableError):
    """A batch's sequence does not follow the producer's last sequence in the partition."""

    default_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class SequenceGapError(OutOfOrderError):
    """Records before these are missing from the log."""

    default_advice = "Earlier records were lost; abort the transaction, or send them again."


class StaleSequenceError(OutOfOrderError):
    """The log has newer records of this producer already, so these records were sent before."""

    default_advice = "The records are in the log, unless it was truncated; check that before you send them again."


class FatalError(KafkaError):
    """This producer cannot continue."""

    default_advice = "Close this producer and create a new one."


class FencedError(FatalError):
    """A newer producer with the same transactional id has fenced this one."""

    default_code = ErrorCode.PRODUCER_FENCED
    own_advice = True
    default_advice = "Close this producer, because a newer one uses its transactional_id."


class AuthenticationError(FatalError):
    """A broker rejected the login, or client and broker do not trust each other's certificates.

    The client does not retry, because another attempt with the same settings fails again, and may lock the user out.
    """

    default_code = ErrorCode.SASL_AUTHENTICATION_FAILED
    default_advice = "Correct what the message names, then create a new client."


class AuthorizationError(FatalError):
    """The client is not authorized for the request."""

    default_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    default_advice = "Grant the permission, then create a new client."


class UnsupportedError(FatalError):
    """The broker lacks a feature that the call needs."""

    default_code = ErrorCode.UNSUPPORTED_VERSION
    default_advice = "Use a newer broker, or do not use the feature."


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
    _C.SASL_AUTHENTICATION_FAILED: AuthenticationError,
    _C.ILLEGAL_SASL_STATE: AuthenticationError,
    _C.UNSUPPORTED_SASL_MECHANISM: AuthenticationError,
    _C.UNSUPPORTED_VERSION: UnsupportedError,
    _C.UNSUPPORTED_FOR_MESSAGE_FORMAT: UnsupportedError,
    _C.UNSUPPORTED_COMPRESSION_TYPE: UnsupportedError,
}
"""Codes with a class of their own. All other codes are a RetriableError or a RequestError."""


def error_for(code: int, message: str | None = None) -> KafkaError:
    """Return the exception for the error code of a response. `message` names the object of the request."""
    known = ErrorCode.of(code)
    kind = _class_of(known)
    if known is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and message:
        kind = StaleSequenceError if "stale" in message else SequenceGapError if "gap" in message else kind
    if known is ErrorCode.UNKNOWN_SERVER_ERROR and code != known:
        message = f"unknown error code {code}" + (f": {message}" if message else "")
    return kind(message or "", known)


def _class_of(code: ErrorCode) -> type[KafkaError]:
    return CLASSES.get(code) or (RetriableError if code.retriable else RequestError)
