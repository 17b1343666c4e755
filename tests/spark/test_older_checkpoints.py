"""Checkpoints whose offsets are not those of the committed batches: an older copy, a second copy, or lost files."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from oncelog import Producer
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.ownership import Permission, already_committed
from oncelog.spark.commit.record import STREAM, Record, Source
from oncelog.spark.writing.checkpoint import Planned, planned
from oncelog.spark.writing.driver import look
from oncelog.spark.writing.options import sink_options
from spark.judges import create
from spark.micro_batches import Query
from spark.test_sink_crashes import check
from spark.test_two_queries import checkpoint_of
from support.servers import Server


class Checkpoint:
    """A checkpoint's folder, with the files that Spark writes before it plans a batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, query: str) -> Checkpoint:
        checkpoint_of(folder, query)
        (folder / "offsets").mkdir()
        return cls(folder)

    def copy(self, folder: Path) -> Checkpoint:
        return Checkpoint(shutil.copytree(self.folder, folder))

    def plan(self, batch: int, end: int, *, time_ms: int = 1_700_000_000_000, version: str = "v1") -> None:
        lines = (
            version,
            f'{{"batchWatermarkMs":0,"batchTimestampMs":{time_ms},"conf":{{}}}}',
            f'{{"in":{{"0":{end}}}}}',
        )
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines))
        (self.folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")

    def lose(self, batch: int) -> None:
        (self.folder / "offsets" / str(batch)).unlink()


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path) -> Query:
    create(server.bootstrap, name)
    return Query(server.bootstrap, name, f"sink-{name}", tmp_path / "committed", 6)


@pytest.fixture
def checkpoint(query: Query, tmp_path: Path) -> Checkpoint:
    """Return the checkpoint after two batches, of which Spark has forgotten the second commit."""
    made = Checkpoint.create(tmp_path / "checkpoint", query.query)
    query.options["checkpointlocation"] = str(made.folder)
    made.plan(0, 66)
    query.run(1)
    made.plan(1, 132)
    query.batch(1)
    return made


def test_replay_of_the_same_offsets_is_skipped(query: Query, checkpoint: Checkpoint, tmp_path: Path) -> None:
    query.batch(1)
    checkpoint.plan(1, 132, time_ms=1_800_000_000_000)
    query.batch(1)
    query.options["checkpointlocation"] = f"file:{checkpoint.copy(tmp_path / 'copied').folder}"
    query.batch(1)
    query.log(1)
    check(query, 2)


@pytest.mark.parametrize("lost", ["end", "start"])
def test_batch_planned_again_with_other_offsets_is_rejected(query: Query, checkpoint: Checkpoint, lost: str) -> None:
    checkpoint.plan(1, 165) if lost == "end" else checkpoint.plan(0, 33)
    said = rf"option checkpointLocation: the sink has committed batch 1 with other offsets than .*{checkpoint.folder}"
    for _ in range(2):
        with pytest.raises(MisuseError, match=said) as refused:
            query.batch(1)
        assert "startingOffsets, takeOver=true" in str(refused.value)
        assert "acceptReplay=1" in str(refused.value)
    checkpoint.plan(0, 66)
    checkpoint.plan(1, 132)
    query.run(2)
    checkpoint.plan(2, 198)
    query.run(3)
    check(query, 3)


def test_query_continues_where_the_accepted_replay_ended(query: Query, checkpoint: Checkpoint, tmp_path: Path) -> None:
    copied = checkpoint.copy(tmp_path / "copied")
    copied.plan(1, 165)
    query.options |= {"checkpointlocation": str(copied.folder), "acceptReplay": "1"}
    query.batch(1)
    del query.options["acceptReplay"]
    query.run(2)
    checkpoint.plan(2, 198)
    query.options["checkpointlocation"] = str(checkpoint.folder)
    with pytest.raises(MisuseError, match=rf"batch 2 of .* does not begin .* committed from '{copied.folder}'"):
        query.batch(2)
    copied.plan(2, 231)
    query.options["checkpointlocation"] = str(copied.folder)
    query.run(3)
    check(query, 3)


