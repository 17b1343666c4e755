"""Attack the broker's memory, disk and descriptors: rejected requests, slow readers, bombs."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from pathlib import Path

from attack_target import KB, MB, Target, ask, check, create, send_raw, waves
from connections import frame

from oncelog.protocol.compression import Codec, compress
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.records import pack_batch
from support.processes import wait_until
from support.wire import Wire, batch

SMALLEST = b"\x0c\x00\x00\x00\x01\x01\x00"
"""A record without key, value and headers, whose deltas are 0."""
WAITED = 5000
"""The partitions of one Fetch that waits."""
KEPT_S = 60.0
"""How long the disk may take to become free."""


def bomb(count: int, record: bytes = SMALLEST, *, claims: int = 0) -> bytes:
    """Return a zstd batch with `count` copies of one record. Its header may claim another count."""
    now = int(time.time() * 1000)
    payload = compress(Codec.ZSTD, record * count)
    return bytes(pack_batch(payload, claims or count, attributes=Codec.ZSTD, base_timestamp=now, max_timestamp=now))


def produce(topic: str, records: bytes, partition: int = 0) -> ProduceRequest:
    """Return a Produce (v11) to one partition."""
    data = [PartitionProduceData(index=partition, records=records)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def offsets_by_time(topic: str, partition: int = 0) -> ListOffsetsRequest:
    """Return a ListOffsets (v7) of one partition for timestamp 1."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])


def refused_produces(target: Target) -> None:
    with target.wire() as wire:
        wire.create_topic("refused")
    request = produce("refused", bytes(batch([bytes(9 * MB)])))
    for _ in range(300):
        with target.wire() as wire:
            check(wire.call(request, 11), "responses.partition_responses", 1, ErrorCode.MESSAGE_TOO_LARGE)


def refused_syncs(target: Target) -> None:
    assignments = [SyncGroupRequestAssignment(member_id="unknown", assignment=bytes(10 * MB))]
    request = SyncGroupRequest(group_id="a group", generation_id=1, member_id="unknown", assignments=assignments)
    for _ in range(90):
        with target.wire() as wire:
            assert wire.call(request, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def huge_counts(target: Target) -> None:
    for count in (2**31 - 1, 200_000):
        for validate_only in (True, False):
            topics = [
                CreatableTopic(name=f"huge-{index}", num_partitions=number, replication_factor=1)
                for index, number in enumerate((count, -count))
            ]
            request = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=validate_only)
            check(ask(target, request, 5), "topics", 2, ErrorCode.POLICY_VIOLATION)


def descriptors(target: Target) -> None:
    """Use up the broker's descriptors, write to every partition, and release the descriptors."""
    with target.wire() as wire:
        create(wire, ["files"], 50)
        for index in range(50):
            assert not wire.produce("files", batch([b"before"]), partition=index).error_code
        _, most = resource.prlimit(target.pid, resource.RLIMIT_NOFILE)
        open_now = len(list(Path(f"/proc/{target.pid}/fd").iterdir()))
        resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (open_now + 20, most))
        try:
            connections = []
            for _ in range(200):
                sock = socket.socket()
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(wire._socket.getpeername())
                connections.append(target.hold(sock))
            time.sleep(1)
            for index in range(50):
                with contextlib.suppress(ConnectionError):
                    wire.produce("files", batch([b"during"]), partition=index)
            time.sleep(1)
        finally:
            resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (most, most))


def slow_readers(target: Target) -> None:
    with target.wire() as wire:
        topic = wire.create_topic("large")
        for _ in range(60):
            wire.produce("large", batch([bytes(MB - 4 * KB)]))
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MB)
    topics = [FetchTopic(topic_id=topic, partitions=[wanted])]
    request = frame(FetchRequest(max_wait_ms=0, max_bytes=50 * MB, session_epoch=-1, topics=topics), 16)
    for _ in range(30):
        send_raw(target, request, receive_buffer=8 * KB)


def slow_readers_of_small_batches(target: Target) -> None:
    """Read pieces below 64 KiB, which the broker copies."""
    with target.wire() as wire:
        topic = wire.create_topic("small", 1000)
        for index in range(1000):
            wire.produce("small", batch([bytes(50 * KB)]), partition=index)
    wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=64 * KB) for index in range(1000)]
    topics = [FetchTopic(topic_id=topic, partitions=wanted)]
    request = frame(FetchRequest(max_wait_ms=0, max_bytes=50 * MB, session_epoch=-1, topics=topics), 16)
    for _ in range(30):
        send_raw(target, request, receive_buffer=8 * KB)


def waiting_joins(target: Target) -> None:
    """Each request waits for the group's other members. Its frame is slightly larger than 4 KB."""
    metadata = [JoinGroupRequestProtocol(name="range", metadata=bytes(4200))]
    for wave in waves(1500, 100):
        for _ in wave:
            request = JoinGroupRequest(
                group_id="joining",
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                member_id="",
                protocol_type="consumer",
                protocols=metadata,
            )
            send_raw(target, frame(request, 3))
    time.sleep(1)


def make_waited(target: Target) -> None:
    with target.wire() as wire:
        wire.create_topic("waited", WAITED)


