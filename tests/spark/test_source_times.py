"""The source without Spark: start and end by time, and the effect of filters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.reading.batch import BatchSource
from spark.judges import create
from spark.test_source import begin, first_batch, offsets_of, plain, planned, source, write
from support.servers import Server


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 2)
    return name


def test_start_and_end_by_time(server: Server, topic: str) -> None:
    for time in (10, 20, 30):
        write(server, topic, time)
    by_time = f'{{"{topic}":{{"0":20,"1":20}}}}'
    asked = {
        "startingTimestamp": "20",
        "startingOffsetsByTimestamp": by_time,
    }
    for option, value in asked.items():
        with pytest.raises(MisuseError, match=f"option {option}: {topic}-1 has no record at or after that time"):
            first_batch(source(server, topic, **{option: value}))
        found = source(server, topic, startingOffsetsByTimestampStrategy="Latest", **{option: value})
        assert plain(found.initialOffset()) == {topic: {"0": 1, "1": 0}}
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic}
    for option, value in (("endingTimestamp", "20"), ("endingOffsetsByTimestamp", by_time)):
        assert offsets_of(BatchSource({**given, option: value})) == [0]
    assert offsets_of(
        BatchSource(
            {
                **given,
                "startingTimestamp": "15",
                "endingTimestamp": "35",
                "startingOffsetsByTimestampStrategy": "latest",
            }
        )
    ) == [1, 2]
    with pytest.raises(
        MisuseError, match=f"option startingOffsetsByTimestamp must name exactly.*differs from them in {topic}-1"
    ):
        first_batch(source(server, topic, startingOffsetsByTimestamp=f'{{"{topic}":{{"0":20}}}}'))


def test_times_are_looked_up_within_the_isolation_level(server: Server, topic: str) -> None:
    """A record after an open transaction has an offset that the reader does not get yet."""
    write(server, topic, 10)
    begin(server, topic, "open", commit=None)
    write(server, topic, 30)
    write(server, topic, 30, partition=1)
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, "kafkaConsumer.pollTimeoutMs": "300"}
    all_of_it = {"kafka.isolation.level": "read_uncommitted"}
    ended = {**given, "endingTimestamp": "20"}
    assert offsets_of(BatchSource(ended)) == [0]
    assert offsets_of(BatchSource({**ended, **all_of_it})) == [0, 1]
    latest = {"startingTimestamp": "20", "startingOffsetsByTimestampStrategy": "latest"}
    made = source(server, topic, **latest)
    start = made.initialOffset()
    assert plain(start) == {topic: {"0": 1, "1": 0}}, "the last stable offset, if no such record exists yet"
    assert plain(made.latestOffset(start, ReadAllAvailable())) == {topic: {"0": 1, "1": 1}}
    made.stop()
    assert plain(source(server, topic, **latest, **all_of_it).initialOffset()) == {topic: {"0": 2, "1": 0}}
    for options, ranges in (({}, [(1, 0, 1)]), (all_of_it, [(0, 2, 3), (1, 0, 1)])):
        filtered = BatchSource({**given, **options})
        list(filtered.pushFilters([GreaterThan(("timestamp",), datetime.fromtimestamp(0.020, UTC))]))
        assert [(p.range.at.partition, p.range.start, p.range.end) for p in planned(filtered)] == ranges


def test_pushed_filters_narrow_the_read(server: Server, topic: str) -> None:
    for time in (10, 20, 30, 40):
        write(server, topic, time)
    write(server, topic, 50, partition=1)
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic}

    def left(*filters: Filter) -> list[tuple[int, int, int]]:
        made = BatchSource(given)
        list(made.pushFilters(list(filters)))
        return [(part.range.at.partition, part.range.start, part.range.end) for part in planned(made)]

    assert left(EqualTo(("partition",), 1)) == [(1, 0, 1)]
    assert left(GreaterThan(("offset",), 0), LessThan(("offset",), 3)) == [(0, 1, 3)]
    assert left(GreaterThan(("timestamp",), datetime.fromtimestamp(0.030, UTC))) == [(0, 3, 4), (1, 0, 1)]
    assert left(GreaterThan(("timestamp",), datetime.fromtimestamp(0.045, UTC))) == [(1, 0, 1)]
    assert left(EqualTo(("offset",), 4)) == left(LessThan(("offset",), 0)) == left(EqualTo(("topic",), "x")) == []
