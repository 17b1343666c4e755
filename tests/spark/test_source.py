"""The source against a broker, without Spark: the range of a batch, and what a task reads."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from oncelog import Admin, Producer
from oncelog.client.blocking import BlockingCluster
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.brokers import Brokers
from oncelog.spark.cluster.partitions import list_offsets, produce, record_batch
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner
from oncelog.spark.reading.batch import BatchSource
from oncelog.spark.reading.offsets import Offsets
from oncelog.spark.reading.source import Slice, check_source
from oncelog.spark.reading.stream import StreamSource
from oncelog.spark.reading.stream_base import StreamBase
from oncelog.spark.reading.task import DataLossError
from spark.judges import create
from spark.micro_batches import Query
from support.servers import Server

QUICK = {
    "fetchOffset.retryIntervalMs": "1",
    "kafkaConsumer.pollTimeoutMs": "300",
    "kafka.default.api.timeout.ms": "600",
}


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 2)
    return name


def source(server: Server, topic: str, **options: str) -> StreamSource:
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return StreamSource({**given, **options})


def read(made: StreamBase, start: Offsets, end: Offsets) -> list[str]:
    found = []
    for part in made.partitions(start, end):
        for batch in made.read(part):
            found += [value.decode() for value in batch.column("value").to_pylist()]
    return found


def first_batch(made: StreamSource) -> Offsets:
    """Return the end of a new query's first batch."""
    return made.latestOffset(made.initialOffset(), ReadAllAvailable())


def plain(offsets: Offsets) -> Offsets:
    """Return the offsets without the source's notes."""
    return {topic: parts for topic, parts in offsets.items() if parts}


def begin(server: Server, topic: str, value: str, *, commit: bool | None) -> Owner:
    """Write one record to partition 0 in a transaction that is ended or left open."""
    with BlockingCluster(server.bootstrap) as cluster:
        brokers = Brokers(cluster)
        owner: Owner = brokers.answer(op.InitProducerId(f"{topic}-{value}", 60_000))
        batch = record_batch(owner, [(None, value.encode())], 0)
        produce(cluster, owner, TopicPartition(topic, 0), batch, new_protocol=brokers.transactions.new_protocol)
        if commit is not None:
            brokers.answer(op.EndTxn(owner, commit))
            brokers.answer(op.AwaitEnded((owner,)))
    return owner


def write(server: Server, topic: str, timestamp: int, *, partition: int = 0, size: int = 1) -> None:
    """Write one record in its own batch."""
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b"x" * size, partition=partition, timestamp=timestamp).result(30)


def planned(made: BatchSource) -> list[Slice]:
    return [part for part in made.partitions() if isinstance(part, Slice)]


def offsets_of(made: BatchSource) -> list[int]:
    return [o for part in planned(made) for batch in made.read(part) for o in batch.column("offset").to_pylist()]


def test_aborted_rows_and_markers_are_skipped(server: Server, topic: str) -> None:
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


def test_batch_ends_at_an_open_transaction(server: Server, topic: str) -> None:
    begin(server, topic, "first", commit=True)
    owner = begin(server, topic, "open", commit=None)
    begin(server, topic, "after", commit=True)
    made = source(server, topic)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert read(made, start, end) == ["first"]
    with BlockingCluster(server.bootstrap) as cluster:
        Brokers(cluster).answer(op.EndTxn(owner, True))
        Brokers(cluster).answer(op.AwaitEnded((owner,)))
    assert read(made, end, made.latestOffset(end, ReadAllAvailable())) == ["open", "after"]
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
    assert made.reportLatestOffset() != position, "later records are available, and are not read"
    made.stop()


