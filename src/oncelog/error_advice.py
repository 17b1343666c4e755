"""Say what to do about Kafka's error codes."""

from __future__ import annotations

from oncelog.protocol.errors import ErrorCode

RESTART = (
    "abort the transaction (`with producer.transaction()` aborts it automatically), call seek_to_committed() on the "
    "consumer whose records it processed, then begin another transaction"
)
"""What to do about a transaction that cannot be committed. Without the second step, a loop loses records: its consumer
has moved past the input of the aborted transaction, and the next transaction would commit that position.
"""

_C = ErrorCode

ADVICE: dict[ErrorCode, str] = {
    _C.INVALID_CONFIG: "Correct the setting's name or value.",
    _C.INVALID_PARTITIONS: "Request at least one partition, and more than the topic has.",
    _C.INVALID_REPLICA_ASSIGNMENT: "Name existing brokers, each once, and the same number for every partition.",
    _C.INVALID_TOPIC_EXCEPTION: "Use 1 to 249 letters, digits, '.', '_' and '-'; '.' and '_' count as the same.",
    _C.TOPIC_DELETION_DISABLED: "Start the broker with delete.topic.enable=true.",
    _C.TOPIC_ALREADY_EXISTS: "Use the existing topic, or choose another name.",
    _C.INVALID_TRANSACTION_TIMEOUT: (
        "Lower transaction_timeout_ms, or raise transaction.max.timeout.ms on the broker."
    ),
    _C.INVALID_PRODUCER_EPOCH: (
        f"The transaction has timed out, or a newer producer uses the transactional id: {RESTART}. If that raises "
        "FencedError, close this producer."
    ),
    _C.INVALID_TXN_STATE: f"The transaction has already ended, usually by its timeout: {RESTART}.",
    _C.INVALID_PRODUCER_ID_MAPPING: (
        f"The transactional id has expired on the broker (transactional.id.expiration.ms): {RESTART}."
    ),
    _C.INVALID_REPLICATION_FACTOR: "Request at most as many replicas as the cluster has brokers.",
    _C.UNRELEASED_INSTANCE_ID: (
        "Close the other consumer with this group_instance_id, or change that of this one. If it was killed, retry "
        "until its session has expired (45 s, group.consumer.session.timeout.ms)."
    ),
    _C.UNSUPPORTED_ASSIGNOR: "Omit group_remote_assignor, or use one that the broker supports.",
    _C.INCONSISTENT_GROUP_PROTOCOL: (
        "Use a partition_assignment_strategy that all members of the group have, and the same group_protocol."
    ),
    _C.INVALID_REGULAR_EXPRESSION: "Use a pattern in RE2's syntax, which has neither look-around nor backreferences.",
    _C.NON_EMPTY_GROUP: "Stop the members of the group first.",
    _C.OFFSET_OUT_OF_RANGE: "Use an offset that is in the log. A consumer can also set auto_offset_reset.",
    _C.NOT_ENOUGH_REPLICAS: "Start more replicas or lower min.insync.replicas, then retry.",
    _C.UNSTABLE_OFFSET_COMMIT: "Wait until the open transaction with offsets of this group has ended.",
}
"""What to do, for codes that need more specific advice than their class has."""
