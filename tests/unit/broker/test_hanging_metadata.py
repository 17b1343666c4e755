"""A broker while another process holds the write lock of the metadata."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from oncelog.broker import workers
from oncelog.cluster import store_sqlite
from oncelog.cluster.brokers import read_registrations
from support.broker_sets import Brokers, run


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
                    broker.workers.write(broker.store.create, "/x"),
                )
            ]
            await asyncio.sleep(0.1)
            for task in cancelled:
                task.cancel()
            await asyncio.sleep(0.1)
            assert await asyncio.wait_for(broker.workers.offload(broker.store.exists, "/brokers"), 10)
        await asyncio.gather(*writes)
        assert broker.metadata.image.topic("c") is not None
        assert broker.store.exists("/x")
        assert read_registrations(broker.store)[1].shutting_down

    run(Brokers(tmp_path), body)
