"""The reader for PySpark 4.0 and 4.1, called as Spark calls it. It needs none of these versions."""

from __future__ import annotations

import logging

import pytest

from oncelog import Producer
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.reading.older_stream import OlderStreamSource
from spark.judges import create
from support.servers import Server

Ends = dict[str, dict[str, int]]


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 2)
    return name


def source(server: Server, topic: str, **options: str) -> OlderStreamSource:
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return OlderStreamSource({**given, **options})


def fill(server: Server, topic: str, count: int, partition: int = 0) -> None:
    with Producer(server.bootstrap) as producer:
        for _ in range(count):
            producer.send(topic, b"x", partition=partition)
        producer.flush(30)


def read(made: OlderStreamSource, start: Ends, end: Ends) -> int:
    return sum(batch.num_rows for part in made.partitions(start, end) for batch in made.read(part))


def rest(made: OlderStreamSource, start: Ends) -> list[int]:
    """Run batches as Spark does, until there is no new end. Return their sizes."""
    sizes: list[int] = []
    while (end := made.latestOffset()) != start:
        sizes.append(read(made, start, end))
        start = end
    return sizes


def test_new_query_reads_in_batches_of_the_limit(server: Server, topic: str) -> None:
    fill(server, topic, 7)
    made = source(server, topic, maxOffsetsPerTrigger="3")
    first = made.latestOffset()
    start = made.initialOffset()
    assert start[topic] == {"0": 0, "1": 0}
    assert read(made, start, first) == 3
    fill(server, topic, 1)
    assert rest(made, first) == [3, 2]
    made.stop()


def test_new_query_loses_no_records_between_spark_s_first_two_calls(server: Server, topic: str) -> None:
    """Spark asks for the end before the beginning, and startingOffsets=latest moves in between."""
    fill(server, topic, 5)
    made = source(server, topic, startingOffsets="latest")
    end = made.latestOffset()
    fill(server, topic, 4)
    start = made.initialOffset()
    assert start[topic] == end[topic] == {"0": 5, "1": 0}
    assert read(made, start, end) == 0
    assert rest(made, end) == [4]
    made.stop()


@pytest.mark.parametrize("committed", [True, False])
def test_restarted_query_continues_at_the_checkpoint(server: Server, topic: str, committed: bool) -> None:
    fill(server, topic, 9)
    made = source(server, topic, maxOffsetsPerTrigger="2", startingOffsets="latest")
    start, end = {topic: {"0": 2, "1": 0}}, {topic: {"0": 4, "1": 0}}
    assert not made.partitions(end, end), "Spark passes the last end of the checkpoint"
    if not committed:
        assert read(made, start, end) == 2, "a replay"
    assert rest(made, end) == [2, 2, 1]
    made.stop()


def test_batches_whose_partitions_spark_does_not_need_are_passed(server: Server, topic: str) -> None:
    """An optimized plan may need no rows, so that Spark never calls `partitions`."""
    fill(server, topic, 7)
    made = source(server, topic, maxOffsetsPerTrigger="3")
    assert [made.latestOffset()[topic]["0"] for _ in range(4)] == [3, 6, 7, 7]
    made.stop()


def test_batch_waits_for_min_offsets_per_trigger(server: Server, topic: str) -> None:
    fill(server, topic, 1)
    made = source(server, topic, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="5")
    end = made.latestOffset()
    assert end[topic]["0"] == 1, "a query's first batch does not wait"
    fill(server, topic, 2)
    assert made.latestOffset() == end
    fill(server, topic, 5)
    assert rest(made, end) == [5]
    made.stop()


def test_query_does_not_go_back(server: Server, topic: str) -> None:
    """Spark's wrapper for AvailableNow calls `latestOffset` first, and passes the position of the checkpoint later."""
    fill(server, topic, 9)
    for lax in ("true", "false"):
        made = source(server, topic, maxOffsetsPerTrigger="3", failOnDataLoss=lax)
        end = made.latestOffset()
        with pytest.raises(MisuseError, match=r"triggerAvailableNowWrapper.enabled=false, delete the newest file"):
            made.partitions({topic: {"0": 6, "1": 0}}, end)
        made.stop()


def test_misuse_is_raised_at_the_first_call(server: Server, topic: str) -> None:
    for call in (
        lambda made: made.latestOffset(),
        lambda made: made.initialOffset(),
        lambda made: made.partitions({topic: {"0": 1}}, {topic: {"0": 1}}),
    ):
        made = source(server, topic, endingOffsets="latest")
        with pytest.raises(MisuseError, match="endingOffsets is for batch reads"):
            call(made)
        made.stop()


def test_query_that_ends_after_one_batch_reports_unread_records(
    server: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, topic, 7)
    with caplog.at_level(logging.WARNING, logger="oncelog.spark"):
        complete = source(server, topic)
        read(complete, complete.initialOffset(), complete.latestOffset())
        complete.stop()
        assert not caplog.records
        made = source(server, topic, maxOffsetsPerTrigger="3")
        read(made, made.initialOffset(), made.latestOffset())
        made.stop()
    assert "after one batch, and 4 offsets are unread" in caplog.text
