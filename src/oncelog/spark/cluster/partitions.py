"""Read and write single partitions: the decision topic, control markers, offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.producer import markers
from oncelog.client.requests import offsets
from oncelog.client.requests.partition_fetch import FETCH_BYTES, FETCH_WAIT_MS, fetch_partition
from oncelog.protocol.compression import Codec
from oncelog.protocol.messages import add_partitions_to_txn as ap
from oncelog.protocol.messages import fetch as fe
from oncelog.protocol.messages import produce as pr
from oncelog.protocol.records import Record, build_batch, decode_control, decode_records, iter_batches
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.cluster import batched_lookups
from oncelog.spark.cluster.nearest import NearestReplica
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner, Part, decode_part, decode_record
from oncelog.spark.commit.record import Record as DecisionRecord

EARLIEST, LATEST = offsets.EARLIEST, offsets.LATEST
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
RECORD_KEY = b"record"
PART_KEY = b"part/"
"""Keys in the decision topic. Compaction keeps the last record, and the last part of each number.

The last committed record's parts are among these: a driver commits a record without parts (P3) before it writes one."""
COMPRESSED_FROM = 4_096
"""Bytes of JSON from which a message of the decision topic is compressed."""
PRODUCE_NEW, PRODUCE_OLD = 12, 11
"""Versions of Produce that take a partition into the transaction themselves (KIP-890), or do not."""
ADD_PARTITIONS_VERSION = 3
"""The newest version of AddPartitionsToTxn for clients."""
PRODUCE_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 30_000


