"""Our clients notice new partitions and missing topics automatically."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.client.consumer.metadata_watch import log as watch_log
from support.servers import Server

OFTEN = {"metadata_max_age_ms": 50, "retry_backoff_max_ms": 50}


def test_new_partitions_get_records_without_a_preceding_error(server: Server, name: str) -> None:
    with (
        Admin(server.bootstrap) as admin,
        Producer(server.bootstrap, linger_ms=0, **OFTEN) as producer,
        Consumer(server.bootstrap, **OFTEN) as consumer,
    ):
        admin.create_topics(name, 1)
        assert producer.send(name, b"first").result(30).partition == 0
        consumer.assign([(name, 0)])
        consumer.seek_to_beginning()
        assert consumer.poll(30)
        before = consumer._core.cluster.topology.version
        admin.create_partitions(name, 3)
        while producer.partitions_for(name) != 3:
            producer.send(name, b"more").result(30)
        assert producer.send(name, b"there", partition=2).result(30).partition == 2
        while consumer._core.cluster.topology.version == before:
            consumer.poll(0.05)


def test_missing_subscribed_topic_is_logged_once(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == watch_log.name]

    caplog.set_level(logging.WARNING, watch_log.name)
    with Admin(server.bootstrap) as admin, Consumer(server.bootstrap, group_id=name, **OFTEN) as consumer:
        admin.create_topics(name, 1)
        consumer.subscribe([name, f"{name}-typo"])
        while not said():
            consumer.poll(0.05)
        consumer._core.metadata_watch.assigned_by_group([name])  # as after the next rebalance
        consumer.poll(0.05)
    assert len(said()) == 1
    assert f"{name}-typo" in said()[0]


@pytest.mark.parametrize("offset", [None, 0])
def test_missing_assigned_topic_is_logged_once(
    server: Server, name: str, caplog: pytest.LogCaptureFixture, offset: int | None
) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == watch_log.name]

    caplog.set_level(logging.WARNING, watch_log.name)
    with Admin(server.bootstrap) as admin, Consumer(server.bootstrap, **OFTEN) as consumer:
        admin.create_topics(name, 1)
        for _ in range(2):
            consumer.assign([(name, 0), (f"{name}-typo", 0)])
            if offset is not None:  # its position is known, so the client does not look it up
                consumer.seek(f"{name}-typo", 0, offset)
            consumer.poll(0.05)
            while not said():
                consumer.poll(0.05)
            consumer.assign([(name, 0)])
            consumer.poll(0.05)
    assert len(said()) == 1
    assert f"assigned topic '{name}-typo': the topic or partition does not exist on this broker" in said()[0]


def test_consumer_closed_with_timeout_zero_leaves_no_task(server: Server, name: str) -> None:
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics(name, 1)
        producer.send(name, b"there").result(30)

    async def body() -> set[str]:
        from oncelog import aio

        before = asyncio.all_tasks()
        consumer = aio.Consumer(server.bootstrap, group_id=name, enable_auto_commit=True, auto_offset_reset="earliest")
        await consumer.start()
        consumer.subscribe([name])
        while not await consumer.poll(0.05):
            pass
        await consumer.close(0)  # even the commit does not complete in this time
        return {repr(task) for task in asyncio.all_tasks() - before}

    assert asyncio.run(body()) == set()
