"""Memory of a source task, and its errors about records that it cannot read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.protocol.compression import Codec
from oncelog.protocol.messages import produce as pr
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.cluster import partitions
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.reading.offsets import Range
from oncelog.spark.reading.options import source_options
from oncelog.spark.reading.task import Reading
from spark.judges import create
from support.servers import Server

MB = 1 << 20
READ = """
import json, resource, sys
from oncelog.client.blocking import BlockingCluster
from oncelog.columns.native import load
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.reading.offsets import Range
from oncelog.spark.reading.options import source_options
from oncelog.spark.reading.task import Reading

bootstrap, topic, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, streaming=False)
load()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with BlockingCluster(bootstrap) as cluster:
    run = lambda first, end: Reading(cluster, options, Range(TopicPartition(topic, 0), first, end)).batches()
    next(run(0, 1))
    before, rows, most = peak(), 0, 0
    for batch in run(0, end):
        rows, most = rows + batch.num_rows, max(most, batch.get_total_buffer_size())
        serialized = batch.serialize()  # as PySpark does
print(json.dumps([rows, most, peak() - before]))
"""


def append(cluster: BlockingCluster, topic: str, batch: bytes | bytearray) -> None:
    data = pr.PartitionProduceData(index=0, records=batch)
    named = pr.TopicProduceData(name=topic, topic_id=NO_UUID, partition_data=[data])
    request = pr.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[named])
    response = cluster.run_many([cluster.cluster.call_leader(topic, 0, request, partitions.PRODUCE_OLD)])[0]
    assert not response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize(("batches", "count"), [(16, 16), (256, 1)], ids=["16 MB batches", "1 MB batches"])
def test_compressed_log_is_read_in_bounded_memory(server: Server, name: str, batches: int, count: int) -> None:
    """256 MB of records in less than 1 MB of log: one Fetch returns all of it."""
    create(server.bootstrap, name, 1)
    made = build_batch([Record(i, 5, None, bytes(MB)) for i in range(count)], codec=Codec.ZSTD)
    with BlockingCluster(server.bootstrap) as cluster:
        for _ in range(batches):
            append(cluster, name, made)
    command = [sys.executable, "-c", READ, server.bootstrap, name, str(batches * count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rows, most, grown = json.loads(done.stdout)
    assert rows == batches * count
    assert most < 10 * MB
    assert grown < 100 * MB, f"{grown / MB:.0f} MB more than for the first record"


def reading(cluster: BlockingCluster, topic: str, end: int) -> Reading:
    given = {"kafka.bootstrap.servers": "x:1", "subscribe": topic, "includeHeaders": "true"}
    return Reading(cluster, source_options(given, streaming=False), Range(TopicPartition(topic, 0), 0, end))


def test_header_name_that_is_not_utf_8_is_replaced(server: Server, name: str) -> None:
    create(server.bootstrap, name, 1)
    with BlockingCluster(server.bootstrap) as cluster:
        append(cluster, name, build_batch([Record(0, 5, None, b"v", (("a\udcff", b"1"), ("b", b"2")))]))
        (batch,) = reading(cluster, name, 1).batches()
    assert batch["headers"].to_pylist() == [[{"key": "a\ufffd", "value": b"1"}, {"key": "b", "value": b"2"}]]


def test_error_names_topic_partition_and_offset(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(server.bootstrap, name, 1)
    with BlockingCluster(server.bootstrap) as cluster:
        append(cluster, name, build_batch([Record(0, 5, None, b"sound")]))
        append(cluster, name, build_batch([Record(0, 5, None, b"damaged")]))
        fetch = partitions.fetch_async

        async def damaging(*given: object) -> object:
            answer = await fetch(*given)  # type: ignore[arg-type]
            answer.records = bytes(answer.records or b"").replace(b"damaged", b"Damaged")
            return answer

        monkeypatch.setattr(partitions, "fetch_async", damaging)
        with pytest.raises(errors.OncelogError, match=rf"Fetch of {name}-0 at offset .*the batch at offset 1: .*CRC"):
            list(reading(cluster, name, 2).batches())