def list_offsets(
    cluster: BlockingCluster, wanted: dict[TopicPartition, int], isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Return offsets for timestamps (ms, or EARLIEST or LATEST) by partition; -1 if no record is that young."""
    asked: dict[tuple[str, int], int] = dict(wanted.items())
    (found,) = cluster.run_many([offsets.list_offsets(cluster.cluster, asked, isolation_level=isolation)])
    return {at: found[at].offset for at in wanted}


def fetch(
    cluster: BlockingCluster,
    at: TopicPartition,
    offset: int,
    *,
    isolation: int = READ_UNCOMMITTED,
    max_bytes: int = FETCH_BYTES,
    max_wait_ms: int = FETCH_WAIT_MS,
) -> fe.PartitionData:
    """Send one Fetch for one partition. If the offset is out of range, the response has its error code."""
    return cluster.run_many([fetch_async(cluster, at, offset, isolation, max_bytes, max_wait_ms)])[0]


async def fetch_async(
    cluster: BlockingCluster,
    at: TopicPartition,
    offset: int,
    isolation: int,
    max_bytes: int,
    max_wait_ms: int,
    nearest: NearestReplica | None = None,
) -> fe.PartitionData:
    """Do the same as `fetch`, for callers that do something else meanwhile (`cluster.start`)."""
    if nearest is not None:
        return await nearest.fetch(cluster.cluster, at, offset, isolation, max_bytes, max_wait_ms)
    return await fetch_partition(
        cluster.cluster, at, offset, isolation_level=isolation, max_bytes=max_bytes, max_wait_ms=max_wait_ms
    )


def decision_batch(owner: Owner, message: DecisionRecord | Part, now_ms: int) -> bytearray:
    """Encode a record, or a part of one, as a batch of the decision topic."""
    key = PART_KEY + b"%d" % message.number if isinstance(message, Part) else RECORD_KEY
    value = message.encode()
    codec = Codec.ZSTD if len(value) >= COMPRESSED_FROM else Codec.NONE
    return record_batch(owner, [(key, value)], now_ms, codec)


def record_batch(
    owner: Owner, records: Sequence[tuple[bytes | None, bytes | None]], now_ms: int, codec: Codec = Codec.NONE
) -> bytearray:
    """Encode (key, value) records as one transactional batch."""
    return build_batch(
        [Record(index, now_ms, key, value) for index, (key, value) in enumerate(records)],
        codec=codec,
        producer_id=owner.pid,
        producer_epoch=owner.epoch,
        base_sequence=owner.sequence,
        transactional=True,
    )


def produce(
    cluster: BlockingCluster, owner: Owner, at: TopicPartition, batch: bytes | bytearray, *, new_protocol: bool
) -> Any:
    """Write a batch in this owner's transaction, with retries under its sequence number. Return the response."""
    return cluster.run_many([produce_async(cluster, owner, at, batch, new_protocol=new_protocol)])[0]


async def produce_async(
    cluster: BlockingCluster, owner: Owner, at: TopicPartition, batch: bytes | bytearray, *, new_protocol: bool
) -> Any:
    """Do the same as `produce`, for several partitions at a time (`cluster.run_many`)."""
    client = cluster.cluster
    if not new_protocol:
        add = ap.AddPartitionsToTxnRequest(
            transactions=[],
            v3_and_below_transactional_id=owner.id,
            v3_and_below_producer_id=owner.pid,
            v3_and_below_producer_epoch=owner.epoch,
            v3_and_below_topics=[ap.AddPartitionsToTxnTopic(name=at.topic, partitions=[at.partition])],
        )
        added = await client.call_coordinator("transaction", owner.id, add, ADD_PARTITIONS_VERSION)
        if any(r.partition_error_code for t in added.results_by_topic_v3_and_below for r in t.results_by_partition):
            return added
    request = pr.ProduceRequest(
        transactional_id=owner.id,
        acks=-1,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        topic_data=[
            pr.TopicProduceData(
                name=at.topic,
                topic_id=NO_UUID,
                partition_data=[pr.PartitionProduceData(index=at.partition, records=batch)],
            )
        ],
    )
    return await client.call_leader(*at, request, PRODUCE_NEW if new_protocol else PRODUCE_OLD)


def read_window(cluster: BlockingCluster, o: op.ReadDecisions) -> op.Window:
    """Read the last entries of the decision topic before an offset, with its end and its last stable offset.

    Each Fetch response contains the log start offset, usually 0, because compaction does not change it. Raises
    TimedOutError if Fetch does not return the end that ListOffsets has reported within `REQUEST_TIMEOUT_MS`.
    """
    at, before = o.at, o.before
    if o.since is not None:
        start, until = o.since, o.since + 2  # the entry, and its transaction's marker
    else:
        until = list_offsets(cluster, {at: LATEST})[at] if before is None else before
        start = max(0, until - o.width)
    messages: list[op.Message] = []
    position = start
    wait_ms, limit = 0, time.monotonic() + REQUEST_TIMEOUT_MS / 1000
    while True:
        answer = fetch(cluster, at, position, max_wait_ms=wait_ms)
        if answer.error_code:
            start = _after_gap(cluster, at, position, answer.error_code)
            position = start
            continue
        for header, view in iter_batches(answer.records or b"", partial_ok=True):
            messages += _messages(at, header, view)
            position = max(position, header.next_offset)
        end = answer.high_watermark
        # A broker that has just started may report a lower high watermark than before, for a while.
        if position >= (max(end, until) if before is None else before):
            break
        if time.monotonic() > limit:
            named = f"{at.topic}-{at.partition}"
            raise errors.TimedOutError(
                f"{named} returns no records from offset {position} on, although its end was {until}; retry later"
            )
        wait_ms = FETCH_WAIT_MS
    kept = tuple(m for m in messages if m.offset >= start and (before is None or m.offset < before))
    return op.Window(start, end, answer.last_stable_offset, start <= answer.log_start_offset, kept)


def _after_gap(cluster: BlockingCluster, at: TopicPartition, position: int, error_code: int) -> int:
    """Return the beginning of the log, if it is after `position`. Raises OffsetOutOfRangeError otherwise."""
    first = list_offsets(cluster, {at: EARLIEST})[at]  # the error does not contain it
    if first <= position:
        raise errors.error_for(error_code, f"Fetch of {at.topic}-{at.partition} at offset {position}")
    return first


def _messages(at: TopicPartition, header: Any, view: memoryview) -> Iterable[op.Message]:
    if header.is_control:
        if not header.count:
            return  # compaction keeps the batch for its producer, not the marker
        commit, _ = decode_control(view)
        yield op.Message(header.base_offset, header.producer_id, header.producer_epoch, None, commit)
        return
    for record in decode_records(view):
        if record.value is not None and not (record.key or b"").startswith(PART_KEY):
            try:
                decoded = decode_record(bytes(record.value))
            except msgspec.DecodeError as error:
                raise SinkError(
                    f"option decisionTopic: the record at offset {record.offset} of {at.topic} is not a decision "
                    f"record ({error}); only the sink may write to this topic"
                ) from error
            yield op.Message(record.offset, header.producer_id, header.producer_epoch, decoded)


def read_parts(cluster: BlockingCluster, o: op.ReadParts) -> tuple[Part, ...]:
    """Read the parts at these offsets.

    Raises SinkError if one of them no longer exists, and TimedOutError if Fetch does not return the last one within
    `REQUEST_TIMEOUT_MS`: a broker that has just started may report a lower high watermark for a while.
    """
    found: dict[int, Part] = {}
    position, last = min(o.offsets), max(o.offsets)
    wait_ms, limit = 0, time.monotonic() + REQUEST_TIMEOUT_MS / 1000
    while position <= last:
        answer = fetch(cluster, o.at, position, max_wait_ms=wait_ms)
        if answer.error_code:
            position = _after_gap(cluster, o.at, position, answer.error_code)
            continue
        if not answer.records and time.monotonic() > limit:
            raise errors.TimedOutError(
                f"{o.at.topic}-{o.at.partition} returns no records from offset {position} to {last}; retry later"
            )
        wait_ms = FETCH_WAIT_MS
        for header, view in iter_batches(answer.records or b"", partial_ok=True):
            position = max(position, header.next_offset)
            if not header.is_control and header.next_offset > min(o.offsets):
                found.update(_parts(o, view))
    if missing := [offset for offset in o.offsets if offset not in found]:
        raise SinkError(
            f"option decisionTopic: {o.at.topic} has lost the parts of its last record at offsets {missing}, so the "
            "state of the last batch is unknown. `oncelog sink abort` cannot repair this: compare the output with the "
            "input. The topic needs cleanup.policy=compact"
        )
    return tuple(found[offset] for offset in o.offsets)


def _parts(o: op.ReadParts, view: memoryview) -> Iterable[tuple[int, Part]]:
    for record in decode_records(view):
        if record.offset in o.offsets and record.key is not None and record.value is not None:
            yield record.offset, decode_part(int(record.key.removeprefix(PART_KEY)), bytes(record.value))


def find_ends(cluster: BlockingCluster, wanted: Iterable[TopicPartition]) -> tuple[op.End, ...]:
    """Return the high watermark of each partition that exists, and the id of its topic."""
    return cluster.run_many([batched_lookups.find_ends(cluster.cluster, wanted)])[0]


def find_markers(cluster: BlockingCluster, places: tuple[op.Place, ...], wait_ms: int) -> tuple[op.Marker, ...]:
    """Return the first control marker of each place's producer. Wait for markers that are not written yet."""
    (found,) = cluster.run_many([markers.find_markers(cluster.cluster, places, wait_ms)])
    return tuple(found)