def test_log_that_ends_before_the_query_is_data_loss(server: Server, topic: str) -> None:
    begin(server, topic, "one", commit=True)
    later = {topic: {"0": 50, "1": 0}}
    strict = source(server, topic, **QUICK)
    with pytest.raises(DataLossError, match=r"ends at offset 2, but the query has read up to 50.*failOnDataLoss=false"):
        strict.latestOffset(later, ReadAllAvailable())
    with pytest.raises(DataLossError, match="no longer selects elsewhere-0"):
        strict.latestOffset({"elsewhere": {"0": 1}, **later}, ReadAllAvailable())
    lax = source(server, topic, failOnDataLoss="false", **QUICK)
    back = lax.latestOffset(later, ReadAllAvailable())
    assert plain(back) == {topic: {"0": 2, "1": 0}}, "the batch continues from the end of the log"
    assert lax.partitions(later, back) == []
    strict.stop()
    lax.stop()


@pytest.mark.parametrize("lax", [False, True])
def test_recreated_topic_is_detected_by_its_id(server: Server, topic: str, lax: bool) -> None:
    """The new log has grown beyond what the query has read, so offsets alone would not show the change."""
    begin(server, topic, "old", commit=True)
    made = source(server, topic, failOnDataLoss=str(not lax))
    position = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    planned = made.partitions(made.initialOffset(), position)
    with Admin(server.bootstrap) as admin:
        admin.delete_topics(topic)
        admin.create_topics(topic, 2, 1)
    begin(server, topic, "new", commit=True)
    begin(server, topic, "newer", commit=True)
    if lax:
        back = made.latestOffset(position, ReadAllAvailable())
        assert plain(back) == {topic: {"0": 0, "1": 0}}
        assert read(made, position, back) == []
        assert read(made, back, made.latestOffset(back, ReadAllAvailable())) == ["new", "newer"]
        assert list(made.read(planned[0])) == []
    else:
        with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
            made.latestOffset(position, ReadAllAvailable())
        with pytest.raises(DataLossError, match="created again after this batch was planned"):
            list(made.read(planned[0]))
    made.stop()


@pytest.mark.parametrize("lax", [False, True])
def test_deleted_topic_is_data_loss(server: Server, topic: str, name: str, lax: bool) -> None:
    other = f"{name}-other"
    create(server.bootstrap, other, 1)
    begin(server, topic, "old", commit=True)
    made = source(server, topic, failOnDataLoss=str(not lax), subscribe=f"{topic},{other}", **QUICK)
    start = made.initialOffset()
    position = made.latestOffset(start, ReadAllAvailable())
    planned = made.partitions(start, position)
    with Admin(server.bootstrap) as admin:
        admin.delete_topics(topic)
    begin(server, other, "other", commit=True)
    if lax:
        without = made.latestOffset(position, ReadAllAvailable())
        assert plain(without) == {other: {"0": 2}}
        assert read(made, position, without) == ["other"]
        assert made.latestOffset(without, ReadAllAvailable()) == without
        assert list(made.read(planned[0])) == []
        create(server.bootstrap, topic, 1)
        again = made.latestOffset(without, ReadAllAvailable())
        assert plain(again) == {other: {"0": 2}, topic: {"0": 0}}, "like a new one"
    else:
        with pytest.raises(DataLossError, match=f"no longer exist: {topic}-0, {topic}-1"):
            made.latestOffset(position, ReadAllAvailable())
        with pytest.raises(DataLossError, match=f"{topic}-0 no longer exists"):
            list(made.read(planned[0]))
    made.stop()


def test_topic_added_to_a_query_must_exist(server: Server, topic: str) -> None:
    """The checkpoint is older than the subscription. A topic that was never read cannot be lost, only misspelt."""
    start = {topic: {"0": 0, "1": 0}}
    made = source(server, topic, subscribe=f"{topic},{topic}-typo", **QUICK)
    with pytest.raises(MisuseError, match=f"option subscribe: topic '{topic}-typo' does not exist; create it with"):
        made.latestOffset(start, ReadAllAvailable())
    made.stop()


