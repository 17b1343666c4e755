"""Partition files in both directions, without our broker: Kafka reads our log's files, and our log reads Kafka's."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oncelog.log.cleaning.clean import Cleaning
from oncelog.log.cleaning.plan import make_plan
from oncelog.log.config import LogConfig
from oncelog.log.disk import OsDisk
from oncelog.log.log import Log
from oncelog.log.segment import Segment
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from support.apache_kafka import SHORT_LIVED, ApacheKafka, java, run_tool
from support.clients.base import Outgoing
from support.clients.confluent import ConfluentClient
from support.logs import NOW, append, end_txn, max_timestamp, of_producer, open_at

DUMP = "org.apache.kafka.tools.DumpLogSegments"
INDEXES = (".index", ".timeindex", ".txnindex")


def dump(files: list[Path], *options: str, gaps: bool = False) -> str:
    """Return the output of Kafka's tool, after a check that it reports no problem.

    With `gaps`, offsets may be missing.
    """
    command = java(DUMP, "--files", ",".join(map(str, files)), *options, options=SHORT_LIVED)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    wrong = [line for line in done.stderr.splitlines() if not line.startswith("SLF4J:")]
    # The tool expects offset 0 at the start of every segment.
    starts = [f"  -1 is followed by {int(path.stem)}" for path in files]
    wrong = [line for line in wrong if line not in starts and not line.startswith("Non-consecutive offsets in ")]
    if gaps:
        wrong = [line for line in wrong if not re.fullmatch(r"  -?\d+ is followed by \d+", line)]
    assert (done.returncode, wrong) == (0, [])
    return done.stdout


def test_kafka_reads_what_the_log_writes(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_at(OsDisk(), str(folder), "t", 0, LogConfig(segment_bytes=3000, index_interval_bytes=200), NOW)
    for step in range(30):
        append(log, of_producer(1, 2 * step, 2, codec=step % 5, txn=True, timestamp=NOW + step))
        append(log, of_producer(2, step, txn=True, timestamp=NOW + step))
        if step % 4 == 3:
            end_txn(log, 1, commit=step % 8 == 3, now_ms=NOW + step)
        if step % 5 == 3:
            end_txn(log, 2, commit=False, now_ms=NOW + step)
    aborted = log.aborted_transactions(0, log.log_end_offset)
    log.close()
    assert len(log.segments) >= 2
    every = {suffix: sorted(folder.glob(f"*{suffix}")) for suffix in (".log", ".snapshot", *INDEXES)}
    text = dump(every[".log"], "--deep-iteration", "--print-data-log")
    assert len(re.findall(r"payload: v$", text, re.MULTILINE)) == 90
    assert text.count("isvalid: true") == 60 + 7 + 6
    assert text.count("endTxnMarker: ABORT") == len(aborted) == 9
    assert {codec: text.count(f"compresscodec: {codec}") for codec in ("gzip", "snappy", "lz4", "zstd")} == {
        "gzip": 6, "snappy": 6, "lz4": 6, "zstd": 6,
    }  # fmt: skip
    sane = dump(every[".index"] + every[".timeindex"], "--index-sanity-check")
    assert sane.count("passed sanity check") == 2 * len(log.segments)
    # The tool compares each entry with the log.
    assert dump(every[".index"] + every[".timeindex"]).count("offset: ") >= 20
    entries = re.findall(r"producerId: (\d+) firstOffset: (\d+)", dump(every[".txnindex"]))
    assert [(int(pid), int(first)) for pid, first in entries] == aborted
    assert "producerId: 1 producerEpoch: 0 coordinatorEpoch: 0" in dump(every[".snapshot"])


def test_kafka_reads_a_compacted_log(tmp_path: Path) -> None:
    """Partly kept and empty batches, tombstones with a delete horizon, gaps of offsets, and matching indexes."""
    folder = tmp_path / "t-0"
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200, compact=True, delete=False)
    log = open_at(OsDisk(), str(folder), "t", 0, config, NOW)
    for turn in range(60):
        keys = [(turn + each) % 7 for each in range(3)]
        rows = [Record(0, NOW + turn, b"k%d" % key, None if key == 2 and turn > 50 else bytes(50)) for key in keys]
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 3 * turn}
        append(log, build_batch(rows, codec=turn % 5, transactional=True, **producer))
        if turn % 4 == 3:
            end_txn(log, 1, commit=turn % 8 == 3, now_ms=NOW + turn)
    log.roll(NOW)
    before = log.size_bytes
    for step in Cleaning(make_plan(log, None, NOW), OsDisk(), NOW, max_keys=100).run():
        step.run()
    aborted = log.aborted_transactions(0, log.log_end_offset)
    left = [offset for offset, key in keyed(log)]
    assert log.size_bytes < before / 3
    log.close()
    every = {suffix: sorted(folder.glob(f"*{suffix}")) for suffix in (".log", ".snapshot", *INDEXES)}
    text = dump(every[".log"], "--deep-iteration", "--print-data-log", gaps=True)
    assert [int(found) for found in re.findall(r"^\| offset: (\d+) .*keySize: 2 ", text, re.MULTILINE)] == left
    assert "deleteHorizonMs: OptionalLong[" in text
    assert "count: 0 " in text
    sane = dump(every[".index"] + every[".timeindex"], "--index-sanity-check")
    assert sane.count("passed sanity check") >= 2 * (len(log.segments) - 1)  # the last one has no entry yet
    dump(every[".index"])
    entries = re.findall(r"producerId: (\d+) firstOffset: (\d+)", dump(every[".txnindex"]))
    assert [(int(pid), int(first)) for pid, first in entries] == aborted


def keyed(log: Log) -> list[tuple[int, bytes | None]]:
    """Return (offset, key) of every data record."""
    found: list[tuple[int, bytes | None]] = []
    offset = 0
    while offset < log.log_end_offset:
        for header, view in iter_batches(log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True)):
            found += [] if header.is_control else [(record.offset, record.key) for record in decode_records(view)]
            offset = header.next_offset
    return found


@pytest.fixture(scope="module")
def kafkas_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a partition that Apache Kafka wrote and closed cleanly: all codecs of the Java client, transactions,
    segments.
    """
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    try:
        client = ConfluentClient(kafka.bootstrap)
        client.create_topic("data", segment_bytes=str(1 << 20), index_interval_bytes="1024")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            lines = "".join(f"{codec} {number}\n" for number in range(200))
            run_tool(
                "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.bootstrap,
                "--topic", "data", "--compression-codec", codec, stdin=lines,
            )  # fmt: skip
        rng = random.Random(5)
        producer = client.transactions("writer")
        for turn in range(12):
            producer.begin()
            producer.send("data", [Outgoing(rng.randbytes(30_000)) for _ in range(8)])
            (producer.abort if turn % 3 == 2 else producer.commit)()
        producer.begin()
        producer.send("data", [Outgoing(b"left open")])
        folder = kafka.partition_dir("data")
    finally:
        kafka.stop()
    return folder


