"""Visible effects of the producer's options."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oncelog import Admin, Producer
from support.servers import Server
from support.wire import until


def test_new_partitions_get_records(server: Server, admin: Admin, name: str) -> None:
    """metadata.max.age.ms: the producer discovers new partitions by refreshing its metadata."""
    admin.create_topics(name, 1)
    options = {"metadata.max.age.ms": "20", "retry.backoff.max.ms": 20, "retry.backoff.ms": 5, "batch.size": 1}
    with Producer(server.bootstrap, options) as producer:
        assert producer.send(name, b"x").result(30).partition == 0
        admin.create_partitions(name, 4)
        seen: set[int] = set()
        until(lambda: seen.add(producer.send(name, b"x").result(30).partition) or seen, {0, 1, 2, 3}.__eq__, "all")
        assert producer.partitions_for(name) == 4


def test_partitioner_can_ignore_keys(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 3)
    with Producer(server.bootstrap, {"partitioner.ignore.keys": "true"}, batch_size=1, linger_ms=0) as producer:
        assert len({producer.send(name, b"x", b"key").result(30).partition for _ in range(30)}) > 1
        table = pa.table({"key": [b"key"] * 60, "value": [b"x"] * 60})
        assert len(producer.send_table(name, table).result(30)) == 3
    with Producer(server.bootstrap, batch_size=1, linger_ms=0) as producer:
        assert len({producer.send(name, b"x", b"key").result(30).partition for _ in range(30)}) == 1


@pytest.mark.parametrize(
    ("codec", "weak", "strong"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -50, 19)], ids=["gzip", "lz4", "zstd"]
)
def test_compression_levels_take_effect(
    server: Server, admin: Admin, name: str, codec: str, weak: int, strong: int
) -> None:
    """lz4's level 9 is Kafka's default and selects its fast compressor."""
    sizes = []
    for level in (weak, strong):
        topic = f"{name}{level}"
        admin.create_topics(topic)
        options = {"compression.type": codec, f"compression.{codec}.level": level, "linger.ms": 30_000}
        with Producer(server.bootstrap, options, batch_size=1 << 20) as producer:
            for i in range(2_000):
                producer.send(topic, b"%d flew from %d to %d" % (i, i * i % 97, i**3 % 89), timestamp=i)
        sizes.append(admin.describe_log_dirs(partitions=[(topic, 0)])[0].replicas[topic, 0].size_bytes)
    assert sizes[1] < sizes[0]
