"""I15: the partition of a record: as chosen by Java's client, or by the user."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from uuid import UUID

import pytest
from confluent_kafka import Producer as ConfluentProducer

from oncelog import Producer, errors
from oncelog.client.producer.partitioner import key_hash, murmur2
from oncelog.errors import ConfigError
from oncelog.protocol.records import decode_records, iter_batches
from support.apache_kafka import kafka_libs, run_tool
from support.servers import Server
from support.wire import Wire

PARTITIONS = 5
JAVAS = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
"""Values of `org.apache.kafka.common.utils.Utils.murmur2`."""


def keys_by_partition(wire: Wire, topic: UUID, partitions: int = PARTITIONS) -> list[list[bytes | None]]:
    found: list[list[bytes | None]] = []
    for partition in range(partitions):
        keys: list[bytes | None] = []
        offset = 0
        while records := wire.fetch(topic, partition, offset).records:
            for header, view in iter_batches(records):
                keys += [record.key for record in decode_records(view)]
                offset = header.next_offset
        found.append(keys)
    return found


def test_hash_equals_javas() -> None:
    for key, expected in JAVAS.items():
        assert murmur2(key) == expected & 0xFFFFFFFF
        assert key_hash(key) == expected & 0x7FFFFFFF


def test_keys_are_assigned_as_by_the_java_client(wire: Wire, server: Server, name: str) -> None:
    """If Kafka's jars are present, the test asks them. In librdkafka, the partitioner is called murmur2_random."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyzäöüß0123456789"
    keys = sorted({"".join(chance.choices(letters, k=chance.randrange(1, 30))).encode() for _ in range(200)})
    ours = wire.create_topic(name, PARTITIONS)
    theirs = wire.create_topic(f"{name}-theirs", PARTITIONS)
    with Producer(server.bootstrap) as producer:
        for key in keys:
            producer.send(name, b"v", key=key)
    confluent = ConfluentProducer({"bootstrap.servers": server.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        confluent.produce(f"{name}-theirs", b"v", key=key)
    assert confluent.flush(30) == 0
    expected = [sorted(map(bytes, filter(None, found))) for found in keys_by_partition(wire, theirs)]
    assert [sorted(filter(None, found)) for found in keys_by_partition(wire, ours)] == expected
    assert all(expected), "every partition has records"
    if server.name == "apache-kafka":
        assert kafka_libs().is_dir()
        javas = wire.create_topic(f"{name}-java", PARTITIONS)
        lines = "".join(f"{key.decode()}\tv\n" for key in keys)
        arguments: tuple[str, ...] = ("--bootstrap-server", server.bootstrap, "--topic", f"{name}-java")
        run_tool(
            "org.apache.kafka.tools.ConsoleProducer", *arguments, "--reader-property", "parse.key=true", stdin=lines
        )
        assert [sorted(filter(None, found)) for found in keys_by_partition(wire, javas)] == expected


def test_consistent_random_assigns_keys_as_librdkafka_does_by_default(wire: Wire, server: Server, name: str) -> None:
    keys = [os.urandom(size) for size in range(1, 60)]
    ours, theirs = wire.create_topic(name, PARTITIONS), wire.create_topic(f"{name}-theirs", PARTITIONS)
    with Producer(server.bootstrap, partitioner="consistent_random") as producer:
        for key in keys:
            producer.send(name, b"v", key=key)
    confluent = ConfluentProducer({"bootstrap.servers": server.bootstrap})
    for key in keys:
        confluent.produce(f"{name}-theirs", b"v", key=key)
    assert confluent.flush(30) == 0
    assert keys_by_partition(wire, ours) == keys_by_partition(wire, theirs)


def test_empty_key_is_a_key(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name, PARTITIONS)
    with Producer(server.bootstrap, linger_ms=0) as producer:
        found = {producer.send(name, os.urandom(5_000), key=b"").result(30).partition for _ in range(8)}
    assert found == {key_hash(b"") % PARTITIONS}


def test_records_without_a_key_stay_in_a_partition_for_one_batch(wire: Wire, server: Server, name: str) -> None:
    """KIP-794."""
    wire.create_topic(name, PARTITIONS)
    with Producer(server.bootstrap, batch_size=1_000, linger_ms=60_000) as producer:
        futures = [producer.send(name, b"x" * 90) for _ in range(60)]
        producer.flush()
        found = [future.result(30).partition for future in futures]
    runs = [1]
    for before, after in pairwise(found):
        if before == after:
            runs[-1] += 1
        else:
            runs.append(1)
    assert set(runs) == {10}, "about a batch of bytes each, and never the same partition twice in a row"


def test_round_robin_is_even(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name, PARTITIONS)
    with Producer(server.bootstrap, partitioner="round_robin") as producer:
        for number in range(60):
            producer.send(name, b"v", key=b"the same" if number % 2 else None)
    assert [len(keys) for keys in keys_by_partition(wire, topic)] == [12] * PARTITIONS


def test_user_defined_partitioner(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name, PARTITIONS)
    asked: list[tuple[str, bytes | None, bytes | None, int]] = []

    def partitioner(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        asked.append((topic, key, value, partitions))
        return len(value or b"") % partitions

    with Producer(server.bootstrap, partitioner=partitioner) as producer:
        for size in range(10):
            producer.send(name, b"x" * size, key=b"k")
        producer.send(name, b"y" * 4, partition=0)
    assert asked == [(name, b"k", b"x" * size, PARTITIONS) for size in range(10)]
    assert [len(keys) for keys in keys_by_partition(wire, topic)] == [3, 2, 2, 2, 2]


@pytest.mark.parametrize("partition", [-1, PARTITIONS, 1_000])
def test_nonexistent_partition(wire: Wire, server: Server, name: str, partition: int) -> None:
    wire.create_topic(name, PARTITIONS)
    error = errors.UsageError if partition < 0 else errors.UnknownTopicError
    with Producer(server.bootstrap, max_block_ms=2_000) as producer, pytest.raises(error, match=str(partition)):
        producer.send(name, b"v", partition=partition)
    with (
        Producer(server.bootstrap, partitioner=lambda *_: partition) as producer,
        pytest.raises(errors.UsageError, match=str(partition)),
    ):
        producer.send(name, b"v")


def test_unknown_partitioner(server: Server) -> None:
    with pytest.raises(ConfigError, match="partitioner"):
        Producer(server.bootstrap, partitioner="sticky-hash")