def opened(source: Path, target: Path, *, clean: bool) -> Log:
    """Return a copy of the folder, opened by our log."""
    shutil.copytree(source, target)
    log = open_at(OsDisk(), str(target), "data", 0, LogConfig(index_interval_bytes=1024), NOW, clean=clean)
    log.advance_high_watermark(log.log_end_offset)
    return log


def state_of(log: Log) -> dict[str, object]:
    """Return all that the log reports about its contents."""
    end = log.log_end_offset
    values: list[bytes | None] = []
    offset = 0
    while offset < end:
        for header, view in iter_batches(log.read(offset, 1 << 20, upto=end, at_least_one=True)):
            values += [] if header.is_control else [record.value for record in decode_records(view)]
            offset = header.next_offset
    return {
        "end": end,
        "stable": log.last_stable_offset,
        "values": values,
        "aborted": log.aborted_transactions(0, end),
        # A snapshot remembers one batch of each producer, a replay five.
        "producers": sorted(info._replace(batches=info.batches[-1:]) for info in log.producers()),
        "max timestamp": max_timestamp(log),
        "epochs": log.end_offset_for_epoch(0),
        "bases": [segment.base_offset for segment in log.segments],
    }


def lookups(segment: Segment) -> list[int]:
    return [segment.position_of(segment.base_offset + step) for step in range(0, 2000, 37)]


def test_log_reads_what_kafka_wrote(kafkas_folder: Path, tmp_path: Path) -> None:
    clean = opened(kafkas_folder, tmp_path / "clean", clean=True)
    assert len(clean.segments) >= 3
    found = state_of(clean)
    values = found["values"]
    assert isinstance(values, list)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assert values[:1000] == [b"%s %d" % (codec.encode(), number) for codec in codecs for number in range(200)]
    assert len(values) == 1000 + 12 * 8 + 1
    assert len(clean.aborted_transactions(0, clean.log_end_offset)) == 4
    assert clean.last_stable_offset == clean.log_end_offset - 1
    (open_one,) = [info for info in clean.producers() if info.current_txn_start_offset >= 0]
    assert open_one.current_txn_start_offset == clean.last_stable_offset
    recovered = opened(kafkas_folder, tmp_path / "recovered", clean=False)
    assert state_of(recovered) == found
    for ours, kafkas in zip(recovered.segments, clean.segments, strict=True):
        assert lookups(ours) == lookups(kafkas)
        assert ours.last_timestamp() == kafkas.last_timestamp()


def test_recovery_writes_the_indexes_that_kafka_wrote(kafkas_folder: Path, tmp_path: Path) -> None:
    log = opened(kafkas_folder, tmp_path / "recovered", clean=False)
    log.close()
    for suffix in INDEXES:
        kafkas = {path.name: path.read_bytes() for path in kafkas_folder.glob(f"*{suffix}")}
        ours = {path.name: path.read_bytes() for path in (tmp_path / "recovered").glob(f"*{suffix}")}
        assert {name: data for name, data in ours.items() if data} == {n: d for n, d in kafkas.items() if d}
