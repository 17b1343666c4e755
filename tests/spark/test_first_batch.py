"""The first batch of a new stream. Spark stores only its end, so the source stores its start with the end."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog import Admin
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.reading.offsets import Offsets
from oncelog.spark.reading.older_stream import OlderStreamSource
from oncelog.spark.reading.stream import StreamSource
from oncelog.spark.reading.task import DataLossError
from spark.test_source import QUICK, read, topic, write
from support.servers import Server

__all__ = ["topic"]

STARTS: list[dict[str, str]] = [
    {},
    {"startingOffsets": "earliest"},
    {"startingOffsets": '{"TOPIC": {"0": 3, "1": -2}}'},
    {"startingOffsets": '{"TOPIC": {"0": -1, "1": 1}}'},
    {"startingOffsets": '{"TOPIC": {"0": 99, "1": 0}}', "failOnDataLoss": "false"},
    {"startingTimestamp": "3"},
    {"startingTimestamp": "99", "startingOffsetsByTimestampStrategy": "latest"},
    {"startingOffsetsByTimestamp": '{"TOPIC": {"0": 4, "1": 2}}', "maxOffsetsPerTrigger": "5"},
    {"subscribe": "", "subscribePattern": "TOPIC.*", "startingOffsets": "earliest"},
    {"subscribe": "", "assign": '{"TOPIC": [0]}', "startingOffsets": "earliest", "minOffsetsPerTrigger": "100"},
]
KINDS = pytest.mark.parametrize("kind", [StreamSource, OlderStreamSource], ids=["4.2", "4.0"])


def stream(kind: type[Any], server: Server, topic: str, options: dict[str, str]) -> Any:
    named = {"subscribe": topic} | {name: value.replace("TOPIC", topic) for name, value in options.items()}
    given = {"kafka.bootstrap.servers": server.bootstrap, **QUICK, **named}
    return kind({name: value for name, value in given.items() if value})


def plan(made: Any) -> tuple[Offsets, Offsets]:
    """Return start and end of the first batch, with Spark's calls for this reader."""
    if isinstance(made, OlderStreamSource):
        end = made.latestOffset()
        return made.initialOffset(), end
    limit, start = made.getDefaultReadLimit(), made.initialOffset()
    return start, made.latestOffset(start, limit)


def stored(end: Offsets) -> Offsets:
    """Return the end as a restarted query reads it from the checkpoint."""
    return json.loads(json.dumps(end))  # type: ignore[no-any-return]


def replay(made: Any, end: Offsets) -> list[str]:
    """Run the first batch again, with Spark's calls for a restarted query, and return its values."""
    if isinstance(made, OlderStreamSource):
        assert read(made, end, end) == []
    return read(made, made.initialOffset(), end)


def rest(made: Any, end: Offsets) -> list[str]:
    """Return the values after a batch."""
    values: list[str] = []
    older = isinstance(made, OlderStreamSource)
    while (after := made.latestOffset() if older else made.latestOffset(end, made.getDefaultReadLimit())) != end:
        values += read(made, end, after)
        end = after
    return values


def fill(server: Server, topic: str, first: int, count: int) -> None:
    """Write records to both partitions. Their size is their number, and so is their time."""
    for number in range(first, first + count):
        for partition in (0, 1):
            write(server, topic, number, partition=partition, size=number)


@KINDS
@pytest.mark.parametrize("options", STARTS, ids=str)
def test_failed_first_batch_is_replayed_from_its_start(
    server: Server, topic: str, kind: type[Any], options: dict[str, str]
) -> None:
    """Records arrive between all calls, and the restarted query has another startingOffsets."""
    fill(server, topic, 1, 5)
    made = stream(kind, server, topic, options)
    start, end = plan(made)
    fill(server, topic, 6, 2)
    first = read(made, start, end)
    made.stop()

    kept = {name: value for name, value in options.items() if not name.startswith("starting")}
    for changed in ({}, {"startingOffsets": "latest"}, {"startingOffsets": "earliest"}, {"startingTimestamp": "7"}):
        again = stream(kind, server, topic, (options if not changed else kept) | changed)
        assert replay(again, stored(end)) == first, changed
        later = rest(again, stored(end))
        again.stop()
        expected = [7] * len({at for part in end.values() for at in part})
        assert [len(value) for value in later if len(value) == 7] == expected, "all later records, once"


