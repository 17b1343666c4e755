"""A broker while another process holds the write lock of the metadata."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from oncelog.broker import workers
from oncelog.broker.metadata import loader, topics
from oncelog.cluster import store_sqlite
from oncelog.cluster.brokers import read_registrations
from oncelog.net.connection import connect
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support.broker_sets import Brokers, run


@contextmanager
def hanging_writer(folder: Path) -> Iterator[None]:
    """Hold the write lock of the metadata, as a process does that hangs while it writes."""
    with closing(sqlite3.connect(folder / "metadata.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_writes_that_wait_leave_threads_for_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sqlite, "WRITE_WAIT_S", 600.0)

    async def body(brokers: Brokers) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(workers.WRITING_THREADS + 1))
        broker = await brokers.start(1)
        with closing(sqlite3.connect(tmp_path / "metadata.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            cancelled = [asyncio.create_task(broker.topics.create(name)) for name in ("a", "b")]
            await asyncio.sleep(0)
            writes = [
                asyncio.create_task(work)
                for work in (
                    broker.topics.create("c"),
                    broker.registration.update(shutting_down=True),
                    broker.workers.write_store(broker.store.create, "/x"),
                )
            ]
            await asyncio.sleep(0.1)
            for task in cancelled:
                task.cancel()
            await asyncio.sleep(0.1)
            assert await asyncio.wait_for(broker.workers.offload(broker.store.exists, "/brokers"), 60)
        await asyncio.gather(*writes)
        assert broker.metadata.image.topic("c") is not None
        assert broker.store.exists("/x")
        assert read_registrations(broker.store)[1].shutting_down

    run(Brokers(tmp_path), body)


def test_metadata_request_waits_once_for_topics_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_sqlite, "WRITE_WAIT_S", 600.0)
    monkeypatch.setattr(topics, "MISSING_WAIT_S", 0.2)
    monkeypatch.setattr(topics, "MISSING_PAUSE_S", 0.2)

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        client = await connect("127.0.0.1", broker.server.port, request_timeout_ms=20_000, connect_timeout_ms=20_000)
        names = [f"t{number}" for number in range(200)]  # 200 waits would exceed the request's timeout
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        with hanging_writer(tmp_path):
            response: MetadataResponse = await client.call(request)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        while any(topic.error_code for topic in response.topics):
            response = await client.call(request)
        assert [topic.name for topic in response.topics] == names
        client.close()

    run(Brokers(tmp_path), body)


def test_create_topics_times_out_while_another_request_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sqlite, "WRITE_WAIT_S", 600.0)

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        client = await connect("127.0.0.1", broker.server.port, request_timeout_ms=20_000, connect_timeout_ms=20_000)
        wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b")]
        with hanging_writer(tmp_path):
            earlier = asyncio.create_task(broker.topics.create("earlier"))
            await asyncio.sleep(0)
            response: CreateTopicsResponse = await client.call(CreateTopicsRequest(topics=wanted, timeout_ms=200))
        assert [topic.error_code for topic in response.topics] == [ErrorCode.REQUEST_TIMED_OUT] * 2
        await earlier
        assert [topic.name for topic in broker.metadata.image.topics()] == ["earlier"]
        client.close()

    run(Brokers(tmp_path), body)


def test_change_without_a_deadline_waits_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sqlite, "WRITE_WAIT_S", 600.0)
    monkeypatch.setattr(loader, "CHANGE_WAIT_S", 0.2)

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        with hanging_writer(tmp_path):
            earlier = asyncio.create_task(broker.topics.create("earlier"))
            await asyncio.sleep(0)
            with pytest.raises(ProtocolError, match="other changes of the metadata are in progress"):
                await asyncio.wait_for(broker.topics.create("a"), 60)
        await earlier
        await broker.topics.create("a")

    run(Brokers(tmp_path), body)


@pytest.mark.parametrize("steps", range(5))
def test_cancelled_wait_for_other_changes_leaves_the_lock_to_the_next(tmp_path: Path, steps: int) -> None:
    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)

        async def change() -> None:
            async with broker.loader.changing():
                pass

        async with broker.loader.changing():
            waiting = asyncio.create_task(change())
            await asyncio.sleep(0.01)
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait_for(change(), 60)

    run(Brokers(tmp_path), body)
