"""The meaning of each coordinator error for the producer: the table of Kafka's TransactionManager, code by code."""

from __future__ import annotations

import pytest

from oncelog import errors
from oncelog.client.producer.coordinator_requests import handle, next_request, not_found
from oncelog.client.producer.transaction_states import ManagerState
from oncelog.protocol.errors import ErrorCode
from support.coordinator_answers import answer, asking

RETRY, ABORT, FATAL, ASK = "retry", "abort", "fatal", "ask who is fenced"

PASSING = (
    "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR CONCURRENT_TRANSACTIONS REQUEST_TIMED_OUT"
)
FENCED = "INVALID_PRODUCER_EPOCH PRODUCER_FENCED"

# DIFFERS: Java's producer treats FENCED as fatal everywhere. Since KIP-588, a timeout looks the same, and
# InitProducerId with the old epoch distinguishes them, so ours sends it. INVALID_PRODUCER_ID_MAPPING (the id has
# expired) is fatal for Java; here, the next transaction gets a new id.
TABLE: dict[str, dict[str, str]] = {
    "InitProducerId": {
        RETRY: PASSING,
        ABORT: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED TRANSACTION_ABORTABLE",
        FATAL: f"{FENCED} INVALID_TRANSACTION_TIMEOUT UNKNOWN_SERVER_ERROR INVALID_REQUEST UNSUPPORTED_VERSION",
    },
    "AddPartitionsToTxn": {
        RETRY: f"{PASSING} UNKNOWN_TOPIC_OR_PARTITION",
        ABORT: "TOPIC_AUTHORIZATION_FAILED OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE "
        "INVALID_PRODUCER_ID_MAPPING UNKNOWN_SERVER_ERROR INVALID_TOPIC_EXCEPTION",
        FATAL: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_TXN_STATE",
        ASK: FENCED,
    },
    "AddOffsetsToTxn": {
        RETRY: PASSING,
        ABORT: "GROUP_AUTHORIZATION_FAILED UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE INVALID_PRODUCER_ID_MAPPING",
        FATAL: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_TXN_STATE UNKNOWN_SERVER_ERROR",
        ASK: FENCED,
    },
    "TxnOffsetCommit": {
        RETRY: f"{PASSING} UNKNOWN_TOPIC_OR_PARTITION",
        ABORT: "GROUP_AUTHORIZATION_FAILED FENCED_INSTANCE_ID UNKNOWN_MEMBER_ID ILLEGAL_GENERATION STALE_MEMBER_EPOCH "
        "TRANSACTION_ABORTABLE TOPIC_AUTHORIZATION_FAILED OFFSET_METADATA_TOO_LARGE",
        FATAL: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_FOR_MESSAGE_FORMAT UNKNOWN_SERVER_ERROR",
        ASK: FENCED,
    },
    "EndTxn": {
        RETRY: PASSING,
        # INVALID_TXN_STATE: the coordinator's timeout was faster than the commit. Fatal for Java.
        ABORT: "TRANSACTION_ABORTABLE UNKNOWN_PRODUCER_ID INVALID_TXN_STATE",
        FATAL: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
        ASK: FENCED,
    },
}
CASES = [
    pytest.param(request, ErrorCode[code], expected, id=f"{request}-{code}")
    for request, groups in TABLE.items()
    for expected, codes in groups.items()
    for code in codes.split()
]


@pytest.mark.parametrize(("request_name", "code", "expected"), CASES)
def test_each_error_has_its_verdict(request_name: str, code: ErrorCode, expected: str) -> None:
    manager = asking(request_name)
    before = manager.state
    step = next_request(manager, drained=True)
    assert step is not None
    assert type(step.request).__name__ == f"{request_name}Request"
    again = handle(manager, step, answer(request_name, code))
    assert (again is code) == (expected == RETRY)
    following = next_request(manager, drained=True)
    if expected == RETRY:
        assert manager.state is before
        assert following is not None
        assert type(following.request) is type(step.request)
    elif expected == ASK:
        assert manager.state is before
        assert following is not None
        assert type(following.request).__name__ == "InitProducerIdRequest"
        assert following.request.producer_epoch == 3  # type: ignore[attr-defined]
    elif expected == FATAL:
        assert manager.state is ManagerState.FATAL_ERROR
        assert isinstance(manager.error, errors.FatalError)
        assert following is None
    else:
        assert manager.state is ManagerState.ABORTABLE_ERROR
        assert manager.error is not None
        assert manager.error.code is code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("GROUP_AUTHORIZATION_FAILED", ManagerState.ABORTABLE_ERROR),
        ("TRANSACTION_ABORTABLE", ManagerState.ABORTABLE_ERROR),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", ManagerState.FATAL_ERROR),
    ],
)
def test_unavailable_coordinator(code: str, expected: ManagerState) -> None:
    """FindCoordinator: without the group's coordinator, the transaction can still be aborted."""
    manager = asking("AddOffsetsToTxn")
    not_found(manager, errors.error_for(ErrorCode[code]))
    assert manager.state is expected
    assert next_request(manager, drained=True) is None
