"""The first batch of a new stream that starts at the end of a log."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.test_source import read, source, topic, write
from support.servers import Server

__all__ = ["topic"]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"TOPIC": {"0": -1, "1": -2}}'},
        {"startingOffsets": '{"TOPIC": {"0": 99, "1": 0}}', "failOnDataLoss": "false"},
        {"startingTimestamp": "99", "startingOffsetsByTimestampStrategy": "latest"},
        {
            "startingOffsetsByTimestamp": '{"TOPIC": {"0": 99, "1": 0}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "maxOffsetsPerTrigger": "1",
        },
    ],
)
def test_first_batch_reads_nothing_of_a_partition_that_starts_at_its_end(
    server: Server, topic: str, options: dict[str, str]
) -> None:
    """Spark does not store the start. If the first batch fails, its replay begins at another one."""
    options = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    write(server, topic, 5)
    write(server, topic, 5, partition=1)
    made = source(server, topic, **options)
    start = made.initialOffset()
    assert start[topic]["0"] == 1
    write(server, topic, 10)
    end = made.latestOffset(start, made.getDefaultReadLimit())
    assert made.initialOffset() == start
    assert end == {topic: {"0": 1, "1": 1}}
    assert len(read(made, start, end)) == end[topic]["1"] - start[topic]["1"]
    again = source(server, topic, **options)
    assert again.initialOffset()[topic]["0"] == 2
    assert len(read(again, again.initialOffset(), end)) == end[topic]["1"] - start[topic]["1"]
    for reader in (made, again):
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == {topic: {"0": 2, "1": 1}}
        reader.stop()


def test_available_now_of_latest_reads_what_arrives_until_its_first_batch(server: Server, topic: str) -> None:
    made = source(server, topic, startingOffsets="latest")
    made.prepareForTriggerAvailableNow()
    write(server, topic, 5)
    start = made.initialOffset()
    write(server, topic, 5)
    assert made.latestOffset(start, ReadAllAvailable()) == start == {topic: {"0": 1, "1": 0}}
    write(server, topic, 5)
    end = made.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 2, "1": 0}}
    assert made.latestOffset(end, ReadAllAvailable()) == end
    made.stop()
