"""Brokers that do not answer other requests than a producer's: the client logs after 3 s what it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.troubles import SILENT_SECONDS
from oncelog.protocol.apis import ApiKey
from support.processes import wait_until
from support.proxy import redirect
from support.servers import OncelogCluster
from support.silent_proxy import SilentProxy

TIMEOUT_MS = 10_000
"""Longer than the wait that is logged. A request that the proxy has dropped is sent again after this time."""


@pytest.fixture
def topic(oncelog_cluster: OncelogCluster) -> str:
    name = f"silent-{uuid.uuid4().hex[:8]}"
    with Producer(oncelog_cluster.bootstrap) as producer:
        producer.send(name, b"x").result(30)
    return name


@pytest.fixture
def proxy(topic: str, oncelog_cluster: OncelogCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentProxy]:
    made = SilentProxy(oncelog_cluster.bootstrap)
    redirect(monkeypatch, made)
    yield made
    made.close()


def list_topics(bootstrap: str, topic: str) -> object:
    with Admin(bootstrap) as admin:
        return admin.list_topics()


def send(bootstrap: str, topic: str) -> object:
    with Producer(bootstrap) as producer:
        return producer.send(topic, b"x").result(60)


def begin(bootstrap: str, topic: str) -> object:
    with Producer(bootstrap, transactional_id=topic, request_timeout_ms=TIMEOUT_MS) as producer:
        return producer.producer_id


def commit(bootstrap: str, topic: str) -> object:
    with Consumer(bootstrap, group_id=topic, request_timeout_ms=TIMEOUT_MS) as consumer:
        consumer.assign([(topic, 0)])
        return consumer.commit({(topic, 0): 1})


def reader(bootstrap: str, topic: str) -> Consumer:
    return Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest", request_timeout_ms=TIMEOUT_MS)


def read(bootstrap: str, topic: str) -> object:
    with reader(bootstrap, topic) as consumer:
        consumer.assign([(topic, 0)])
        return consumer.poll(60)


def join(bootstrap: str, topic: str) -> object:
    with reader(bootstrap, topic) as consumer:
        consumer.subscribe([topic])
        return consumer.poll(60)


NO_CONNECTION = "no broker has accepted a connection for 3 s"
CASES: dict[str, tuple[ApiKey, Callable[[str, str], object], str]] = {
    "connection of an admin client": (ApiKey.API_VERSIONS, list_topics, NO_CONNECTION),
    "connection of a producer": (ApiKey.API_VERSIONS, send, NO_CONNECTION),
    "connection of a transactional producer": (ApiKey.API_VERSIONS, begin, NO_CONNECTION),
    "connection of a consumer": (ApiKey.API_VERSIONS, read, NO_CONNECTION),
    "connection of a group member": (ApiKey.API_VERSIONS, join, NO_CONNECTION),
    "coordinator of a commit": (ApiKey.FIND_COORDINATOR, commit, "has not answered FindCoordinatorRequest for 3 s"),
    "coordinator of a member": (ApiKey.FIND_COORDINATOR, join, "has not answered FindCoordinatorRequest for 3 s"),
    "coordinator of transactions": (ApiKey.FIND_COORDINATOR, begin, "has not answered FindCoordinatorRequest for 3 s"),
    "fetch": (ApiKey.FETCH, read, "has not answered FetchRequest for 4 s"),
}


@pytest.mark.parametrize("case", CASES)
def test_wait_for_an_answer_is_logged_before_the_request_fails(
    case: str, proxy: SilentProxy, topic: str, oncelog_cluster: OncelogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "oncelog")
    key, call, expected = CASES[case]
    proxy.silent.add(key)
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call(oncelog_cluster.bootstrap, topic))
        except errors.OncelogError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: caplog.messages or not thread.is_alive(), "the wait is logged, or the call ends", timeout=60)
        first = caplog.messages[:1]
    finally:
        proxy.silent.clear()
        thread.join()
    assert expected in "".join(first)
    assert "Check " in "".join(first)
    assert not isinstance(results[0], Exception) or key is ApiKey.API_VERSIONS


def test_consumer_that_waits_long_for_records_logs_nothing(
    topic: str, oncelog_cluster: OncelogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "oncelog")
    with Consumer(oncelog_cluster.bootstrap, fetch_max_wait_ms=int(SILENT_SECONDS * 1000) + 1_000) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_end()
        assert consumer.poll(SILENT_SECONDS + 1.5) == []
    assert caplog.messages == []


def test_table_that_waits_for_memory_is_logged(
    proxy: SilentProxy, topic: str, oncelog_cluster: OncelogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, only a table of the blocking producer, and single records, logged that the buffer is full."""
    caplog.set_level(logging.WARNING, "oncelog")
    table: Any = pa.table({"value": ["x" * 1_000] * 100})

    async def main() -> None:
        async with aio.Producer(oncelog_cluster.bootstrap, buffer_memory=20_000, batch_size=5_000) as producer:
            await producer.partitions_for(topic)
            proxy.silent.add(ApiKey.PRODUCE)
            sending = asyncio.create_task(producer.send_table(topic, table))
            try:
                async with asyncio.timeout(30):
                    while not any("buffer_memory = 20000 is used up" in message for message in caplog.messages):
                        await asyncio.sleep(0.05)
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, errors.OncelogError):
                    await sending
                producer.purge()

    asyncio.run(main())
