"""I5: a batch without an answer: it may be in the log or not, and no copy of it may duplicate it."""

from __future__ import annotations

import pytest

from oncelog import Producer, errors
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.records import iter_batches
from support.proxy import HOLD, LOSE_ANSWER, LOSE_REQUEST, PASS, Produced, Proxy
from support.servers import Server
from support.wire import Wire, until

SHORT = {
    "linger_ms": 0,
    "batch_size": 1,
    "retry_backoff_ms": 2,
    "retry_backoff_max_ms": 10,
    "request_timeout_ms": 1500,
    "delivery_timeout_ms": 2000,
}


def epochs(wire: Wire, topic: object) -> list[int]:
    """Return the producer epoch of each batch in the log."""
    found = wire.fetch(topic)  # type: ignore[arg-type]
    return [header.producer_epoch for header, _ in iter_batches(found.records or b"")]


@pytest.mark.parametrize("fate", [LOSE_REQUEST, LOSE_ANSWER])
def test_error_of_an_expired_batch_says_it_may_be_in_the_log(
    wire: Wire, server: Server, proxy: Proxy, name: str, fate: str
) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, **SHORT) as producer:
        assert producer.send(name, b"before").result(30).offset == 0
        proxy.rule = lambda request: fate
        with pytest.raises(errors.DeliveryTimeoutError, match="may or may not be in the log"):
            producer.send(name, b"doubtful").result(30)
        proxy.rule = lambda request: PASS
        until(
            lambda: producer.send(name, b"after").exception(30), lambda error: error is None, "the producer continues"
        )
    values = wire.values(topic)
    assert values[0] == b"before"
    # Its last copy may be at the proxy when the proxy starts to pass requests: the outcome is unknown.
    assert values.count(b"doubtful") in ((1,) if fate == LOSE_ANSWER else (0, 1))
    assert values[-1] == b"after"


def test_idempotent_producer_continues_in_a_new_epoch(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, **SHORT) as producer:
        producer.send(name, b"before").result(30)
        proxy.rule = lambda request: LOSE_REQUEST
        futures = [producer.send(name, b"lost") for _ in range(3)]
        assert {type(future.exception(30)) for future in futures} <= {errors.DeliveryTimeoutError, errors.TimedOutError}
        proxy.rule = lambda request: PASS
        for value in (b"a", b"b", b"c"):
            producer.send(name, value).result(30)
        assert producer.producer_epoch >= 1
    assert wire.values(topic) == [b"before", b"a", b"b", b"c"]
    assert epochs(wire, topic)[0] == 0
    assert min(epochs(wire, topic)[1:]) >= 1


def test_late_copy_after_the_new_epoch_is_rejected(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, **SHORT) as producer:
        producer.send(name, b"before").result(30)
        proxy.rule = lambda request: HOLD
        with pytest.raises(errors.DeliveryTimeoutError):
            producer.send(name, b"late").result(30)
        proxy.rule = lambda request: PASS
        producer.send(name, b"after").result(30)
        assert proxy.release() >= 1
        producer.send(name, b"more").result(30)
    assert wire.values(topic) == [b"before", b"after", b"more"]


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_batch_in_doubt_fails_and_is_not_renumbered(
    wire: Wire, server: Server, proxy: Proxy, name: str, arrives: str
) -> None:
    """The first batch is lost. The second one has a copy on a dead connection when a new epoch is needed.

    Java's producer renumbers the batch and sends it again. If the copy then arrives first, the record is duplicated.
    """
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, **{**SHORT, "delivery_timeout_ms": 30_000}) as producer:
        producer.send(name, b"before").result(30)
        first: list[bytes] = []

        def rule(request: Produced) -> str | ErrorCode:
            if request.number == 1:
                first.append(request.records[0])
                return HOLD
            # The answer of a broker that lost its state or the previous batch.
            return ErrorCode.INVALID_PRODUCER_EPOCH if request.records[0] == first[0] else PASS

        proxy.rule = rule
        with pytest.raises(errors.DeliveryTimeoutError, match="numbers are no longer valid; they may"):
            producer.send(name, b"doubtful").result(30)
        if arrives == "before":
            assert proxy.release() == 1
        producer.send(name, b"after").result(30)
        if arrives == "after":
            assert proxy.release() == 1
        producer.send(name, b"more").result(30)
        assert producer.producer_epoch == 1
    expected = [b"before", b"doubtful", b"after", b"more"] if arrives == "before" else [b"before", b"after", b"more"]
    assert wire.values(topic) == expected


def test_transaction_with_an_expired_batch_can_only_be_aborted(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, transactional_id=name, **SHORT) as producer:
        with producer.transaction():
            producer.send(name, b"kept").result(30)
        producer.begin_transaction()
        proxy.rule = lambda request: HOLD
        future = producer.send(name, b"late")
        expired = future.exception(30)
        assert isinstance(expired, errors.AbortableError)
        assert isinstance(expired.__cause__, errors.DeliveryTimeoutError)
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction()
        proxy.rule = lambda request: PASS
        producer.abort_transaction()
        proxy.release()
        with producer.transaction():
            producer.send(name, b"next").result(30)
    until(
        lambda: wire.values(topic, committed=True),
        lambda found: found == [b"kept", b"next"],
        "both records are visible",
    )


def test_librdkafka_3575_later_commit_does_not_include_records_of_the_previous_epoch(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    """Records written before the expired batch are aborted with it, however often a commit is tried."""
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, transactional_id=name, **SHORT) as producer:
        producer.begin_transaction()
        producer.send(name, b"earlier").result(30)
        proxy.rule = lambda request: HOLD
        assert isinstance(producer.send(name, b"late").exception(30), errors.AbortableError)
        proxy.rule = lambda request: PASS
        for _ in range(2):
            with pytest.raises(errors.AbortableError):
                producer.send(name, b"more").result(30)
            with pytest.raises(errors.AbortableError):
                producer.commit_transaction()
        producer.abort_transaction()
        proxy.release()
        with producer.transaction():
            producer.send(name, b"next").result(30)
    until(
        lambda: wire.values(topic, committed=True), lambda found: found == [b"next"], "only the next record is visible"
    )


def test_batch_answered_late_but_in_time_is_not_in_doubt(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    """The broker finds the first copy in the log: a duplicate is a success, with the first one's offset."""
    topic = wire.create_topic(name)
    proxy.rule = lambda request: LOSE_ANSWER if request.number in (1, 2, 3) else PASS
    with Producer(server.bootstrap, None, **{**SHORT, "delivery_timeout_ms": 30_000}) as producer:
        producer.send(name, b"a").result(30)
        assert producer.send(name, b"b").result(30).offset == 1
        assert producer.send(name, b"c").result(30).offset == 2
        assert producer.producer_epoch == 0
    assert wire.values(topic) == [b"a", b"b", b"c"]
