"""The source against a broker, without Spark: what a batch covers, and what a task reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from oncelog.client.blocking import BlockingCluster
from oncelog.spark.brokers import Brokers
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner
from oncelog.spark.partitions import produce, record_batch
from oncelog.spark.source import BatchSource, DataLossError, StreamSource
from spark.judges import create
from spark.micro_batches import Query
from support.servers import Server

QUICK = {"fetchOffset.retryIntervalMs": "1", "kafkaConsumer.pollTimeoutMs": "300"}


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 2)
    return name


def source(server: Server, topic: str, **options: str) -> StreamSource:
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return StreamSource({**given, **options})


def read(made: StreamSource, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> list[str]:
    found = []
    for part in made.partitions(start, end):
        for batch in made.read(part):
            found += [value.decode() for value in batch.column("value").to_pylist()]
    return found


def begin(server: Server, topic: str, value: str, *, commit: bool | None) -> Owner:
    """A transaction that writes one record into partition 0, and is ended or left open."""
    with BlockingCluster(server.bootstrap) as cluster:
        brokers = Brokers(cluster)
        owner: Owner = brokers.answer(op.InitProducerId(f"{topic}-{value}", 60_000))
        batch = record_batch(owner, [(None, value.encode())], 0)
        produce(cluster, owner, TopicPartition(topic, 0), batch, new_protocol=brokers.new_protocol)
        if commit is not None:
            brokers.answer(op.EndTxn(owner, commit))
            brokers.answer(op.AwaitEnded((owner,)))
    return owner


def test_aborted_rows_and_markers_are_passed_over(server: Server, topic: str) -> None:
    begin(server, topic, "gone", commit=False)
    begin(server, topic, "here", commit=True)
    begin(server, topic, "gone too", commit=False)
    made = source(server, topic)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert end[topic]["0"] == 6, "three records, three markers"
    assert read(made, start, end) == ["here"]
    assert read(source(server, topic, **{"kafka.isolation.level": "read_uncommitted"}), start, end) == [
        "gone",
        "here",
        "gone too",
    ]
    made.stop()


def test_a_batch_ends_where_a_transaction_is_open(server: Server, topic: str) -> None:
    begin(server, topic, "first", commit=True)
    owner = begin(server, topic, "open", commit=None)
    begin(server, topic, "behind", commit=True)
    made = source(server, topic)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert read(made, start, end) == ["first"]
    with BlockingCluster(server.bootstrap) as cluster:
        Brokers(cluster).answer(op.EndTxn(owner, True))
        Brokers(cluster).answer(op.AwaitEnded((owner,)))
    assert read(made, end, made.latestOffset(end, ReadAllAvailable())) == ["open", "behind"]
    made.stop()


def test_limits_and_available_now(server: Server, topic: str, tmp_path: Path) -> None:
    query = Query(server.bootstrap, topic, f"sink-{topic}", tmp_path / "checkpoint", 100)
    query.run(2)
    made = source(server, topic, maxOffsetsPerTrigger="30")
    assert made.getDefaultReadLimit() == ReadMaxRows(30)
    made.prepareForTriggerAvailableNow()
    query.run(3)
    position, seen = made.initialOffset(), []
    while (end := made.latestOffset(position, made.getDefaultReadLimit())) != position:
        assert sum(end[topic].values()) - sum(position[topic].values()) <= 30
        seen += read(made, position, end)
        position = end
    assert sorted(seen) == sorted(value for batch in (0, 1) for value in query.values(batch, 1)[0])
    assert made.reportLatestOffset() != position, "what came after the start is there, and is not read"
    made.stop()


def test_a_log_that_ends_before_the_query_is_data_loss(server: Server, topic: str) -> None:
    begin(server, topic, "one", commit=True)
    later = {topic: {"0": 50, "1": 0}}
    strict = source(server, topic, **QUICK)
    with pytest.raises(DataLossError, match=r"ends at 2, the query has read to 50.*failOnDataLoss=false"):
        strict.latestOffset(later, ReadAllAvailable())
    with pytest.raises(DataLossError, match="are gone: elsewhere-0"):
        strict.latestOffset({"elsewhere": {"0": 1}, **later}, ReadAllAvailable())
    lax = source(server, topic, failOnDataLoss="false", **QUICK)
    back = lax.latestOffset(later, ReadAllAvailable())
    assert back == {topic: {"0": 2, "1": 0}}, "it goes on from where the log ends"
    assert lax.partitions(later, back) == []
    strict.stop()
    lax.stop()


def test_new_partitions_are_read_from_their_beginning(server: Server, topic: str) -> None:
    begin(server, topic, "zero", commit=True)
    made = source(server, topic)
    end = made.latestOffset({topic: {"1": 0}}, ReadAllAvailable())
    assert read(made, {topic: {"1": 0}}, end) == ["zero"]
    made.stop()


def test_planning_and_committing_import_nothing_heavy() -> None:
    code = (
        "import sys, oncelog.spark.datasource, oncelog.spark.sink, oncelog.spark.source\n"
        "print(sorted({'pyarrow', 'numba', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    alone = "import sys, pyspark.sql.datasource; print(sorted({'pyarrow','numba','pandas','numpy'} & set(sys.modules)))"
    ours, without = (
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True).stdout
        for text in (code, alone)
    )
    assert ours == without, "what PySpark itself imports is not ours to avoid"


def test_a_planned_batch_read_has_hung_up(server: Server, topic: str) -> None:
    made = BatchSource({"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic})
    begin(server, topic, "here", commit=True)
    assert len(made.partitions()) == 1
    assert made._cluster is None


@pytest.mark.parametrize("option", ["subscribe", "assign"])
def test_a_topic_that_is_not_there_is_an_error_of_its_option(server: Server, name: str, option: str) -> None:
    wanted = f"{name}-typo" if option == "subscribe" else f'{{"{name}-typo": [0]}}'
    made = BatchSource({"kafka.bootstrap.servers": server.bootstrap, option: wanted})
    with pytest.raises(MisuseError, match=f"option {option}: there is no topic '{name}-typo'"):
        made.partitions()
    assert made._cluster is None
