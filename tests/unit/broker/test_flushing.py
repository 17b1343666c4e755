"""Group commit: which requests wait for a sync, how many share one, and their error when it fails."""

from __future__ import annotations

import asyncio
import errno
import shutil
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.broker.handlers import write_txn_markers
from oncelog.broker.handlers.list_offsets import bind as list_offsets
from oncelog.broker.handlers.produce import bind as produce
from oncelog.broker.handlers.write_txn_markers import bind as handle_markers
from oncelog.broker.requests.context import RequestContext
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.steps import at_once
from oncelog.net.eager import start_eagerly
from oncelog.net.server import Deferred
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from oncelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, running
from support.hooked_disk import HookedDisk

CONTEXT = RequestContext(0, 12, 1, "test", Session())


class GatedDisk(HookedDisk):
    """The real disk, whose syncs of segments wait for `gate`, are counted, and can fail."""

    def __init__(self) -> None:
        super().__init__(self._before)
        self.gate = asyncio.Event()
        self.synced: list[str] = []
        self.fails = False
        self.without_descriptors = 0
        """How many syncs fail for lack of a file descriptor."""

    def _before(self, kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            self.synced.append(Path(path).parent.name)
            if self.fails:
                raise OSError(errno.EIO, "input/output error", path)
            if self.without_descriptors:
                self.without_descriptors -= 1
                raise OSError(errno.EMFILE, "too many open files", path)


def live(
    tmp_path: Path,
    life: Callable[[Broker, GatedDisk], Awaitable[None]],
    store: MemoryStore | None = None,
    **settings: str,
) -> None:
    """Run a broker whose blocking code runs inline, once `disk.gate` is open."""

    async def run() -> None:
        disk = GatedDisk()
        disk.gate.set()

        async def offload(work: Callable[..., object], *args: object) -> object:
            await disk.gate.wait()
            return work(*args)

        async with running(tmp_path / "data", store, disk=disk, offload=offload, **settings) as broker:
            try:
                await asyncio.wait_for(life(broker, disk), 60)
            finally:
                disk.gate.set()

    asyncio.run(run())


Answer = ProduceResponse | Deferred | None


def send(broker: Broker, topic: str, partition: int = 0, records: int = 1, acks: int = 1) -> Answer:
    batch = build_batch([Record(index, NOW, b"k", b"v") for index in range(records)])
    data = [PartitionProduceData(index=partition, records=batch)]
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    answer: Answer = produce(broker.services)(request, CONTEXT)
    return answer


def waiting(answer: Answer) -> asyncio.Task[ProduceResponse]:
    assert isinstance(answer, Deferred), "answered before the sync"
    return asyncio.ensure_future(answer.answer)


def outcome(response: ProduceResponse | None) -> PartitionProduceResponse:
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0]


def test_sync_without_a_descriptor_is_retried(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1, configs={"flush.messages": "1"})
        disk.without_descriptors = 3
        assert outcome(await waiting(send(broker, "t"))).error_code == ErrorCode.NONE
        assert disk.synced == ["t-0"] * 4

    live(tmp_path, life)


def test_append_does_not_wait_for_a_sync_by_default(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1)
        assert outcome(send(broker, "t")).base_offset == 0  # type: ignore[arg-type]
        assert disk.synced == []

    live(tmp_path, life)


@pytest.mark.parametrize("acks", [1, -1])
def test_append_waits_for_its_sync_and_many_share_one(tmp_path: Path, acks: int) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=2, configs={"flush.messages": "1"})
        disk.gate.clear()
        first = waiting(send(broker, "t", acks=acks))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [waiting(send(broker, "t", partition, acks=acks)) for partition in (0, 1, 0, 1, 0)]
        replica = broker.partitions.require("t", 0)
        await asyncio.sleep(0)
        assert replica.log.log_end_offset == 4
        assert replica.log.high_watermark == 0, "unsynced records are not readable"
        assert not any(task.done() for task in (first, *rest))
        disk.gate.set()
        assert [outcome(response).base_offset for response in await asyncio.gather(first, *rest)] == [0, 1, 0, 2, 1, 3]
        assert replica.log.high_watermark == 4
        assert disk.synced == ["t-0", "t-0", "t-1"], "one sync for the first request, one for all others"

    live(tmp_path, life)


