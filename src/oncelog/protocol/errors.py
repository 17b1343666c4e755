"""Define the error codes of Kafka's protocol, and the exceptions and values that carry them.

Codes, names and the retriable errors are those of Kafka's `Errors`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ErrorCode(IntEnum):
    """An error code on the wire."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_SERVER_ERROR = -1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self in _RETRIABLE

    @property
    def text(self) -> str:
        """A clause that describes the error."""
        return _TEXTS.get(self) or self.name.lower().replace("_", " ")

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the error for a code. Return UNKNOWN_SERVER_ERROR for an unknown code."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR


MESSAGE_MAX = 1000
"""Longer error messages are cut to this many characters. A message may quote a value that fills a whole request."""


class ProtocolError(Exception):
    """Raised for a failure that is answered with an error code. The message says what failed, and names the object."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        if len(message) > MESSAGE_MAX:
            message = f"{message[:MESSAGE_MAX]}..."
        super().__init__(message or code.text)
        self.code = code

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code.name}, {str(self)!r})"


class Refusal(NamedTuple):
    """A `ProtocolError` as a value, for code that keeps the error.

    A raised exception refers to the frames that it passed. If one of these frames keeps the exception, they form a
    reference cycle. All objects of those frames, such as a request of many megabytes, then stay in memory until a full
    garbage collection.
    """

    code: ErrorCode
    message: str

    @classmethod
    def of(cls, error: ProtocolError) -> Refusal:
        """Keep the code and the message of an exception."""
        return cls(error.code, str(error))

    def error(self) -> ProtocolError:
        """Return a new exception for the caller to raise."""
        return ProtocolError(self.code, self.message)


_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)

_TEXTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed with an unexpected error; see its log",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is outside the log's range",
    ErrorCode.CORRUPT_MESSAGE: "a record batch is corrupt: its checksum or its framing is wrong",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist on this broker",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader; retry",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this broker does not lead the partition",
    ErrorCode.REQUEST_TIMED_OUT: "the request timed out; it may still have taken effect",
    ErrorCode.MESSAGE_TOO_LARGE: "the record batch is larger than max.message.bytes",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its log; retry",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available; retry",
    ErrorCode.NOT_COORDINATOR: "this broker does not coordinate the group or transactional id",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic name is invalid, or the topic does not allow this operation",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batch is larger than segment.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas; nothing was appended",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the records were appended, but too few replicas are in sync",
    ErrorCode.ILLEGAL_GENERATION: "the generation is not the group's current one; rejoin the group",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; rejoin it",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support this version of the request",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic of that name already exists",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the sequence does not follow the producer's last one",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "the batch was already appended",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a producer with the same id and a newer epoch has written",
    ErrorCode.INVALID_TXN_STATE: "the transaction's state does not allow this operation",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id belongs to another producer id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the transaction timeout exceeds transaction.max.timeout.ms of the broker",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the previous transaction of the transactional id is still ending; retry",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer transaction coordinator has replaced this one",
    ErrorCode.KAFKA_STORAGE_ERROR: "a disk failed; the partition is offline on this broker",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the broker no longer has any state of the producer",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.FENCED_INSTANCE_ID: "another member has replaced this static member",
    ErrorCode.INVALID_RECORD: "a record violates its topic's rules or the record format",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "an open transaction has pending offsets for the partition; retry",
    ErrorCode.PRODUCER_FENCED: "a newer producer with the same transactional id has fenced this one",
    ErrorCode.TRANSACTION_ABORTABLE: "the transaction cannot be committed; abort it, and begin another",
}
