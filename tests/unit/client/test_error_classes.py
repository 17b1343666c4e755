"""The class of an error alone determines the reaction, for every error code in every situation.

The verdicts on Produce are those of Java's `TransactionManager.maybeTransitionToErrorState`. That a retriable error
inside a transaction is abortable comes from KIP-1050.
"""

from __future__ import annotations

import threading
from enum import StrEnum

import pytest

from oncelog import errors
from oncelog.client.producer import error_meanings
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.coordinator_requests import handle, next_request
from oncelog.client.producer.delivery import Delivery
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.producer.transaction_states import ManagerState
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnResponse
from support.coordinator_answers import REQUESTS, answer, asking

TP = ("t", 0)


class ToDo(StrEnum):
    """The next action of a program."""

    REPEAT = "repeat the call"
    LOOK = "look into the log before repeating it"
    CORRECT = "correct the call or its data"
    READ_LOG = "read the broker's log"
    POLL = "poll again"
    ABORT = "abort, seek_to_committed, begin again"
    CLOSE = "close the client"
    ACCEPT = "accept how the prepared transaction ended"
    NOTHING = "nothing"


TO_DO: dict[type[errors.OncelogError], ToDo] = {
    errors.ConfigError: ToDo.CORRECT,
    errors.UsageError: ToDo.CORRECT,
    errors.ClientClosedError: ToDo.CORRECT,
    errors.BadRecordError: ToDo.CORRECT,
    errors.PartlySentError: ToDo.CORRECT,
    errors.SerializationError: ToDo.CORRECT,
    errors.RegistryError: ToDo.REPEAT,
    errors.PurgedError: ToDo.NOTHING,
    errors.WakeupError: ToDo.NOTHING,
    errors.RetriableError: ToDo.REPEAT,
    errors.ConnectionFailedError: ToDo.REPEAT,
    errors.TimedOutError: ToDo.REPEAT,
    errors.UnknownTopicError: ToDo.REPEAT,
    errors.DeliveryTimeoutError: ToDo.LOOK,
    errors.ServerError: ToDo.READ_LOG,
    errors.RequestError: ToDo.CORRECT,
    errors.RecordTooLargeError: ToDo.CORRECT,
    errors.CorruptRecordError: ToDo.CORRECT,
    errors.OffsetOutOfRangeError: ToDo.CORRECT,
    errors.LogTruncatedError: ToDo.CORRECT,
    errors.GroupError: ToDo.POLL,
    errors.FencedMemberError: ToDo.CLOSE,
    errors.TransactionEndedError: ToDo.ACCEPT,
    errors.TransactionAbortedError: ToDo.ACCEPT,
    errors.TransactionCommittedError: ToDo.ACCEPT,
    errors.OutcomeUnknownError: ToDo.LOOK,
    errors.AbortableError: ToDo.ABORT,
    errors.OutOfOrderError: ToDo.ABORT,
    errors.SequenceGapError: ToDo.ABORT,
    errors.StaleSequenceError: ToDo.ABORT,
    errors.FatalError: ToDo.CLOSE,
    errors.FencedError: ToDo.CLOSE,
    errors.AuthenticationError: ToDo.CLOSE,
    errors.AuthorizationError: ToDo.CLOSE,
    errors.UnsupportedError: ToDo.CLOSE,
}
CODES = [code for code in ErrorCode if code is not ErrorCode.NONE]
FATAL = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
"""For Produce, in a transaction and outside: the producer cannot continue."""


def to_do(error: BaseException | None) -> ToDo:
    assert isinstance(error, errors.OncelogError)
    return TO_DO[type(error)]


def batch() -> Batch:
    return Batch(TP, Delivery(TP, threading.Condition()), 0, Codec.NONE, None)


def transactional(version: int = 2) -> TransactionManager:
    manager = TransactionManager("id")
    manager.set_version(version)
    manager.initialize()
    manager.initialized(7, 3)
    manager.begin()
    return manager


