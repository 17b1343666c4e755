"""Indexes, snapshots, checkpoints, epochs and the real disk, each alone."""

from __future__ import annotations

import errno
import os
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.log import checkpoint
from oncelog.log.config import LogConfig
from oncelog.log.disk import MAP_BYTES, WRITE_BYTES, OsDisk
from oncelog.log.epochs import LeaderEpochs
from oncelog.log.index import OffsetIndex, TimeIndex, TimestampOffset
from oncelog.log.producer_state import BatchMetadata, ProducerEntry
from oncelog.log.snapshot import CorruptSnapshotError, decode_snapshot, encode_snapshot, join_rows
from oncelog.log.txn_index import AbortedTransaction, TransactionIndex
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.checked_patch import in_this_thread
from support.crashdisk import CrashDisk


def offset_index(disk: CrashDisk) -> OffsetIndex:
    disk.mkdir("d")
    return OffsetIndex(disk, "d/x.index", 100, 1 << 20)


def test_offset_index_returns_the_entry_before() -> None:
    index = offset_index(CrashDisk())
    for offset, position in [(110, 4000), (120, 9000), (130, 14000)]:
        index.append(offset, position)
    assert [index.lookup(offset) for offset in (100, 109, 110, 119, 120, 999)] == [0, 0, 4000, 4000, 9000, 14000]
    assert [index.position_before(position) for position in (0, 3999, 4000, 8999, 99999)] == [0, 0, 4000, 4000, 14000]


def test_offset_index_file_equals_kafkas() -> None:
    disk = CrashDisk()
    index = offset_index(disk)
    index.append(110, 4000)
    index.flush()
    index.append(120, 9000)
    index.flush()
    assert disk.read_file("d/x.index") == bytes.fromhex("0000000a00000fa00000001400002328")
    again = offset_index(disk)
    assert again.load()
    assert again.lookup(125) == 9000
    again.append(130, 9999)
    again.flush()
    assert len(disk.read_file("d/x.index")) == 24


def test_offset_index_can_be_truncated_and_become_full() -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    index = OffsetIndex(disk, "d/x.index", 100, 16)
    index.append(110, 1)
    index.append(120, 2)
    assert index.is_full
    index.truncate(120)
    assert (len(index), index.last_position, index.is_full) == (1, 1, False)
    index.flush()
    assert len(disk.read_file("d/x.index")) == 8
    index.truncate(100)
    assert len(index) == 0


@pytest.mark.parametrize("data", [b"1234567", bytes(24), bytes.fromhex("0000000b000000010000000a00000002")])
def test_damaged_offset_index_is_not_loaded(data: bytes) -> None:
    disk = CrashDisk()
    index = offset_index(disk)
    disk.atomic_write("d/x.index", data)
    assert not index.load()


def test_time_index() -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    index = TimeIndex(disk, "d/x.timeindex", 100, 48)
    assert index.last == (-1, 100)
    index.maybe_append(TimestampOffset(1000, 110))
    index.maybe_append(TimestampOffset(1000, 115))
    index.maybe_append(TimestampOffset(2000, 120))
    assert not index.is_full
    assert [index.lookup(time).offset for time in (999, 1000, 1999, 2000)] == [100, 110, 110, 120]
    index.flush()
    assert disk.read_file("d/x.timeindex")[:12] == bytes.fromhex("00000000000003e80000000a")
    again = TimeIndex(disk, "d/x.timeindex", 100, 36)
    assert again.load()
    assert again.last == (2000, 120)
    assert again.is_full
    again.truncate(120)
    assert again.last == (1000, 110)


@pytest.mark.parametrize("data", [bytes(11), bytes(24)])
def test_damaged_time_index_is_not_loaded(data: bytes) -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    disk.atomic_write("d/x.timeindex", data)
    assert not TimeIndex(disk, "d/x.timeindex", 0, 48).load()


