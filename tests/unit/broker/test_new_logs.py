"""A worker thread creates the files of many new logs. Nothing is lost if the log changes meanwhile."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.produce import bind as produce
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.storage.new_logs import LOGS_A_JOB
from oncelog.log.steps import at_once
from oncelog.net.server import Deferred
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.topics import TRANSACTION_STATE
from support.broker_fixtures import NOW, append, running
from support.hooked_disk import HookedDisk

MANY = 30
FILES = ["00000000000000000000.log", "partition.metadata"]


class CreatingDisk(HookedDisk):
    """Record the threads that create folders and small files. The creation of one folder's files may fail."""

    def __init__(self) -> None:
        super().__init__(self._before)
        self.threads: set[int] = set()
        self.failing = ""

    def _before(self, kind: str, path: str) -> None:
        if kind in ("mkdir", "replace"):
            self.threads.add(threading.get_ident())
        if kind == "replace" and self.failing and f"/{self.failing}." in path:
            raise OSError(errno.EMFILE, "too many open files", path)


class Workers:
    """Run offloaded work in a thread when the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await self.gate.wait()
        return await asyncio.to_thread(work, *arguments)


def live(folder: Path, body: Callable[[Broker, CreatingDisk, Workers], Awaitable[None]]) -> None:
    """Run `body` on a broker with the topic t."""

    async def run() -> None:
        workers, disk = Workers(), CreatingDisk()
        async with running(folder, disk=disk, offload=workers, log_cleaner_enable="false") as broker:
            await broker.topics.create("t", partitions=MANY)
            disk.threads.clear()
            try:
                await asyncio.wait_for(body(broker, disk, workers), 60)
            finally:
                workers.gate.set()

    asyncio.run(run())


async def sent(broker: Broker, count: int) -> list[Any]:
    """Produce a record to each of the first partitions, and return their answers."""
    data = [
        PartitionProduceData(index=index, records=memoryview(build_batch([Record(0, NOW, b"k", b"v")])))
        for index in range(count)
    ]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    result: Any = produce(broker.services)(request, RequestContext(ApiKey.PRODUCE, 9, 1, "test", Session()))
    if isinstance(result, Deferred):
        result = await result.answer
    return list(result.responses[0].partition_responses)


def folders(folder: Path) -> dict[str, list[str]]:
    return {path.name: sorted(file.name for file in path.iterdir()) for path in folder.glob("t-*")}


async def only_logs(folder: Path) -> None:
    """Return when the temporary folders are gone."""
    while list(folder.glob("*-delete")):
        await asyncio.sleep(0.005)


def test_worker_creates_the_files_of_many_new_logs(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        answers = await sent(broker, MANY)
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0)] * MANY
        assert threading.get_ident() not in disk.threads
        assert folders(tmp_path) == {f"t-{index}": FILES for index in range(MANY)}
        assert [answer.base_offset for answer in await sent(broker, MANY)] == [1] * MANY

    live(tmp_path, body)


def test_append_creates_the_files_of_few_new_logs(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        workers.gate.clear()
        assert not any(answer.error_code for answer in await sent(broker, 3))
        assert disk.threads == {threading.get_ident()}

    live(tmp_path, body)


def test_records_appended_while_files_are_created_are_kept(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        workers.gate.clear()
        pending = asyncio.ensure_future(sent(broker, MANY))
        await asyncio.sleep(0.01)
        append(broker.partitions.require("t", 7))
        workers.gate.set()
        offsets = [answer.base_offset for answer in await pending]
        assert offsets == [0] * 7 + [1] + [0] * (MANY - 8)
        assert broker.partitions.require("t", 7).log.size_bytes > broker.partitions.require("t", 8).log.size_bytes
        await only_logs(tmp_path)
        assert folders(tmp_path) == {f"t-{index}": FILES for index in range(MANY)}

    live(tmp_path, body)


def test_two_requests_may_create_the_same_logs(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        answers = await asyncio.gather(sent(broker, MANY), sent(broker, MANY))
        offsets = [[answer.base_offset for answer in partitions] for partitions in zip(*answers, strict=True)]
        assert [sorted(pair) for pair in offsets] == [[0, 1]] * MANY
        await only_logs(tmp_path)
        assert folders(tmp_path) == {f"t-{index}": FILES for index in range(MANY)}

    live(tmp_path, body)


def test_topic_deleted_while_its_files_are_created_leaves_none(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        workers.gate.clear()
        pending = asyncio.ensure_future(sent(broker, MANY))
        await asyncio.sleep(0.01)
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        at_once(broker.partitions.dropping(topic))
        workers.gate.set()
        assert {answer.error_code for answer in await pending} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        await only_logs(tmp_path)
        assert folders(tmp_path) == {}

    live(tmp_path, body)


def test_append_creates_the_files_that_the_worker_could_not(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        disk.failing = "t-4"
        answers = await sent(broker, MANY)
        assert not any(answer.error_code for answer in answers)
        await only_logs(tmp_path)
        assert folders(tmp_path) == {f"t-{index}": FILES for index in range(MANY)}

    live(tmp_path, body)


def test_disconnected_client_leaves_no_temporary_folder(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        workers.gate.clear()
        pending = asyncio.ensure_future(sent(broker, MANY))
        await asyncio.sleep(0.01)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        workers.gate.set()
        while len(list(tmp_path.glob("t-*"))) < LOGS_A_JOB:
            await asyncio.sleep(0.005)
        await only_logs(tmp_path)
        assert len(folders(tmp_path)) == LOGS_A_JOB

    live(tmp_path, body)


def test_worker_creates_the_files_of_logs_that_get_markers(tmp_path: Path) -> None:
    async def body(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        transactions = broker.transactions
        await broker.topics.ensure_internal(TRANSACTION_STATE)
        first = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        who = await transactions.init_producer_id(first, 4)
        producer = who.producer_id, who.producer_epoch
        partitions = [("t", index) for index in range(MANY)]
        added = await transactions.add_partitions("id", *producer, partitions, verify_only=False, client_version=0)
        assert not any(added.values())
        disk.threads.clear()
        end = EndTxnRequest(transactional_id="id", producer_id=who.producer_id, producer_epoch=0, committed=True)
        assert not (await transactions.end_txn(end, 3)).error_code
        while (await transactions.describe("id")).transaction_state != "CompleteCommit":
            await asyncio.sleep(0.005)
        assert [broker.partitions.require(*partition).log.log_end_offset for partition in partitions] == [1] * MANY
        assert threading.get_ident() not in disk.threads

    live(tmp_path, body)


def test_next_start_removes_a_temporary_folder(tmp_path: Path) -> None:
    async def first(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        replica = broker.partitions.require("t", 0)
        replica.log.creation(broker.new_logs._temporary(replica))()
        assert len(folders(tmp_path)) == 1

    async def second(broker: Broker, disk: CreatingDisk, workers: Workers) -> None:
        await only_logs(tmp_path)
        assert folders(tmp_path) == {}

    live(tmp_path, first)
    live(tmp_path, second)
