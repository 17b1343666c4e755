"""At DEBUG, each step of idempotence and of transactions has a line, in the producer and in the broker."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from oncelog import Producer, errors
from oncelog.testing import Broker
from support.command_line import Tool, run
from support.processes import wait_until
from support.proxy import LOSE_ANSWER, LOSE_REQUEST, PASS, Proxy, redirect
from support.wire import Wire, batch, code

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
ONE_BATCH_EACH = {"linger_ms": 0, "batch_size": 1, "retry_backoff_ms": 2}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCELOG_LOG_LEVEL", "DEBUG")
        with Broker(topics=["orders"]) as started:
            yield started


@pytest.fixture
def proxy(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    proxy = Proxy(broker.bootstrap_servers)
    redirect(monkeypatch, proxy)
    yield proxy
    proxy.close()


def require(text: str, *patterns: str) -> None:
    """Check that the lines are in the text, in this order."""
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        assert found is not None, f"no line {pattern!r} in {text[at:]}"
        at = found.end()


def require_of(broker: Broker, *patterns: str) -> None:
    """Check the lines of the broker, whose log is written by a thread."""
    wait_until(lambda: re.search(patterns[-1], broker.log()), patterns[-1])
    require(broker.log(), *patterns)


def lines(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_lost_answer_shows_the_retry_and_the_recognised_duplicate(
    broker: Broker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncelog.client")
    proxy.rule = lambda request: LOSE_ANSWER if request.number == 1 else PASS
    with Producer(broker.bootstrap_servers, **ONE_BATCH_EACH) as producer:
        offsets = [producer.send("orders", b"%d" % number).result(30).offset for number in range(3)]
    first = offsets[0]
    require(
        lines(caplog),
        r"producer id \d+, epoch 0: assigned; all sequences begin at 0",
        r"orders-0, sequences 0 to 0 of producer id \d+, epoch 0: drained",
        r"orders-0, sequences 1 to 1 of producer id \d+, epoch 0: drained",
        r"orders-0, sequences 1 to 1 .*: queued again, behind 0 and before 0 other batches, after attempt 1: ",
        r"orders-0, sequences 1 to 1 of producer id \d+, epoch 0: sent again",
        r"orders-0, sequences 2 to 2 of producer id \d+, epoch 0: drained",
    )
    require_of(
        broker,
        r"reserved the producer ids 0 to 999",
        r"assigned producer id \d+ to a producer without transactions",
        rf"orders-0: duplicate: sequences 1 to 1 of producer id \d+, epoch 0 are at offsets {first + 1} to {first + 1}",
    )
    wait_until(
        lambda: (
            f"orders-0 (leader): log end offset {offsets[-1] + 1}, high watermark {offsets[-1] + 1}" in broker.log()
        ),
        "the line with the offsets",
    )


def test_given_up_batch_shows_its_unresolved_sequences_and_the_new_epoch(
    broker: Broker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncelog.client")
    short = {"request_timeout_ms": 500, "delivery_timeout_ms": 600}
    with Producer(broker.bootstrap_servers, **ONE_BATCH_EACH, **short) as producer:
        producer.send("orders", b"before").result(30)
        proxy.rule = lambda request: LOSE_REQUEST
        with pytest.raises(errors.DeliveryTimeoutError):
            producer.send("orders", b"doubtful").result(30)
        proxy.rule = lambda request: PASS
        producer.send("orders", b"after").result(30)
    require(
        lines(caplog),
        r"orders-0, sequences 1 to 1 .*, epoch 0: given up without a response, so its sequences are unresolved",
        r"orders-0: the records with unresolved sequences are missing in the log",
        r"producer id \d+: epoch raised to 1, because of orders-0: a batch was given up, and is not in the log",
        r"orders-0, sequences 0 to 0 of producer id \d+, epoch 1: drained",
    )


def test_transaction_shows_its_transitions_and_markers(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "oncelog.client")
    with Producer(broker.bootstrap_servers, transactional_id="payments") as producer:
        with producer.transaction():
            offset = producer.send("orders", b"paid").result(30).offset
        producer.begin_transaction()
        producer.send("orders", b"not paid").result(30)
        producer.abort_transaction()
    require(
        lines(caplog),
        r"producer payments: initializing, was uninitialized",
        r"producer payments: ready, was initializing",
        r"producer payments: in transaction, was ready",
        r"producer payments: committing, was in transaction",
        r"producer payments: ready, was committing",
        r"producer payments: aborting, was in transaction",
    )
    require_of(
        broker,
        r"transactional id 'payments': Empty, was unknown; producer id \d+, epoch 0; partitions: none",
        r"transactional id 'payments': Ongoing, was Empty; producer id \d+, epoch 0; partitions: orders-0",
        r"transactional id 'payments': PrepareCommit, was Ongoing; producer id \d+, epoch 1; partitions: orders-0",
        rf"orders-0: wrote the commit marker of producer id \d+, epoch 1 at offset {offset + 1}",
        r"transactional id 'payments': CompleteCommit, was PrepareCommit; ",
        r"orders-0: wrote the abort marker of producer id \d+",
        r"transactional id 'payments': CompleteAbort, was PrepareAbort; ",
    )


def test_each_rejection_has_one_line(broker: Broker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        who = wire.session()
        wire.produce("orders", batch([b"v"] * 3, who, 0))
        for sequence in (1, 7, 8):
            assert wire.produce("orders", batch([b"w"], who, sequence)).error_code == OUT_OF_ORDER
    wait_until(lambda: "sequence 8, expected 3" in broker.log(), "the last line")
    for sequence, kind in ((1, "stale"), (7, "gap"), (8, "gap")):
        found = [line for line in broker.log().splitlines() if f"sequence {sequence}, expected 3 ({kind}: " in line]
        assert len(found) == 1, broker.log()


@pytest.mark.parametrize(
    ("level", "why"),
    [
        ("LOUD", "'LOUD' is not a log level; use FATAL, ERROR, WARN, INFO, DEBUG, TRACE, or LOGGER=LEVEL"),
        ("kafka=DEBUG", "'kafka' is not a logger of oncelog"),
    ],
)
def test_wrong_level_is_rejected(level: str, why: str) -> None:
    status, _, stderr = run("--log-level", level, "topic", "list")
    assert status == 2
    assert why in " ".join(stderr.split())


def test_wrong_level_in_the_environment_is_named_with_its_variable() -> None:
    status, _, stderr = run("topic", "list", env={"ONCELOG_LOG_LEVEL": "LOUD"})
    assert (status, "(from $ONCELOG_LOG_LEVEL)" in stderr) == (2, True), stderr
    assert "(from $" not in run("--log-level", "LOUD", "topic", "list")[2]


def test_command_shows_the_lines_of_one_logger_of_its_client(broker: Broker) -> None:
    level = "oncelog.client.producer.sequences=DEBUG"
    stderr = Tool(broker.bootstrap_servers).run("--log-level", level, "topic", "produce", "orders", stdin="x\n").stderr
    require(stderr, r"DEBUG oncelog.client.producer.sequences: producer id \d+, epoch 0: assigned")
    assert set(re.findall(r"oncelog[.\w]*", stderr)) == {"oncelog.client.producer.sequences"}
