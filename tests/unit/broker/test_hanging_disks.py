"""A broker with a log directory that hangs: its worker threads do not return. The other one stays in service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oncelog.broker import workers
from oncelog.broker.broker import Broker
from oncelog.broker.handlers import describe_log_dirs
from oncelog.broker.process import METADATA_FILE
from oncelog.broker.storage import housekeeping
from oncelog.broker.storage.data_directory import HIGH_WATERMARKS
from oncelog.broker.workers import worker_threads
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.log.checkpoint import read_offset_checkpoint
from oncelog.log.disk import OsDisk
from oncelog.net.connection import ClientConnection, connect
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from oncelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, running
from support.hooked_disk import HookedDisk
from support.turns import until

REQUESTS = 40
"""More than the worker threads of a broker with two log directories."""


WAITS = {"space", "exists", "sync", "replace", "remove"}
"""The kinds of operations that wait for the device."""


class HangingDisk(HookedDisk):
    """A disk whose device hangs below one path. Only worker threads wait for the device."""

    def __init__(self) -> None:
        super().__init__(self._before)
        self.hung = ""
        self.waiting = 0
        """The threads that wait for the device now."""
        self._continues = threading.Event()
        self._counting = threading.Lock()

    def release(self) -> None:
        self.hung = ""
        self._continues.set()

    def _before(self, kind: str, path: str) -> None:
        if (
            kind in WAITS
            and path.startswith(self.hung or "?")
            and threading.current_thread() is not threading.main_thread()
        ):
            with self._counting:
                self.waiting += 1
            self._continues.wait()
            with self._counting:
                self.waiting -= 1


class Life:
    """A broker with the log directories a and b, and a client."""

    def __init__(self, folder: Path, disk: HangingDisk, broker: Broker, client: ClientConnection) -> None:
        self.disk, self.broker, self.client = disk, broker, client
        self.a, self.b = str(folder / "a"), str(folder / "b")

    def partitions(self, path: str, topic: str) -> list[int]:
        found = ((index, self.broker.directories.find(topic, index)) for index in range(4))
        return [index for index, directory in found if directory is not None and directory.path == path]

    async def send(self, client: ClientConnection, topic: str, partition: int) -> int:
        data = [PartitionProduceData(index=partition, records=bytes(build_batch([Record(0, NOW, b"k", b"v")])))]
        info = self.broker.metadata.image.topic(topic)
        assert info is not None
        topics = [TopicProduceData(name=topic, topic_id=info.topic_id, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=topics)
        answer: ProduceResponse = await client.call(request)
        return answer.responses[0].partition_responses[0].error_code

    async def another(self) -> ClientConnection:
        return await connect("127.0.0.1", self.broker.server.port, request_timeout_ms=60_000)


def live(folder: Path, body: Callable[[Life], Awaitable[None]]) -> None:
    """Run `body` on a broker with the topic t, whose appends wait for a sync. In the end, no directory hangs."""

    async def run() -> None:
        settings = {
            "log_dirs": f"{folder}/a,{folder}/b",
            "log_cleaner_enable": "false",
            "log_flush_offset_checkpoint_interval_ms": "100",
            "log_segment_delete_delay_ms": "0",
        }
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(worker_threads(2)))
        disk, store = HangingDisk(), SqliteStore(str(folder / METADATA_FILE))
        async with running(folder, store, disk=disk, **settings) as broker:
            client = await connect("127.0.0.1", broker.server.port, request_timeout_ms=30_000)
            life = Life(folder, disk, broker, client)
            await broker.topics.create("t", partitions=4, configs={"flush.messages": "1"})
            assert [await life.send(client, "t", index) for index in range(4)] == [0] * 4
            try:
                await asyncio.wait_for(body(life), 90)
            finally:
                disk.release()
                client.close()
        store.close()

    asyncio.run(run())


def test_hanging_log_directory_leaves_threads_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_log_dirs, "SPACE_WAIT_S", 600.0)

    async def body(life: Life) -> None:
        life.disk.hung = life.a
        clients = [await life.another() for _ in range(REQUESTS)]
        describing = [asyncio.create_task(client.call(DescribeLogDirsRequest())) for client in clients[:-1]]
        writing = asyncio.create_task(life.send(clients[-1], "t", life.partitions(life.a, "t")[0]))
        await until(lambda: life.disk.waiting >= workers.DISK_THREADS)
        await asyncio.sleep(0.5)  # more of them may begin to wait
        assert life.disk.waiting == workers.DISK_THREADS
        assert await life.send(life.client, "t", life.partitions(life.b, "t")[0]) == 0
        await asyncio.wait_for(life.broker.topics.create("u"), 60)
        assert not writing.done()
        life.disk.release()
        assert await writing == 0
        answers: list[DescribeLogDirsResponse] = await asyncio.gather(*describing)
        assert {result.error_code for answer in answers for result in answer.results} == {0}
        for client in clients:
            client.close()

    live(tmp_path, body)


def test_checkpoints_of_other_directories_are_written_while_one_hangs(tmp_path: Path) -> None:
    async def body(life: Life) -> None:
        life.disk.hung = life.a
        await until(lambda: life.disk.waiting)
        partition = life.partitions(life.b, "t")[0]
        for end in (2, 3):  # the first round may have begun before
            assert await life.send(life.client, "t", partition) == 0
            await until(
                lambda end=end: (
                    read_offset_checkpoint(OsDisk(), f"{life.b}/{HIGH_WATERMARKS}").get(("t", partition)) == end
                )
            )

    live(tmp_path, body)


def test_files_in_other_directories_are_removed_while_one_hangs(tmp_path: Path) -> None:
    async def body(life: Life) -> None:
        life.disk.hung = life.a
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=20_000)
        answer: DeleteTopicsResponse = await life.client.call(request)
        assert answer.responses[0].error_code == 0
        await until(lambda: not list(Path(life.b).glob("t-*")))
        assert list(Path(life.a).glob("t-*"))

    live(tmp_path, body)


def test_loss_of_another_directory_is_noticed_while_one_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "DIRECTORY_CHECK_MS", 50)

    async def body(life: Life) -> None:
        life.disk.hung = life.a
        await until(lambda: life.disk.waiting)
        (Path(life.b) / "meta.properties").rename(tmp_path / "meta.properties")
        await until(lambda: not life.broker.directories.holding(f"{life.b}/x").online)

    live(tmp_path, body)


def test_log_directories_report_a_hanging_one_as_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_log_dirs, "SPACE_WAIT_S", 0.2)

    async def body(life: Life) -> None:
        life.disk.hung = life.a
        answer: DescribeLogDirsResponse = await life.client.call(DescribeLogDirsRequest())
        found = {result.log_dir: result.error_code for result in answer.results}
        assert found == {life.a: ErrorCode.KAFKA_STORAGE_ERROR, life.b: ErrorCode.NONE}

    live(tmp_path, body)
