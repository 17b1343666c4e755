"""The hierarchy of exceptions."""

from __future__ import annotations

import pickle

import pytest

from oncelog import errors
from oncelog.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, errors.FencedError),
        (ErrorCode.TRANSACTION_ABORTABLE, errors.AbortableError),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, errors.RetriableError),
        (ErrorCode.TOPIC_ALREADY_EXISTS, errors.RequestError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, errors.AuthorizationError),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.OutOfOrderError),
    ],
)
def test_codes_and_classes(code: ErrorCode, kind: type[errors.KafkaError]) -> None:
    error = errors.error_for(code, "what happened.")
    assert type(error) is kind
    assert error.code is code
    assert str(error) == f"what happened ({code.name}). {error.advice}"
    assert error.advice.endswith(".")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (kind, str(error), code)


def test_gap_and_stale_are_distinguished() -> None:
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert type(errors.error_for(code, "expected 5, got 7 (gap, ...)")) is errors.SequenceGapError
    assert type(errors.error_for(code, "expected 5, got 2 (stale, ...)")) is errors.StaleSequenceError


def test_reason_of_a_bad_record_ends_with_one_full_stop() -> None:
    error = errors.BadRecordError("value", "t", 0, 7, "Invalid value.")
    assert "Invalid value. Seek to offset" in str(error)
    other = pickle.loads(pickle.dumps(error.with_advice("Skip it.")))
    assert str(other) == "cannot read the value of the record at offset 7 of t-0: Invalid value. Skip it."


def test_unknown_codes_keep_their_number() -> None:
    error = errors.error_for(999, "about a thing")
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "999" in str(error)


def test_every_code_has_a_class_and_advice() -> None:
    for code in ErrorCode:
        assert errors.error_for(code).advice