@KINDS
@pytest.mark.parametrize("options", [option for option in STARTS if "latest" not in str(option)], ids=str)
def test_loss_before_the_replay_of_a_first_batch_is_reported(
    server: Server, topic: str, kind: type[Any], options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(kind, server, topic, options)
    fill(server, topic, 1, 9)
    if not options:
        made.initialOffset()
        fill(server, topic, 10, 3)
    start, end = plan(made)
    begun, ends = start[topic]["0"], end[topic]["0"]
    if begun == ends:  # nothing of partition 0 is in the batch
        begun, ends = start[topic]["1"], end[topic]["1"]
    partition = 0 if start[topic]["0"] == begun and end[topic]["0"] == ends else 1
    made.stop()
    with Admin(server.bootstrap) as admin:
        admin.delete_records({(topic, partition): ends - 1})
    lost = f"{topic}-{partition} begins at offset {ends - 1}, so offsets {begun} to {ends - 2} of this batch are lost"
    strict = stream(kind, server, topic, options | {"failOnDataLoss": "true"})
    with pytest.raises(DataLossError, match=lost):
        replay(strict, stored(end))
    strict.stop()
    lax = stream(kind, server, topic, options | {"failOnDataLoss": "false"})
    with caplog.at_level(logging.WARNING, logger="oncelog.spark"):
        assert len(read(lax, start, end)) == sum(
            end[topic][at] - (ends - 1 if at == str(partition) else start[topic][at]) for at in end[topic]
        )
    assert lost in caplog.text, "the skipped offsets, and the reason"
    lax.stop()


@KINDS
@pytest.mark.parametrize("change", ["the log", "a partition", "the topic"])
def test_replay_of_a_first_batch_does_not_need_its_starting_offsets(
    server: Server, topic: str, kind: type[Any], change: str
) -> None:
    """The options select nothing by then, because of retention, a new partition, or a deleted topic."""
    fill(server, topic, 1, 4)
    options = {"startingOffsets": f'{{"{topic}": {{"0": 1, "1": 1}}}}'}
    made = stream(kind, server, topic, options)
    start, end = plan(made)
    assert len(read(made, start, end)) == 6
    made.stop()
    with Admin(server.bootstrap) as admin:
        if change == "the log":
            admin.delete_records({(topic, 0): 3})
        elif change == "a partition":
            admin.create_partitions(topic, 3)
        else:
            admin.delete_topics(topic)
    again = stream(kind, server, topic, options | {"failOnDataLoss": "false"})
    found = replay(again, stored(end))
    assert len(found) == {"the log": 4, "a partition": 6, "the topic": 0}[change]
    again.stop()

    new = stream(kind, server, topic, options | {"failOnDataLoss": str(change != "the log")})
    if change == "the log":
        assert plan(new)[1][topic] == {"0": 4, "1": 4}
    else:
        with pytest.raises(MisuseError, match="option s"):  # a new query needs them
            plan(new)
    new.stop()


@KINDS
def test_first_batch_that_another_version_planned_starts_where_the_options_say(
    server: Server, topic: str, kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its end has no notes: Spark's connector, or oncelog until November 2026."""
    fill(server, topic, 1, 5)
    end = {topic: {"0": 4, "1": 5}}
    with caplog.at_level(logging.WARNING, logger="oncelog.spark"):
        made = stream(kind, server, topic, {"startingOffsets": f'{{"{topic}": {{"0": 2, "1": 2}}}}'})
        assert len(replay(made, end)) == 5
        assert [len(value) for value in rest(made, end)] == [5]
        made.stop()
        assert (
            f"starts at the offsets that option startingOffsets selects now: {{'{topic}': {{'0': 2, '1': 2}}}}"
            in caplog.text
        )
        caplog.clear()
        made = stream(kind, server, topic, {})
        assert replay(made, end) == [], "it planned an empty first batch for latest"
        assert [len(value) for value in rest(made, end)] == [5]
        made.stop()
        assert not caplog.records


def test_available_now_of_latest_reads_what_arrives_after_its_first_call(server: Server, topic: str) -> None:
    made = stream(StreamSource, server, topic, {})
    made.prepareForTriggerAvailableNow()
    write(server, topic, 5)
    start = made.initialOffset()
    assert start[topic] == {"0": 1, "1": 0}
    write(server, topic, 5)
    end = made.latestOffset(start, ReadAllAvailable())
    assert len(read(made, start, end)) == 1
    write(server, topic, 5)
    after = made.latestOffset(end, ReadAllAvailable())
    assert after[topic]["0"] in (2, 3)
    assert made.latestOffset(after, ReadAllAvailable()) == after
    made.stop()


def test_query_without_new_records_returns_the_offsets_that_spark_has(server: Server, topic: str) -> None:
    """Spark compares text, and runs a batch if it differs. Only the first batch has starts."""
    fill(server, topic, 1, 2)
    made = stream(StreamSource, server, topic, {"startingOffsets": "earliest"})
    start, end = plan(made)
    assert json.dumps(made.latestOffset(stored(end), ReadAllAvailable())) == json.dumps(end)
    write(server, topic, 3)
    after = made.latestOffset(stored(end), ReadAllAvailable())
    assert [name.split("(")[-1].split()[0] for name in list(end)[1:]] == ["id", "starts"]
    assert list(after) == list(start) == list(end)[:2]
    old = {topic: {"0": 3, "1": 2}}
    assert made.latestOffset(old, ReadAllAvailable()) == old, "a checkpoint of an older version or another connector"
    made.stop()


@KINDS
def test_line_of_a_checkpoint_is_accepted_as_starting_offsets(server: Server, topic: str, kind: type[Any]) -> None:
    """A new checkpoint begins where an old one ends, as the pages advise after a checkpoint was lost."""
    fill(server, topic, 1, 5)
    made = stream(kind, server, topic, {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"})
    end = plan(made)[1]
    made.stop()
    new = stream(kind, server, topic, {"startingOffsets": json.dumps(end)})
    start, after = plan(new)
    assert sorted(map(len, read(new, start, after))) == [4, 4, 5, 5]
    new.stop()