def test_transaction_index() -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    index = TransactionIndex(disk, "d/x.txnindex")
    index.flush()
    assert not disk.exists("d/x.txnindex")
    index.append(AbortedTransaction(1, 0, 10, 5))
    index.append(AbortedTransaction(2, 5, 20, 21))
    index.flush()
    assert disk.read_file("d/x.txnindex")[:34] == bytes.fromhex(
        "000000000000000000010000000000000000000000000000000a0000000000000005"
    )
    again = TransactionIndex(disk, "d/x.txnindex")
    assert again.load(0)
    assert [entry.producer_id for entry in again.collect(0, 5)[0]] == [1]
    assert again.collect(0, 5)[1]
    assert [entry.producer_id for entry in again.collect(11, 30)[0]] == [2]
    assert not again.collect(11, 30)[1]
    again.truncate(20)
    again.flush()
    assert len(disk.read_file("d/x.txnindex")) == 34
    again.truncate(0)
    again.flush()
    assert not disk.exists("d/x.txnindex")


@pytest.mark.parametrize("data", [bytes(33), bytes(34), b"\x00\x01" + bytes(32)])
def test_damaged_transaction_index_is_not_loaded(data: bytes) -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    disk.atomic_write("d/x.txnindex", data)
    assert not TransactionIndex(disk, "d/x.txnindex").load(1)


def test_snapshot_keeps_all_batches() -> None:
    batches = [BatchMetadata(3, 80, 1, 1000), BatchMetadata(6, 90, 2, 1234)]
    entries = [
        ProducerEntry(4),
        ProducerEntry(5, 2, 9, 1234, 77, batches),
        ProducerEntry(6, 2, 9, 1234, batches=batches[1:]),
    ]
    first, got, last = join_rows(decode_snapshot(encode_snapshot(entries)))
    assert (got.producer_id, got.epoch, got.coordinator_epoch, got.last_timestamp, got.txn_start) == (5, 2, 9, 1234, 77)
    assert [list(each.batches) for each in (first, got, last)] == [[], batches, batches[1:]]


def test_last_row_of_a_producer_is_the_one_that_kafka_writes() -> None:
    """Apache Kafka uses the last row of a producer id. The others must not have an open transaction for it."""
    batches = [BatchMetadata(3, 80, 1, 1000), BatchMetadata(6, 90, 2, 1234)]
    several, one = (encode_snapshot([ProducerEntry(5, 2, 9, 1234, 77, each)]) for each in (batches, batches[1:]))
    rows = [struct.unpack(">qhiqiqiq", data) for data in (several[10:56], several[56:], one[10:])]
    assert rows[1] == rows[2] == (5, 2, 6, 90, 2, 1234, 9, 77)
    assert rows[0] == (5, 2, 3, 80, 1, 1000, 9, -1)


def test_no_row_of_a_producer_expires_after_its_last_row() -> None:
    """Apache Kafka expires each row on its own. It must not use an earlier one because its batch is from the future."""
    batches = [BatchMetadata(3, 80, 1, 9_000_000), BatchMetadata(6, 90, 2, 1000)]
    data = encode_snapshot([ProducerEntry(5, 2, 9, 1234, batches=batches)])
    rows = [struct.unpack(">qhiqiqiq", row) for row in (data[10:56], data[56:])]
    assert [(row[2], row[5]) for row in rows] == [(3, 1234), (6, 1234)]


