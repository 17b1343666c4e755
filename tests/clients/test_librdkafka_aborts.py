"""librdkafka aborts a transaction while a batch, whose response is lost, waits to be retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from support.proxy import LOSE_ANSWER, PASS, Proxy
from support.servers import OncelogCluster
from support.wire import Wire, until


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Start a broker behind a proxy."""
    cluster = OncelogCluster(tmp_path)
    made = Proxy(cluster.bootstrap)
    yield made
    made.close()
    cluster.stop()


def test_next_transaction_loses_nothing(proxy: Proxy, name: str) -> None:
    """Its batch has the sequences of the aborted one, because librdkafka expects that the broker lacks that one.

    Apache Kafka takes it for a retry: the transaction commits without its records.
    """
    proxy.rule = lambda produced: LOSE_ANSWER if b"aborted" in produced.records[0] else PASS
    with Wire(f"127.0.0.1:{proxy.port}") as wire:
        topic = wire.create_topic(name)
        backoff = {"retry.backoff.ms": 5_000, "retry.backoff.max.ms": 5_000}
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transactional.id": name, **backoff})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(name, b"aborted", partition=0)
        until(lambda: (producer.poll(0), wire.offset(name))[1], lambda end: end == 1, "the broker has the batch")
        producer.abort_transaction(60)
        committed = False
        while not committed:
            producer.begin_transaction()
            producer.produce(name, b"committed", partition=0)
            try:
                producer.commit_transaction(60)
                committed = True
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(60)
        attempts = [
            (produced.epoch, produced.sequence) for produced in proxy.seen if b"committed" in produced.records[0]
        ]
        assert attempts == [(0, 0), (1, 0)]
        until(lambda: wire.values(topic, committed=True), lambda found: found == [b"committed"], "the committed record")
