"""Each error that a broker may answer Produce with, and how the producer continues.

In transactions of both protocol versions, and without transactions.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Producer, errors
from oncelog.protocol.errors import ErrorCode
from support.proxy import PASS, Appended, Fate, Produced, Proxy
from support.servers import Server
from support.transactions import set_transaction_version
from support.wire import Wire, until

QUICK = {"linger_ms": 0, "retry_backoff_ms": 2, "retry_backoff_max_ms": 10}

PASSING = (
    *("NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_TOPIC_OR_PARTITION"),
    *("NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "CORRUPT_MESSAGE", "KAFKA_STORAGE_ERROR", "NETWORK_EXCEPTION"),
    *("COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "UNKNOWN_TOPIC_ID"),
)
"""Retried unnoticed."""
APPENDED = ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR")
"""The records are in the log despite the error."""
ABORTABLE = (
    *("TRANSACTION_ABORTABLE", "INVALID_TXN_STATE", "INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    *("INVALID_RECORD", "INVALID_TIMESTAMP", "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_SERVER_ERROR"),
    *("UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "INVALID_REQUIRED_ACKS"),
)
"""The transaction fails, but the producer can continue (KIP-1050)."""
FATAL = (
    *("PRODUCER_FENCED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
    *("UNSUPPORTED_VERSION", "INVALID_PRODUCER_ID_MAPPING"),
)
"""Kafka's `maybeTransitionToErrorState`: close the producer."""
SETTINGS: dict[str, str] = {}


@pytest.fixture
def wire(module_server: Server) -> Iterator[Wire]:
    """Connect to a server whose transaction.version the tests change. It is reset to 2 after each test."""
    with Wire(module_server.bootstrap) as connection:
        yield connection
        set_transaction_version(connection, 2)


def answers(proxy: Proxy, fates: list[Fate]) -> None:
    """Answer the next requests with these errors, and pass the others."""
    start = len(proxy.seen)

    def rule(request: Produced) -> Fate:
        at = request.number - start
        return fates[at] if at < len(fates) else PASS

    proxy.rule = rule


@pytest.mark.parametrize("version", [2, 1], ids=["tv2", "tv1"])
def test_every_error_within_a_transaction(
    wire: Wire, module_proxy: Proxy, module_server: Server, name: str, version: int
) -> None:
    """For each error, a new producer gets it in the second of its three transactions."""
    set_transaction_version(wire, version)
    topic_id = wire.create_topic(name)
    expected: list[bytes] = []
    fates: list[tuple[str, Fate]] = [(code, ErrorCode[code]) for code in (*PASSING, *ABORTABLE, *FATAL)]
    for code, fate in [*fates, *((code, Appended(ErrorCode[code])) for code in APPENDED)]:
        values = [f"{code} {number} {isinstance(fate, Appended)}".encode() for number in range(3)]
        with Producer(module_server.bootstrap, transactional_id=f"{name}{code}{values}", **QUICK) as producer:
            with producer.transaction() as within:
                within.send(name, values[0])
            answers(module_proxy, [fate])
            producer.begin_transaction()
            producer.send(name, values[1])
            if code in PASSING or isinstance(fate, Appended):
                producer.commit_transaction()
                expected += values[:2]
            else:
                with pytest.raises(errors.KafkaError) as caught:
                    producer.commit_transaction()
                assert caught.value.code is ErrorCode[code], code
                expected += values[:1]
            if code in FATAL:
                for call in (producer.abort_transaction, producer.begin_transaction):
                    with pytest.raises(errors.KafkaError) as caught:
                        call()
                    assert caught.value.code is ErrorCode[code], code
                continue
            if code in ABORTABLE:
                producer.abort_transaction()
            with producer.transaction() as within:
                within.send(name, values[2])
            expected += values[2:]
    # The proxy rejected the records of a transaction with a fatal error, so they were never written.
    until(
        lambda: wire.values(topic_id, committed=True),
        lambda found: found == expected,
        "all committed records are visible",
    )


RENEWED = ("OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH")
"""Without transactions, the producer continues in a new epoch, with the same records (KIP-360)."""
UNTOLD = "UNKNOWN_PRODUCER_ID"
"""The producer retries: without the log start offset in the answer, it cannot tell what the error means."""