def test_snapshot_of_a_producer_known_only_by_its_marker() -> None:
    (got,) = decode_snapshot(encode_snapshot([ProducerEntry(5, 2, 9, 1234)]))
    assert (got.epoch, got.last_sequence, got.txn_start, list(got.batches)) == (2, -1, -1, [])


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:5], lambda d: b"\x00\x02" + d[2:], lambda d: d + b"x"]
)
def test_damaged_snapshot(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(damage(encode_snapshot([ProducerEntry(5, 2)])))


def test_offset_checkpoint() -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    checkpoint.write_offset_checkpoint(disk, "d/c", {("a", 0): 5, ("b", 12): 7})
    assert disk.read_file("d/c") == b"0\n2\na 0 5\nb 12 7\n"
    assert checkpoint.read_offset_checkpoint(disk, "d/c") == {("a", 0): 5, ("b", 12): 7}
    assert checkpoint.read_offset_checkpoint(disk, "d/none") == {}


@pytest.mark.parametrize("data", [b"1\n0\n", b"0\n2\na 0 5\n", b"0\n1\na 0\n", b"x\ny\n", b"\xff\xff\n0\n"])
def test_damaged_checkpoint(data: bytes) -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    disk.atomic_write("d/c", data)
    with pytest.raises(checkpoint.CorruptCheckpointError):
        checkpoint.read_offset_checkpoint(disk, "d/c")


def test_partition_metadata() -> None:
    topic_id = uuid.UUID("7f3b8a60-1234-4abc-9def-001122334455")
    data = checkpoint.encode_partition_metadata(topic_id)
    assert data.startswith(b"version: 0\ntopic_id: ")
    assert len(data.split()[3]) == 22
    assert checkpoint.decode_partition_metadata(data) == topic_id
    with pytest.raises(checkpoint.CorruptCheckpointError):
        checkpoint.decode_partition_metadata(b"version: 0\n")


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    disk = CrashDisk()
    disk.mkdir("d")
    cache = LeaderEpochs(disk, "d/leader-epoch-checkpoint")
    for entry in entries:
        cache.assign(*entry)
    return cache


def test_end_offset_for_epoch() -> None:
    cache = epochs((2, 10), (4, 20), (5, 30))
    assert cache.end_offset_for(5, 99) == (5, 99)
    assert cache.end_offset_for(4, 99) == (4, 30)
    assert cache.end_offset_for(3, 99) == (2, 20)
    assert cache.end_offset_for(1, 99) == (1, 10)
    assert cache.end_offset_for(6, 99) == (-1, -1)
    assert cache.end_offset_for(-1, 99) == (-1, -1)
    assert epochs().end_offset_for(0, 99) == (-1, -1)


def test_epoch_for_an_offset() -> None:
    cache = epochs((2, 10), (4, 20))
    assert [cache.epoch_for(offset) for offset in (9, 10, 19, 20, 99)] == [None, 2, 2, 4, 4]


def test_epochs_are_assigned_once_and_conflicting_ones_are_removed() -> None:
    cache = epochs((2, 10), (4, 20))
    assert not cache.assign(4, 25)
    assert cache.assign(5, 20)
    assert cache.entries == [(2, 10), (5, 20)]


def test_epochs_truncate() -> None:
    cache = epochs((2, 10), (4, 20), (5, 30))
    cache.truncate_from_end(30)
    assert cache.entries == [(2, 10), (4, 20)]
    for start in (5, 15, 20):
        cache.truncate_from_start(start)
        assert cache.entries == [(2, 10), (4, 20)], "the record before the start is of epoch 2"
    cache.truncate_from_start(21)
    assert cache.entries == [(4, 20)]
    cache.truncate_from_start(5)
    assert cache.entries == [(4, 20)]


def test_epochs_survive_in_their_file() -> None:
    disk = CrashDisk()
    disk.mkdir("d")
    cache = LeaderEpochs(disk, "d/e")
    cache.assign(1, 0)
    cache.assign(3, 8)
    cache.flush()
    assert disk.read_file("d/e") == b"0\n2\n1 0\n3 8\n"
    again = LeaderEpochs(disk, "d/e")
    again.load()
    assert again.entries == [(1, 0), (3, 8)]
    disk.atomic_write("d/e", b"0\n2\n1 0\n")
    again.load()
    assert again.entries == []


def test_config_overrides() -> None:
    config = LogConfig().with_overrides(
        {
            "segment.bytes": "1000",
            "cleanup.policy": "compact,delete",
            "message.timestamp.type": "LogAppendTime",
            "compression.type": "zstd",
            "retention.ms": "-1",
            "min.insync.replicas": "2",
        }
    )
    assert (config.segment_bytes, config.compact, config.delete, config.timestamp_type) == (1000, True, True, 1)
    assert (config.compression, config.retention_ms) == (Codec.ZSTD, -1)
    assert config.with_overrides({"compression.type": "producer"}).compression is None
    assert config.with_overrides({"compression.type": "uncompressed"}).compression is Codec.NONE


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment.bytes", "x"), ("segment.bytes", "0"), ("cleanup.policy", "burn"), ("compression.type", "rar")],
)
def test_invalid_config_values(name: str, value: str) -> None:
    with pytest.raises(ProtocolError, match=name) as caught:
        LogConfig().with_overrides({name: value})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_os_disk_holds_few_descriptors(tmp_path: Path) -> None:
    disk = OsDisk(max_open=4)
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(10)]
    for number, file in enumerate(files):
        file.pwrite(b"%d" % number, 0)
    assert disk.open_files == 4
    assert [file.pread(9, 0) for file in files] == [b"%d" % number for number in range(10)]
    for file in files:
        file.close()
    assert disk.open_files == 0


