"""Batches that a checkpoint has planned again, with other offsets: an older copy, a second copy, or lost files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from oncelog.spark.commit.errors import MisuseError
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

    def __init__(self, folder: Path, query: str) -> None:
        self.folder = checkpoint_of(folder, query)
        (folder / "offsets").mkdir()

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
    made = Checkpoint(tmp_path / "checkpoint", query.query)
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
    copied = tmp_path / "copied"
    shutil.copytree(checkpoint.folder, copied)
    query.options["checkpointlocation"] = f"file:{copied}"
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


def test_accepted_replay_of_other_offsets_is_skipped(query: Query, checkpoint: Checkpoint) -> None:
    checkpoint.plan(1, 165)
    query.options["acceptReplay"] = "1"
    query.run(2)
    check(query, 2)


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


def test_record_keeps_the_digest_until_the_next_batch(query: Query, checkpoint: Checkpoint) -> None:
    options = sink_options(query.options, streaming=True)
    kept = planned(str(checkpoint.folder))
    assert kept.batch == 1
    assert len(kept.offsets) == 32
    for _ in range(2):
        assert look(options)[0].source.offsets == kept.offsets
        query.plan()
    checkpoint.plan(2, 198)
    query.log(1)
    query.run(3)
    assert look(options)[0].source.offsets == planned(str(checkpoint.folder)).offsets != kept.offsets


def test_digest_covers_the_sources_lines_of_the_newest_two_batches(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path / "checkpoint", "q")
    place = str(made.folder)
    assert planned(place) == planned("") == planned("s3://bucket/checkpoint") == Planned()
    seen = set()
    for batch, end in ((0, 10), (1, 20), (2, 20), (2, 30)):
        made.plan(batch, end)
        assert planned(place).batch == batch
        seen.add(planned(place).offsets)
    assert len(seen) == 4
    made.plan(2, 30, time_ms=1, version="v2")
    assert planned(place).offsets in seen
    (made.folder / "offsets" / ".3.crc").write_bytes(b"")
    (made.folder / "offsets" / "3.tmp").write_bytes(b"")
    assert planned(f"file://{place}") == planned(place)
    assert planned(place).batch == 2
    made.lose(1)
    assert planned(place) == Planned()
