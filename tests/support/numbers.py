"""Write numbers to the three partitions of the topic `t` with librdkafka, and check that a cluster has kept them."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, Producer, TopicPartition

from support.history import check_once
from support.processes import wait_until


def write_numbers(bootstrap: str, numbers: Iterable[int]) -> None:
    """Write numbers with acks=all."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failed: list[object] = []
    for number in numbers:
        producer.produce(
            "t",
            str(number),
            partition=number % 3,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failed


def check_numbers(bootstrap: str, count: int) -> None:
    """Check that a consumer reads the numbers below `count`, each once."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(3)])
    found: list[int] = []

    def all_are_read() -> bool:
        for message in consumer.consume(count, 1):
            assert message.error() is None
            found.append(int(message.value() or b""))
        return len(found) >= count

    wait_until(all_are_read, "all records are read")
    consumer.close()
    check_once(range(count), found)