def test_batch_that_does_not_begin_where_the_committed_one_ended_is_rejected(
    query: Query, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    other = checkpoint.copy(tmp_path / "other")
    query.log(1)
    other.plan(1, 165)
    other.plan(2, 231)
    query.options["checkpointlocation"] = str(other.folder)
    said = (
        f"option checkpointLocation: batch 2 of the checkpoint '{other.folder}' does not begin where batch 1 ended, "
        f"which the sink has committed from '{checkpoint.folder}'"
    )
    for options in ({}, {"takeOver": "true", "acceptReplay": "1"}):
        query.options |= options
        with pytest.raises(MisuseError, match=said) as refused:
            query.batch(2)
        assert "startingOffsets, takeOver=true" in str(refused.value)
        assert "adoptCheckpoint=true" in str(refused.value)
    check(query, 2)
    checkpoint.plan(2, 198)
    query.options["checkpointlocation"] = str(checkpoint.folder)
    query.run(3)
    check(query, 3)


def test_adopted_checkpoint_may_begin_elsewhere_and_its_next_batch_may_not(
    query: Query, checkpoint: Checkpoint
) -> None:
    query.log(1)
    checkpoint.plan(1, 165)
    checkpoint.plan(2, 231)
    query.options["adoptCheckpoint"] = "true"
    query.run(3)
    del query.options["adoptCheckpoint"]
    checkpoint.plan(3, 297)
    query.run(4)
    checkpoint.plan(3, 260)
    checkpoint.plan(4, 300)
    with pytest.raises(MisuseError, match="does not begin where batch 3 ended"):
        query.batch(4)
    check(query, 4)


@pytest.mark.parametrize("fields", [{}, {"offsets": "0123456789abcdef0123456789abcdef"}], ids=["none", "one digest"])
def test_record_of_an_older_oncelog_does_not_stop_the_query(
    query: Query, checkpoint: Checkpoint, fields: dict[str, str]
) -> None:
    """An older oncelog stored no digest, or one of start and end together."""
    write_older_record(query, fields)
    query.batch(1)
    query.log(1)
    checkpoint.plan(2, 198)
    query.run(3)
    checkpoint.plan(2, 231)
    with pytest.raises(MisuseError, match="with other offsets"):
        query.batch(2)
    check(query, 3)


def write_older_record(query: Query, fields: dict[str, str]) -> None:
    """Replace the record's digests with these fields."""
    options = sink_options(query.options, streaming=True)
    envelope = json.loads(look(options)[0].encode())
    for name in ("start", "end"):
        assert envelope["record"].pop(name), f"the record has no {name}"
    envelope["record"] |= fields
    with Producer(query.bootstrap, transactional_id=f"older-{query.prefix}") as producer, producer.transaction():
        producer.send(options.decision_topic, json.dumps(envelope).encode(), key=b"record", partition=0)


@pytest.mark.parametrize("out_of_reach", ["at the commit", "at the replay"])
def test_checkpoint_out_of_reach_is_not_compared(query: Query, checkpoint: Checkpoint, out_of_reach: str) -> None:
    here, elsewhere = str(checkpoint.folder), "s3://bucket/checkpoint"
    query.options["takeOver"] = "true"
    query.log(1)
    checkpoint.plan(2, 198)
    query.options["checkpointlocation"] = elsewhere if out_of_reach == "at the commit" else here
    query.batch(2)
    checkpoint.plan(2, 231)
    query.options["checkpointlocation"] = here if out_of_reach == "at the commit" else elsewhere
    query.batch(2)
    query.log(2)
    check(query, 3)


def test_digest_of_a_checkpoint_that_is_not_the_query_s_own_is_ignored(query: Query, checkpoint: Checkpoint) -> None:
    checkpoint.plan(1, 165)
    (checkpoint.folder / "metadata").write_text('{"id": "another-query"}')
    query.options["takeOver"] = "true"
    query.batch(1)
    query.log(1)
    check(query, 2)


LAST = Source(STREAM, "q", 4, start="s", end="e")
NEXT = Source(STREAM, "q", 5, start="e", end="f")


@pytest.mark.parametrize(
    ("last", "source", "permission", "expected"),
    [
        (LAST, LAST, Permission(), True),
        (LAST, LAST._replace(start="x"), Permission(True, True, 3), "with other offsets"),
        (LAST, LAST._replace(end="x"), Permission(True, True, 5), "with other offsets"),
        (LAST, LAST._replace(start="x", end="x"), Permission(accept_replay=4), True),
        (LAST, LAST._replace(start=""), Permission(), True),
        (LAST, LAST._replace(start="", end=""), Permission(), True),
        (LAST._replace(start="", end=""), LAST, Permission(), True),
        (LAST, NEXT, Permission(), False),
        (LAST, NEXT._replace(start=""), Permission(), False),
        (LAST._replace(end=""), NEXT, Permission(), False),
        (LAST, NEXT._replace(start="s", end="e"), Permission(), "does not begin where batch 4 ended"),
        (LAST, NEXT._replace(start="x"), Permission(False, True, 4), "does not begin where .* adoptCheckpoint=true"),
        (LAST, NEXT._replace(start="x"), Permission(adopt_checkpoint=True), False),
        (LAST, NEXT._replace(query="r", batch=0, start="x"), Permission(take_over=True), False),
    ],
)
def test_k1_compares_start_and_end_if_both_are_known(
    last: Source, source: Source, permission: Permission, expected: bool | str
) -> None:
    if isinstance(expected, bool):
        assert already_committed("p", Record(last), source, permission) is expected
        return
    with pytest.raises(MisuseError, match=expected):
        already_committed("p", Record(last), source, permission)


def test_record_keeps_the_digests_until_the_next_batch(query: Query, checkpoint: Checkpoint) -> None:
    options = sink_options(query.options, streaming=True)
    ends = [digest_of(f'{{"in":{{"0":{end}}}}}') for end in (66, 132, 198)]
    for _ in range(2):
        assert look(options)[0].source[-2:] == (ends[0], ends[1])
        query.plan()
    query.log(1)
    checkpoint.plan(2, 198)
    query.plan()
    assert look(options)[0].source[-2:] == (ends[0], ends[1])
    query.run(3)
    assert look(options)[0].source[-2:] == (ends[1], ends[2])


def digest_of(*lines: str) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def test_digests_are_of_the_sources_lines_of_the_newest_two_batches(tmp_path: Path) -> None:
    made = Checkpoint.create(tmp_path / "checkpoint", "q")
    place = str(made.folder)
    assert planned(place) == planned("") == planned("s3://bucket/checkpoint") == Planned()
    ends = {end: digest_of(f'{{"in":{{"0":{end}}}}}') for end in (10, 20, 30)}
    made.plan(0, 10)
    assert planned(place) == Planned(0, "", ends[10])
    made.plan(1, 20)
    assert planned(place) == Planned(1, ends[10], ends[20])
    made.plan(2, 20)
    assert planned(place) == Planned(2, ends[20], ends[20])
    made.plan(2, 30, time_ms=1, version="v2")
    (made.folder / "offsets" / ".3.crc").write_bytes(b"")
    (made.folder / "offsets" / "3.tmp").write_bytes(b"")
    assert planned(place) == planned(f"file://{place}") == Planned(2, ends[20], ends[30])
    made.lose(1)
    assert planned(place) == Planned(2, "", ends[30])
    with (made.folder / "offsets" / "2").open("a") as file:
        file.write("\n-\n7\n")
    assert planned(place) == Planned(2, "", digest_of('{"in":{"0":30}}', "-", "7"))
