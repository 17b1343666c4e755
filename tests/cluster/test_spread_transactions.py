"""Clients that read, process and write exactly once, with coordinators and partitions on three brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import oncelog
from oncelog import errors
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from support.broker_sets import Brokers, run
from support.history import check_once
from support.reading import read
from support.turns import until

RECORDS = 300
A_TRANSACTION = 3
PAUSE_S = 0.02
"""The pause after each transaction, so that some of them are open when the broker is killed."""


def with_confluent(bootstrap: str, transactional_id: str, group: str) -> None:
    """Copy the topic `in` to `out`."""

    def new_consumer() -> tuple[Any, int]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        partitions = [confluent_kafka.TopicPartition("in", index) for index in range(3)]
        known = consumer.committed(partitions, timeout=30)
        consumer.assign([confluent_kafka.TopicPartition("in", each.partition, max(each.offset, 0)) for each in known])
        return consumer, sum(max(each.offset, 0) for each in known)

    def new_producer() -> Any:
        # With sparse connections, librdkafka may wait 30 s until it connects to a restarted coordinator again.
        options = {"bootstrap.servers": bootstrap, "enable.sparse.connections": False}
        producer = confluent_kafka.Producer({**options, "transactional.id": transactional_id})
        producer.init_transactions(30)
        return producer

    producer = new_producer()
    consumer, done = new_consumer()
    while done < RECORDS:
        messages = [each for each in consumer.consume(A_TRANSACTION, 1.0) if each.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for each in messages:
                producer.produce("out", each.value(), partition=each.partition())
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
            time.sleep(PAUSE_S)
            done += len(messages)
        except confluent_kafka.KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(30)
            else:
                producer = new_producer()
            consumer.close()
            consumer, done = new_consumer()
    consumer.close()


def with_oncelog(bootstrap: str, transactional_id: str, group: str) -> None:
    """Copy the topic `in` to `out`."""
    done = 0
    while done < RECORDS:
        try:
            with (
                oncelog.Producer(bootstrap, transactional_id=transactional_id) as producer,
                oncelog.Consumer(
                    bootstrap, group_id=group, auto_offset_reset="earliest", isolation_level="read_committed"
                ) as consumer,
            ):
                partitions = [("in", index) for index in range(3)]
                known = consumer.committed(partitions)
                done = sum(known.values()) if known else 0
                consumer.assign({each: known.get(each, 0) for each in partitions})
                while done < RECORDS:
                    records = consumer.poll(1.0, max_records=A_TRANSACTION)
                    if not records:
                        continue
                    with producer.transaction():
                        for each in records:
                            producer.send("out", each.value, partition=each.partition)
                        producer.send_offsets(consumer)
                    time.sleep(PAUSE_S)
                    done += len(records)
        except errors.OncelogError:
            continue


@pytest.mark.parametrize("copy", [with_confluent, with_oncelog])
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_each_record_is_copied_once(tmp_path: Path, copy: Callable[[str, str, str], None], victim: int) -> None:
    """Broker 1 coordinates the transaction, broker 2 the group. One of three brokers is killed, and starts again."""

    async def body(brokers: Brokers) -> None:
        settings = {
            "offsets_topic_num_partitions": "6",
            "offsets_topic_replication_factor": "1",
            "transaction_state_log_num_partitions": "6",
            "transaction_state_log_replication_factor": "1",
        }
        for node_id in (1, 2, 3):
            await brokers.start(node_id, **settings)
        await until(lambda: all(len(broker.metadata.image.brokers) == 3 for broker in brokers.running.values()))
        first = brokers.running[1]
        for name in ("in", "out"):
            await first.topics.create(name, assignment=[(1,), (2,), (3,)])
        for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            await first.topics.ensure_internal(name)
        await until(lambda: all(broker.metadata.image.topic(TRANSACTION_STATE) for broker in brokers.running.values()))
        addresses = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers.running.values())

        def id_on(topic: str, broker: int) -> str:
            image = first.metadata.image
            return next(
                name
                for name in map("id-{}".format, range(1000))
                if image.topics_by_name[topic].partitions[partition_for(name, 6)].leader == broker
            )

        transactional_id, group = id_on(TRANSACTION_STATE, 1), id_on(CONSUMER_OFFSETS, 2)
        await asyncio.to_thread(fill, addresses)
        copying = asyncio.ensure_future(asyncio.to_thread(copy, addresses, transactional_id, group))
        await asyncio.sleep(0.7)
        port = brokers.running[victim].port
        await brokers.crash(victim)
        await asyncio.sleep(1)
        assert not copying.done()
        await brokers.start(victim, listeners=f"PLAINTEXT://127.0.0.1:{port}", **settings)
        await copying
        check_once((b"%d" % number for number in range(RECORDS)), await asyncio.to_thread(read, addresses, "out", 3))
        for broker in brokers.running.values():
            states = [
                transaction.state.text
                for _, shard in broker.transactions.shell.terms.shards()
                for transaction in shard.transactions.values()
            ]
            assert set(states) <= {"CompleteCommit", "CompleteAbort", "Empty"}

    run(Brokers(tmp_path, now_ms=lambda: int(1000 * time.time())), body, limit_s=240)


def fill(bootstrap: str) -> None:
    with oncelog.Producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.send("in", b"%d" % number, partition=number % 3)