def test_end_offset_that_decreases_is_requested_again(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started reports a lower end than before."""
    begin(server, topic, "one", commit=True)
    made = source(server, topic, **QUICK)
    position = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    asked: list[int] = []

    def outdated(*arguments: Any) -> dict[TopicPartition, int]:
        asked.append(1)
        found = list_offsets(*arguments)
        return dict.fromkeys(found, 0) if len(asked) < 3 else found

    monkeypatch.setattr(partitions, "list_offsets", outdated)
    assert made.latestOffset(position, ReadAllAvailable()) == position
    assert len(asked) == 3, "fetchOffset.numRetries"
    made.stop()


def test_available_now_ignores_an_end_offset_from_a_starting_broker(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(server, topic, "one", commit=True)
    made = source(server, topic, **QUICK)
    position = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    begin(server, topic, "two", commit=True)
    with monkeypatch.context() as patched:
        patched.setattr(partitions, "list_offsets", lambda _, wanted, *rest: dict.fromkeys(wanted, 0))
        made.prepareForTriggerAvailableNow()
    end = made.latestOffset(position, ReadAllAvailable())
    assert read(made, position, end) == ["two"]
    begin(server, topic, "three", commit=True)
    assert made.latestOffset(end, ReadAllAvailable()) == end, "the retries end"
    made.stop()


@pytest.mark.parametrize("lax", [False, True])
def test_offset_temporarily_out_of_range_is_not_data_loss(
    server: Server, topic: str, lax: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(server, topic, "one", commit=True)
    made = source(server, topic, failOnDataLoss=str(not lax), **(QUICK | {"kafkaConsumer.pollTimeoutMs": "60000"}))
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    fetch, asked = partitions.fetch_async, []

    async def outdated(*arguments: Any) -> PartitionData:
        asked.append(1)
        if len(asked) == 1:
            return PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return await fetch(*arguments)

    monkeypatch.setattr(partitions, "fetch_async", outdated)
    assert read(made, start, end) == ["one"]
    made.stop()


@pytest.mark.parametrize("lax", [False, True])
def test_records_deleted_by_retention_are_data_loss(server: Server, topic: str, lax: bool) -> None:
    for value in ("one", "two", "three"):
        begin(server, topic, value, commit=True)
    made = source(server, topic, failOnDataLoss=str(not lax), **QUICK)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    with Admin(server.bootstrap) as admin:
        admin.delete_records({(topic, 0): 4})
    given = {"startingOffsets": f'{{"{topic}":{{"0":1,"1":0}}}}', "failOnDataLoss": str(not lax)}
    if lax:
        assert read(made, start, end) == ["three"]
        assert plain(source(server, topic, **given).initialOffset()) == {topic: {"0": 4, "1": 0}}
        assert read(made, {topic: {"1": 0}}, plain(end)) == ["three"]
        assert read(made, start, {topic: {"0": 9, "1": 0}}) == ["three"], "no records before the end of the log"
    else:
        with pytest.raises(DataLossError, match="begins at offset 4, so offsets 0 to 3 of this batch are lost"):
            read(made, start, end)
        with pytest.raises(MisuseError, match=r"option startingOffsets: offset 1 of .* is before its start 4"):
            first_batch(source(server, topic, **given))
        with pytest.raises(DataLossError, match="is new to the query, but begins at offset 4, not at 0"):
            made.partitions({topic: {"1": 0}}, plain(end))
        with pytest.raises(
            DataLossError, match=r"ends at offset 6, but this batch ends at 9.*kafkaConsumer.pollTimeoutMs = 300"
        ):
            read(made, {topic: {"0": 4, "1": 0}}, {topic: {"0": 9, "1": 0}})
        with pytest.raises(DataLossError, match="ends at offset 6, so offsets 7 to 8 of this batch are lost"):
            read(made, {topic: {"0": 7, "1": 0}}, {topic: {"0": 9, "1": 0}})
    made.stop()


def test_new_partitions_are_read_from_their_beginning(server: Server, topic: str) -> None:
    begin(server, topic, "zero", commit=True)
    made = source(server, topic)
    end = made.latestOffset({topic: {"1": 0}}, ReadAllAvailable())
    assert read(made, {topic: {"1": 0}}, end) == ["zero"]
    with Admin(server.bootstrap) as admin:
        admin.create_partitions(topic, 3)
    assert plain(made.latestOffset(end, ReadAllAvailable())) == {topic: {"0": 2, "1": 0, "2": 0}}
    made.stop()


def test_topics_that_match_the_pattern_later_are_read(server: Server, name: str) -> None:
    made = StreamSource({"kafka.bootstrap.servers": server.bootstrap, "subscribePattern": f"{name}-[ab]"})
    assert made.initialOffset() == {}, "no topic matches yet"
    for letter in "bc":
        create(server.bootstrap, f"{name}-{letter}", 1)
    begin(server, f"{name}-b", "here", commit=True)
    end = made.latestOffset({}, ReadAllAvailable())
    assert plain(end) == {f"{name}-b": {"0": 2}}
    assert read(made, {}, end) == ["here"]
    made.stop()


def test_batch_waits_for_min_offsets_per_trigger(server: Server, topic: str) -> None:
    made = source(server, topic, minOffsetsPerTrigger="4", maxOffsetsPerTrigger="5")
    limit, start = made.getDefaultReadLimit(), made.initialOffset()
    assert limit == ReadMaxRows(5)
    begin(server, topic, "one", commit=True)
    first = made.latestOffset(start, limit)
    assert first[topic]["0"] == 2, "as in the connector, a query's first batch does not wait"
    assert made.latestOffset(first, limit) == first
    begin(server, topic, "two", commit=True)
    assert made.latestOffset(first, limit) == first
    assert made.latestOffset(first, ReadAllAvailable())[topic]["0"] == 4, "Trigger.Once asks for all"
    begin(server, topic, "three", commit=True)
    assert made.latestOffset(first, limit)[topic]["0"] == 6
    begin(server, topic, "four", commit=True)
    at_once = source(server, topic, minOffsetsPerTrigger="100", maxTriggerDelay="0s")
    assert at_once.getDefaultReadLimit() == ReadMaxRows((1 << 63) - 1)
    at_once.latestOffset(start, at_once.getDefaultReadLimit())
    assert at_once.latestOffset(first, at_once.getDefaultReadLimit())[topic]["0"] == 8, "the delay is over"
    made.prepareForTriggerAvailableNow()
    assert made.latestOffset({topic: {"0": 6, "1": 0}}, limit)[topic]["0"] == 8, (
        "AvailableNow reads the available records"
    )
    for each in (made, at_once):
        each.stop()


def test_reader_hides_push_filters_from_pyspark() -> None:
    """PySpark rejects readers that have pushFilters unless it is configured to push them."""
    made = BatchSource({"kafka.bootstrap.servers": "localhost:9", "subscribe": "t"})
    assert made.pushFilters.__func__ is DataSourceReader.pushFilters
    assert pickle.loads(pickle.dumps(made)).options == made.options


def test_batch_read_ends_at_the_last_readable_offset(server: Server, topic: str) -> None:
    begin(server, topic, "one", commit=True)
    begin(server, topic, "open", commit=None)
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic}
    beyond = {"endingOffsets": f'{{"{topic}":{{"0":3,"1":-1}}}}'}
    with pytest.raises(MisuseError, match=f"option endingOffsets: offset 3 of {topic}-0 is after its end 2"):
        BatchSource({**given, **beyond}).partitions()
    assert offsets_of(BatchSource({**given, **beyond, "failOnDataLoss": "false"})) == [0]
    assert offsets_of(BatchSource({**given, **beyond, "kafka.isolation.level": "read_uncommitted"})) == [0, 2]
    with pytest.raises(
        MisuseError, match=r"startingTimestamp and endingOffsets: .*the start offset 1 of .* is after its end offset 0"
    ):
        BatchSource(
            {
                **given,
                "startingTimestamp": "99",
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsets": f'{{"{topic}":{{"0":0,"1":0}}}}',
            }
        ).partitions()


def test_several_answers_are_read_in_order(server: Server, topic: str) -> None:
    """Answers of at most two batches: the next one is requested while one is decoded."""
    for number in range(12):
        write(server, topic, number, size=700)
    made = source(server, topic, **{"kafka.max.partition.fetch.bytes": "1500", "maxRecordsPerPartition": "10"})
    parts = made.partitions({topic: {"0": 1, "1": 0}}, {topic: {"0": 12, "1": 0}})
    assert [(part.range.start, part.range.end) for part in parts] == [(1, 6), (6, 12)]
    tables = [list(made.read(part)) for part in parts]
    assert all(len(batches) > 2 for batches in tables), "one answer does not hold all"
    seen = [offset for batches in tables for batch in batches for offset in batch.column("offset").to_pylist()]
    assert seen == list(range(1, 12))


def test_abandoned_reader_closes_its_connections(server: Server, topic: str) -> None:
    for number in range(4):
        write(server, topic, number, size=700)
    made = source(server, topic, **{"kafka.max.partition.fetch.bytes": "800"})
    (part,) = made.partitions({topic: {"0": 0, "1": 0}}, {topic: {"0": 4, "1": 0}})
    batches = made.read(part)
    assert next(batches).num_rows == 1
    batches.close()


def test_misuse_of_a_stream_is_raised_at_the_first_call() -> None:
    made = StreamSource({"kafka.bootstrap.servers": "localhost:9", "subscribe": "t", "endingOffsets": "latest"})
    made.stop()
    for call in (made.initialOffset, made.getDefaultReadLimit, made.prepareForTriggerAvailableNow):
        with pytest.raises(MisuseError, match="endingOffsets is for batch reads"):
            call()


def test_load_contacts_the_brokers(server: Server, topic: str) -> None:
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, **QUICK}
    assert check_source(given).subscription.topics == (topic,)
    with pytest.raises(MisuseError, match=f"option subscribe: topic '{topic}-typo' does not exist"):
        check_source({**given, "subscribe": f"{topic},{topic}-typo"})
    check_source({**given, "subscribe": f"{topic}-typo", "failOnDataLoss": "false"})
    del given["subscribe"]
    check_source({**given, "subscribePattern": "nothing-yet.*"})
    with pytest.raises(MisuseError, match=f"option assign: {topic}-2 does not exist; topic '{topic}' has 2 partitions"):
        check_source({**given, "assign": f'{{"{topic}":[0,2]}}'})


def test_planning_and_committing_import_nothing_heavy() -> None:
    code = (
        "import sys, oncelog.spark.datasource, oncelog.spark.writing.sink\n"
        "import oncelog.spark.reading.batch, oncelog.spark.reading.stream\n"
        "print(sorted({'pyarrow', 'numba', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    alone = "import sys, pyspark.sql.datasource; print(sorted({'pyarrow','numba','pandas','numpy'} & set(sys.modules)))"
    ours, without = (
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True).stdout
        for text in (code, alone)
    )
    assert ours == without, "imports of PySpark itself are not checked"


def test_batch_source_closes_its_connections_after_planning(server: Server, topic: str) -> None:
    made = BatchSource({"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic})
    begin(server, topic, "here", commit=True)
    assert len(made.partitions()) == 1
    assert made._cluster is None


@pytest.mark.parametrize("option", ["subscribe", "assign"])
def test_missing_topic_is_an_error_of_its_option(server: Server, name: str, option: str) -> None:
    wanted = f"{name}-typo" if option == "subscribe" else f'{{"{name}-typo": [0]}}'
    made = BatchSource({"kafka.bootstrap.servers": server.bootstrap, option: wanted, **QUICK})
    with pytest.raises(MisuseError, match=f"option {option}: topic '{name}-typo' does not exist"):
        made.partitions()
    assert made._cluster is None