def test_every_error_without_transactions(wire: Wire, module_proxy: Proxy, module_server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    expected: list[bytes] = []
    for code in (*PASSING, UNTOLD, *RENEWED, "INVALID_RECORD", "UNKNOWN_SERVER_ERROR", "TOPIC_AUTHORIZATION_FAILED"):
        values = [f"{code} {number}".encode() for number in range(3)]
        with Producer(module_server.bootstrap, **QUICK) as producer:
            producer.send(name, values[0]).result(30)
            answers(module_proxy, [ErrorCode[code]])
            error = producer.send(name, values[1]).exception(30)
            producer.send(name, values[2]).result(30)
            assert (producer.producer_epoch > 0) == (code not in (*PASSING, UNTOLD)), code
        if code in (*PASSING, UNTOLD, *RENEWED):
            assert error is None, code
            expected += values
        else:
            assert isinstance(error, errors.KafkaError)
            assert error.code is ErrorCode[code]
            expected += [values[0], values[2]]
    assert wire.values(topic_id) == expected


def test_retriable_error_that_repeats_fails_after_the_delivery_timeout(
    wire: Wire, module_proxy: Proxy, module_server: Server, name: str
) -> None:
    topic_id = wire.create_topic(name)
    # The delivery timeout ends during a retry's pause. With a request in flight, the outcome would be unknown.
    options = {"linger_ms": 0, "retry_backoff_ms": 10_000, "retry_backoff_max_ms": 10_000}
    options |= {"request_timeout_ms": 1_500, "delivery_timeout_ms": 1_500}
    with Producer(module_server.bootstrap, **options) as producer:
        producer.send(name, b"before").result(30)
        module_proxy.rule = lambda request: ErrorCode.NOT_ENOUGH_REPLICAS
        with pytest.raises(errors.TimedOutError, match=r"rejected repeatedly.*they are not in the log"):
            producer.send(name, b"refused").result(30)
        module_proxy.rule = lambda request: PASS
        producer.send(name, b"after").result(30)
    assert wire.values(topic_id) == [b"before", b"after"]


@pytest.mark.parametrize("version", [2, 1], ids=["tv2", "tv1"])
def test_batches_after_a_rejected_one_do_not_delay_the_abort(
    wire: Wire, module_proxy: Proxy, module_server: Server, name: str, version: int
) -> None:
    """Batches after the rejected one stay out of order; the producer must not wait for them."""
    set_transaction_version(wire, version)
    topic_id = wire.create_topic(name, max_message_bytes="2000")
    with Producer(module_server.bootstrap, transactional_id=name, batch_size=1, **QUICK) as producer:
        with producer.transaction() as within:
            within.send(name, b"first")
        producer.begin_transaction()
        futures = [producer.send(name, b"x" * (5_000 if i == 3 else 10)) for i in range(30)]
        producer.flush(30)
        refused = futures[3].exception(0)
        assert isinstance(refused, errors.AbortableError)
        assert isinstance(refused.__cause__, errors.RecordTooLargeError)
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction()
        assert isinstance(caught.value.__cause__, errors.RecordTooLargeError)
        producer.abort_transaction(30)
        with producer.transaction() as within:
            within.send(name, b"next")
    until(
        lambda: wire.values(topic_id, committed=True),
        lambda found: found == [b"first", b"next"],
        "both records are visible",
    )


@pytest.mark.parametrize("version", [2, 1], ids=["tv2", "tv1"])
def test_transaction_with_an_expired_batch_is_aborted_without_a_retry(
    wire: Wire, module_proxy: Proxy, module_server: Server, name: str, version: int
) -> None:
    set_transaction_version(wire, version)
    topic_id = wire.create_topic(name)
    # The delivery timeout ends during a retry's pause, as in the test above.
    options = {"linger_ms": 0, "retry_backoff_ms": 10_000, "retry_backoff_max_ms": 10_000}
    options |= {"request_timeout_ms": 1_500, "delivery_timeout_ms": 1_500}
    with Producer(module_server.bootstrap, transactional_id=name, **options) as producer:
        with producer.transaction() as within:
            within.send(name, b"before")
        module_proxy.rule = lambda request: ErrorCode.NOT_ENOUGH_REPLICAS
        producer.begin_transaction()
        expired = producer.send(name, b"expires")
        for _ in range(2):
            with pytest.raises(errors.AbortableError) as caught:
                producer.commit_transaction()
            assert isinstance(caught.value.__cause__, errors.TimedOutError)
            assert not caught.value.retriable
        assert isinstance(expired.exception(0), errors.AbortableError)
        module_proxy.rule = lambda request: PASS
        producer.abort_transaction()
        with producer.transaction() as within:
            within.send(name, b"after")
    found = until(
        lambda: wire.values(topic_id, committed=True), lambda found: len(found) == 2, "both records are visible"
    )
    assert found == [b"before", b"after"]