def waiting_fetches(target: Target) -> None:
    """Each Fetch waits for records in 5,000 partitions. Half of the clients also begin a session."""
    with target.wire() as wire:
        (found,) = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name="waited")]), 12).topics
    topic = found.topic_id
    wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=MB) for index in range(WAITED)]
    topics = [FetchTopic(topic_id=topic, partitions=wanted)]
    frames = [
        frame(FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=MB, session_epoch=epoch, topics=topics), 16)
        for epoch in (0, -1)
    ]
    for number in range(200):
        send_raw(target, frames[number % 2])
    time.sleep(20)  # the broker has handled most of them, and the first 20 still wait


def failed_group_writes(target: Target) -> None:
    """Send group assignments that do not fit into a record of `__consumer_offsets`."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    with target.wire() as wire:
        for number in range(200):
            group = f"failing {number}"
            joined = wire.call(
                JoinGroupRequest(
                    group_id=group,
                    session_timeout_ms=60_000,
                    rebalance_timeout_ms=60_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=protocols,
                ),
                3,
            )
            assert not joined.error_code, joined
            assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(2 * MB))
            answer = wire.call(
                SyncGroupRequest(
                    group_id=group,
                    generation_id=joined.generation_id,
                    member_id=joined.member_id,
                    assignments=[assignment],
                ),
                3,
            )
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, answer


def deleted_topic(target: Target) -> None:
    with target.wire() as wire:
        wire.create_topic("gigabyte")
        _fill(wire, "gigabyte", 1024)
        request = DeleteTopicsRequest(topic_names=["gigabyte"], timeout_ms=30_000)
        check(wire.call(request, 5), "responses", 1)
    wait_until(lambda: _disk_mb(target, "gigabyte") < 1, "the topic's files are deleted", timeout=KEPT_S)


def deleted_records(target: Target) -> None:
    """Delete all records of idle partitions, and check that their disk space is freed."""
    with target.wire() as wire:
        wire.create_topic("deleted")
        _fill(wire, "deleted", 1024)
        partitions = [DeleteRecordsPartition(partition_index=0, offset=-1)]
        topics = [DeleteRecordsTopic(name="deleted", partitions=partitions)]
        check(wire.call(DeleteRecordsRequest(topics=topics, timeout_ms=30_000), 2), "topics.partitions", 1)
    wait_until(lambda: _disk_mb(target, "deleted") < 2, "the disk is free again", timeout=KEPT_S)


def recompression(target: Target) -> None:
    """Send small batches that the topic's codec would store as 10 MB each."""
    with target.wire() as wire:
        wire.create_topic("bomb", compression_type="uncompressed")
        request = produce("bomb", bytes(batch([bytes(10 * MB)], codec=Codec.ZSTD)))
        for _ in range(50):
            check(ask(target, request, 11), "responses.partition_responses", 1, ErrorCode.MESSAGE_TOO_LARGE)
    assert _disk_mb(target, "bomb") < 10, f"{_disk_mb(target, 'bomb')} MB were stored"


def record_errors(target: Target) -> None:
    """Send small batches whose records are all rejected, so that the response names each record."""
    with target.wire() as wire:
        wire.create_topic("compacted", cleanup_policy="compact")
    for _ in range(5):
        _invalid(target, bomb(400_000))


def stored_bomb(target: Target) -> None:
    """Search a batch of a million records by timestamp."""
    with target.wire() as wire:
        wire.create_topic("stored")
        assert not wire.produce("stored", bomb(1_000_000)).error_code
    for _ in range(5):
        check(ask(target, offsets_by_time("stored"), 7), "topics.partitions", 1)


def compacted_bomb(target: Target) -> None:
    with target.wire() as wire:
        wire.create_topic("compacted", cleanup_policy="compact")
    for claims in (1_000_000, 2**31 - 1):
        _invalid(target, bomb(1_000_000, claims=claims))


def two_bombs(target: Target) -> None:
    """Send a second batch in one partition's Produce. The broker must reject it before it validates the first."""
    with target.wire() as wire:
        wire.create_topic("compacted", cleanup_policy="compact")
    large, small = bomb(1_000_000), bytes(batch([b"x"]))
    for records in (large + large, small + large, large + small):
        _invalid(target, records)


def _invalid(target: Target, records: bytes, code: ErrorCode = ErrorCode.INVALID_RECORD) -> None:
    check(ask(target, produce("compacted", records), 11), "responses.partition_responses", 1, code)


def large_bomb(target: Target) -> None:
    """Send a batch that decompresses to a gigabyte, and whose records the broker must all validate."""
    with target.wire() as wire:
        wire.create_topic("compacted", cleanup_policy="compact")
    now = int(time.time() * 1000)
    payload = compress(Codec.ZSTD, bytes(1000 * MB))
    records = bytes(pack_batch(payload, 1, attributes=Codec.ZSTD, base_timestamp=now, max_timestamp=now))
    for _ in range(3):
        _invalid(target, records, ErrorCode.CORRUPT_MESSAGE)


def half_frames(target: Target) -> None:
    """Send requests of 100 MB without their last byte from a few clients, and only lengths from many."""
    for _ in range(300):
        send_raw(target, struct.pack(">i", 100 * MB - 1))


def _fill(wire: Wire, topic: str, megabytes: int) -> None:
    records = batch([bytes(MB - 4 * KB)])
    for _ in range(megabytes):
        assert not wire.produce(topic, records).error_code


def _disk_mb(target: Target, topic: str) -> float:
    total = 0
    for path in target.server.data.rglob("*"):
        if path.parent.name.startswith(f"{topic}-") and path.suffix in (".log", ".deleted"):
            with contextlib.suppress(OSError):
                total += path.stat().st_blocks * 512
    return total / MB