@pytest.mark.parametrize("acks", [1, -1])
def test_sync_that_takes_longer_than_the_request_timeout_times_out(tmp_path: Path, acks: int) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=2, configs={"flush.messages": "1"})
        disk.gate.clear()
        batches = [build_batch([Record(0, NOW, None, b"v")]) for _ in range(2)]
        data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
        topics = [TopicProduceData(name="t", partition_data=data)]
        request = ProduceRequest(acks=acks, timeout_ms=1, topic_data=topics)
        response = await waiting(produce(broker.services)(request, CONTEXT))
        partitions = response.responses[0].partition_responses
        assert [each.error_code for each in partitions] == 2 * [ErrorCode.REQUEST_TIMED_OUT]
        assert [broker.partitions.require("t", index).log.log_end_offset for index in (0, 1)] == [1, 1]
        disk.gate.set()
        assert outcome(await waiting(send(broker, "t", acks=acks))).base_offset == 1

    live(tmp_path, life)


def left(broker: Broker, partition: int) -> int:
    """Return how many waits a partition of the topic `t` still holds."""
    replica = broker.partitions.require("t", partition)
    assert replica.term is not None
    return len(replica.term.waits) + len(replica._stored_waits)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("end", ["time-out", "disconnect", "cancel"])
def test_produce_that_ends_early_leaves_no_waits(tmp_path: Path, acks: int, end: str) -> None:
    count = 250

    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=count, configs={"flush.messages": "1"})
        disk.gate.clear()
        batch = build_batch([Record(0, NOW, None, b"v")])
        data = [PartitionProduceData(index=index, records=bytes(batch)) for index in range(count)]
        topics = [TopicProduceData(name="t", partition_data=data)]
        request = ProduceRequest(acks=acks, timeout_ms=1 if end == "time-out" else 2**31 - 1, topic_data=topics)
        context = RequestContext(0, 12, 1, "test", Session())
        disk.gate.set()
        answer = produce(broker.services)(request, context)
        assert isinstance(answer, Deferred)
        task = asyncio.ensure_future(answer.answer)
        while broker.partitions.require("t", count - 1).log.log_end_offset == 0:
            disk.gate.clear() if broker.partitions.require("t", 0).log.log_end_offset else None
            await asyncio.sleep(0)
        while not task.done() and sum(left(broker, index) for index in range(count)) < count:
            await asyncio.sleep(0)
        if end == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            if end == "disconnect":
                context.session.disconnected()
            response = await task
            assert isinstance(response, ProduceResponse)
            errors = {each.error_code for each in response.responses[0].partition_responses}
            assert errors == {ErrorCode.REQUEST_TIMED_OUT}
        for _ in range(3):  # the waits of many partitions end in parts
            await asyncio.sleep(0)
        assert sum(left(broker, index) for index in range(count)) == 0
        assert not context.session.waiting

    live(tmp_path, life)