def test_every_class_has_advice() -> None:
    public = {getattr(errors, name) for name in errors.__all__ if name.endswith("Error")}
    assert set(TO_DO) == public - {errors.OncelogError, errors.KafkaError}


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_request_error_without_a_transaction_never_advises_an_abort(code: ErrorCode) -> None:
    with pytest.raises(errors.KafkaError) as caught:
        raise_for_error(EndTxnResponse(error_code=code))
    expected = {ToDo.REPEAT} if code.retriable else {ToDo.CORRECT, ToDo.POLL, ToDo.CLOSE, ToDo.READ_LOG}
    assert to_do(caught.value) in expected
    assert caught.value.retriable == code.retriable


@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_failed_batch_in_a_transaction_advises_abort_or_close(code: ErrorCode, version: int) -> None:
    manager = transactional(version)
    cause = errors.error_for(code, "t-0")
    of_the_record = manager.failed(batch(), cause)
    expected = ToDo.CLOSE if code in FATAL else ToDo.ABORT
    assert to_do(of_the_record) is expected
    assert cause in (of_the_record, of_the_record.__cause__)
    assert of_the_record.code is code
    for call in (manager.begin_commit, manager.begin, lambda: manager.may_append(TP)):
        with pytest.raises(errors.KafkaError) as caught:
            call()
        assert to_do(caught.value) is expected
        assert not caught.value.retriable
    if expected is ToDo.ABORT:
        manager.begin_abort()
        assert manager.state is ManagerState.ABORTING


@pytest.mark.parametrize("kind", [errors.TimedOutError, errors.DeliveryTimeoutError])
def test_expired_batch_in_a_transaction_advises_abort(kind: type[errors.KafkaError]) -> None:
    manager = transactional()
    cause = kind("t-0: not acknowledged")
    of_the_record = manager.expired(batch(), cause)
    with pytest.raises(errors.AbortableError) as caught:
        manager.begin_commit()
    assert to_do(of_the_record) is to_do(caught.value) is ToDo.ABORT
    assert of_the_record.__cause__ is cause
    assert "abort" in of_the_record.advice.lower()


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_failed_batch_without_a_transaction_never_advises_an_abort(code: ErrorCode, in_doubt: bool) -> None:
    manager = TransactionManager(None)
    manager.sequences.set_producer(7, 0)
    failed = batch()
    failed.in_doubt = in_doubt
    cause = errors.error_for(code, "t-0")
    of_the_record = manager.failed(failed, cause)
    if code in FATAL:
        assert to_do(of_the_record) is ToDo.CLOSE
        assert manager.state is ManagerState.FATAL_ERROR
    elif isinstance(cause, errors.AbortableError):
        assert to_do(of_the_record) is (ToDo.LOOK if in_doubt else ToDo.REPEAT)
    else:
        assert of_the_record is cause
    assert to_do(of_the_record) is not ToDo.ABORT


def test_stale_batch_without_a_transaction_may_be_in_the_log() -> None:
    assert to_do(error_meanings.outside_transaction(errors.StaleSequenceError("t-0"))) is ToDo.LOOK
    assert to_do(error_meanings.outside_transaction(errors.SequenceGapError("t-0"))) is ToDo.REPEAT


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_coordinator_error_is_retried_or_advises_abort_or_close(request_name: str, code: ErrorCode) -> None:
    manager = asking(request_name)
    step = next_request(manager, drained=True)
    assert step is not None
    if handle(manager, step, answer(request_name, code)) is not None or manager.doubted is not None:
        assert manager.error is None, "the client retries"
        return
    expected = {ToDo.CLOSE} if request_name == "InitProducerId" else {ToDo.ABORT, ToDo.CLOSE}
    assert to_do(manager.error) in expected
    assert (to_do(manager.error) is ToDo.CLOSE) == (
        manager.state is ManagerState.FATAL_ERROR or request_name == "InitProducerId"
    )


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_advice_does_not_contradict_the_class(code: ErrorCode) -> None:
    cause = errors.error_for(code)
    abort, close = error_meanings.abortable(cause).advice, error_meanings.fatal(cause).advice
    assert "abort" in abort.lower()
    if not isinstance(cause, errors.FatalError):
        assert errors.FatalError.default_advice in close
        assert "begin another" not in close


def test_advice_for_an_invalid_setting_is_kept() -> None:
    error = error_meanings.fatal(errors.error_for(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
    assert "Lower transaction_timeout_ms" in error.advice
    assert errors.FatalError.default_advice in error.advice