def test_os_disk_reuses_its_own_descriptors_in_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk()
    one, two = (disk.open(f"{tmp_path}/{name}", create=True) for name in "ab")
    really_open, limit = os.open, 2

    def limited(*arguments: Any) -> int:
        if disk.open_files >= limit:
            raise OSError(errno.EMFILE, "too many open files")
        return really_open(*arguments)

    monkeypatch.setattr(os, "open", in_this_thread(really_open, limited))
    three = disk.open(f"{tmp_path}/c", create=True)
    assert disk.open_files == 2
    limit = 0
    for _ in range(3):
        with pytest.raises(OSError, match="too many"):
            one.pwrite(b"x", 0)
    three.pwrite(b"x", 0)  # a failed open does not close one descriptor after the other
    assert disk.open_files == 1
    limit = 2
    one.pwrite(b"x", 0)
    two.pwrite(b"x", 0)
    assert [each.size() for each in (one, two, three)] == [1, 1, 1]


@pytest.mark.parametrize("position", [0, 1, 4096, 70_001])
@pytest.mark.parametrize("size", [10, MAP_BYTES - 1, MAP_BYTES, 3 * MAP_BYTES + 5])
def test_os_disk_returns_mapped_pages_of_a_file(tmp_path: Path, position: int, size: int) -> None:
    disk = OsDisk(max_open=1)
    content = bytes(number * 31 % 251 for number in range(300_000))
    file = disk.open(f"{tmp_path}/x", create=True)
    file.pwrite(content, 0)
    view = file.view(size, position)
    assert isinstance(view, memoryview) == (size >= MAP_BYTES)
    file.pwrite(b"appended meanwhile", len(content))
    disk.open(f"{tmp_path}/y", create=True)  # takes the only descriptor
    disk.remove(f"{tmp_path}/x")
    assert bytes(view) == content[position : position + size]


def test_pages_beyond_the_end_are_not_mapped(tmp_path: Path) -> None:
    file = OsDisk().open(f"{tmp_path}/x", create=True)
    file.pwrite(b"abc", 0)
    assert file.view(2 * MAP_BYTES, 1) == b"bc"


def test_os_disk_writes_large_data_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    pwrite = os.pwrite

    def short(fd: int, data: memoryview, pos: int) -> int:
        sizes.append(len(data))
        return pwrite(fd, data[:-1] if len(sizes) == 2 else data, pos)

    monkeypatch.setattr(os, "pwrite", in_this_thread(pwrite, short))
    data = os.urandom(3 * WRITE_BYTES + 5)
    file = OsDisk().open(f"{tmp_path}/x", create=True)
    file.pwrite(memoryview(data), 7)
    assert max(sizes) == WRITE_BYTES
    assert len(sizes) == 4
    assert file.pread(len(data) + 8, 7) == data
    file.close()


def test_os_disk(tmp_path: Path) -> None:
    disk = OsDisk()
    folder = f"{tmp_path}/a/b"
    with pytest.raises(FileNotFoundError):
        disk.mkdir(folder)
    for _ in range(2):
        disk.mkdir(folder, parents=True)
        disk.mkdir(folder)
    disk.atomic_write(f"{folder}/x", b"12345", sync=True)
    disk.atomic_write(f"{folder}/x", b"1234")
    file = disk.open(f"{folder}/x")
    file.pwrite(memoryview(b"ab"), 4)
    file.truncate(5)
    file.sync()
    disk.sync(f"{folder}/x")
    assert (file.size(), file.pread(100, 1), disk.size(f"{folder}/x")) == (5, b"234a", 5)
    disk.rename(f"{folder}/x", f"{folder}/y")
    assert disk.listdir(folder) == ["y"]
    assert disk.read_file(f"{folder}/y") == b"1234a"
    disk.remove(f"{folder}/y")
    disk.remove(f"{folder}/y")
    disk.remove_tree(f"{tmp_path}/a")
    disk.remove_tree(f"{tmp_path}/a")
    assert not disk.exists(folder)
    assert disk.listdir(folder) == []
    assert disk.size(f"{folder}/y") is None
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/y")