def test_request_that_waits_for_a_sync_releases_its_records(tmp_path: Path) -> None:
    class Held(bytearray):
        """Bytes that can be weakly referenced."""

    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1, configs={"flush.messages": "1"})
        disk.gate.clear()
        records = Held(build_batch([Record(0, NOW, None, b"v")]))
        reference = weakref.ref(records)
        data = [PartitionProduceData(index=0, records=memoryview(records))]
        del records
        topics = [TopicProduceData(name="t", partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
        task = waiting(produce(broker.services)(request, CONTEXT))
        await asyncio.sleep(0)
        assert reference() is None
        disk.gate.set()
        assert outcome(await task).base_offset == 0

    live(tmp_path, life)


def test_sync_is_due_after_a_number_of_records(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1, configs={"flush.messages": "5"})
        for _ in range(4):
            assert isinstance(send(broker, "t"), ProduceResponse)
        assert disk.synced == []
        assert outcome(await waiting(send(broker, "t"))).base_offset == 4
        assert disk.synced == ["t-0"]
        assert isinstance(send(broker, "t", records=4), ProduceResponse)
        assert send(broker, "t", acks=0) is None
        while len(disk.synced) < 2:
            await asyncio.sleep(0.001)

    live(tmp_path, life, log_flush_interval_messages="7")


def test_sync_is_due_after_a_time(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1)
        for _ in range(3):
            assert isinstance(send(broker, "t"), ProduceResponse), "no request waits for that"
        replica = broker.partitions.require("t", 0)
        while replica.synced_offset < 3:
            await asyncio.sleep(0.001)
        assert disk.synced == ["t-0"]

    live(tmp_path, life, log_flush_interval_ms="20")


def test_failed_sync_fails_all_waiting_requests(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=2)
        disk.gate.clear()
        tasks = [waiting(send(broker, "t", partition)) for partition in (0, 1, 1)]
        disk.fails = True
        disk.gate.set()
        for response in await asyncio.gather(*tasks):
            assert outcome(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert outcome(response).base_offset == -1
        disk.fails = False
        assert outcome(send(broker, "t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[arg-type]
        assert disk.synced == ["t-0"], "the sync is not retried"
        assert "all log directories have failed" in await broker.failed

    live(tmp_path, life, log_flush_interval_messages="1")


def test_deleted_topic_completes_requests_that_wait_for_its_sync(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        topic = await broker.topics.create("t", partitions=1)
        disk.gate.clear()
        task = waiting(send(broker, "t"))
        await asyncio.sleep(0)
        assert at_once(broker.partitions.dropping(topic))
        assert outcome(await task).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    live(tmp_path, life, log_flush_interval_messages="1")


def latest(broker: Broker, timestamp: int = -1, version: int = 5) -> tuple[int, int]:
    """Return (error code, offset) of a ListOffsets of t-0."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    response = start_eagerly(list_offsets(broker.services)(request, replace(CONTEXT, api_version=version)))
    assert isinstance(response, ListOffsetsResponse)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset


def test_unsynced_records_are_synced_after_a_restart_before_they_are_visible(tmp_path: Path) -> None:
    store = MemoryStore(lambda: NOW)

    async def first(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1)
        disk.gate.clear()
        waiting(send(broker, "t", records=3)).cancel()
        assert broker.partitions.require("t", 0).log.log_end_offset == 3
        shutil.copytree(tmp_path / "data", tmp_path / "killed")

    async def second(broker: Broker, disk: GatedDisk) -> None:
        disk.gate.clear()
        log = broker.partitions.require("t", 0).log
        for _ in range(5):
            await asyncio.sleep(0)
        assert (log.log_end_offset, log.high_watermark, disk.synced) == (3, 0, [])
        assert latest(broker) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), (
            "otherwise, a reader finds that the log has shrunk"
        )
        assert latest(broker, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert latest(broker, timestamp=NOW) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert latest(broker, timestamp=-2) == (0, 0)
        disk.gate.set()
        while log.high_watermark < 3:
            await asyncio.sleep(0.001)
        assert disk.synced == ["t-0"]
        assert (latest(broker), latest(broker, timestamp=NOW)) == ((0, 3), (0, 0))
        disk.gate.clear()
        more = waiting(send(broker, "t"))
        assert latest(broker) == (0, 3), "no request returned more before"
        disk.gate.set()
        assert outcome(await more).base_offset == 3

    live(tmp_path, first, store=store, log_flush_interval_messages="1")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "killed").rename(tmp_path / "data")
    live(tmp_path, second, store=store, log_flush_interval_messages="1")


def write_markers(broker: Broker, *partitions: int) -> asyncio.Task[WriteTxnMarkersResponse]:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=list(partitions))
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=False, topics=[topic])
    answer = handle_markers(broker.services)(WriteTxnMarkersRequest(markers=[marker]), CONTEXT)
    assert isinstance(answer, Awaitable), "answered before the sync"
    return asyncio.ensure_future(answer)  # type: ignore[arg-type]


def codes(response: WriteTxnMarkersResponse) -> list[int]:
    return [each.error_code for each in response.markers[0].topics[0].partitions]


def test_operators_marker_is_answered_after_its_sync(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=2)
        disk.gate.clear()
        answer = write_markers(broker, 0, 1, 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert broker.partitions.require("t", 0).log.log_end_offset == 1
        assert not answer.done()
        disk.gate.set()
        assert codes(await answer) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert sorted(disk.synced) == ["t-0", "t-1"]
        assert broker.partitions.require("t", 1).log.high_watermark == 1
        disk.fails = True
        assert codes(await write_markers(broker, 1, 2)) == [
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    live(tmp_path, life, log_flush_interval_messages="1")


def test_wait_for_the_commit_of_a_marker_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that cannot commit must not hold back the results of the others."""
    monkeypatch.setattr(write_txn_markers, "COMMIT_TIMEOUT_MS", 10)

    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1)
        disk.gate.clear()
        answer = write_markers(broker, 0, 1)
        assert codes(await answer) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert left(broker, 0) == 0
        disk.gate.set()
        monkeypatch.undo()
        assert codes(await write_markers(broker, 0)) == [0]

    live(tmp_path, life, log_flush_interval_messages="1")


def test_marker_counts_as_written_after_its_sync(tmp_path: Path) -> None:
    async def life(broker: Broker, disk: GatedDisk) -> None:
        await broker.topics.create("t", partitions=1)
        disk.gate.clear()
        replica, offset = broker.services.markers.append("t", 0, EndMarker(True, 1, 0, 0, 1))
        outcomes: list[ErrorCode] = []
        replica.when_committed(offset, outcomes.append)
        await asyncio.sleep(0)
        assert outcomes == []
        disk.gate.set()
        while not outcomes:
            await asyncio.sleep(0.001)
        assert outcomes == [ErrorCode.NONE]

    live(tmp_path, life, log_flush_interval_messages="1")
