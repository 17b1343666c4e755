"""Several brokers in one event loop, on one tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from oncelog.broker.broker import Broker
from oncelog.broker.config.settings import load
from oncelog.cluster.brokers import CONTROLLER, BrokerInfo, broker_path, encode_broker, encode_controller
from oncelog.cluster.image_nodes import prepare
from oncelog.cluster.store import MetadataStore
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.log.disk import OsDisk
from oncelog.net.connection import connect
from oncelog.protocol.messages.fetch import FetchRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from support.turns import until

NOW = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms


class Brokers:
    """Brokers in one event loop, with one store, or with one for each broker on the same file.

    Their sessions are long, because renewals wait for the threads that they share, and these for a slow disk. A broker
    that `crash` ends loses its lease at once.
    """

    def __init__(
        self, folder: Path, store: MetadataStore | None = None, now_ms: Callable[[], int] = lambda: NOW
    ) -> None:
        self.running: dict[int, Broker] = {}
        self.disk = OsDisk()
        self._now_ms = now_ms
        self._folder = folder
        self._store = store

    def make(self, node_id: int, folder: str = "", boot_id: str = "boot", **settings: str) -> Broker:
        given = {
            "node.id": str(node_id),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._folder / (folder or f"data-{node_id}")),
            "broker.session.timeout.ms": "60000",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        store = self._store or SqliteStore(str(self._folder / "metadata.sqlite"))
        return Broker(load(given), disk=self.disk, store=store, now_ms=self._now_ms, boot_id=boot_id)

    async def start(self, node_id: int, **options: str) -> Broker:
        broker = self.make(node_id, **options)
        await broker.start()
        self.running[node_id] = broker
        return broker

    async def stop(self, node_id: int) -> None:
        broker = self.running.pop(node_id)
        await broker.stop()
        if self._store is None:
            broker.store.close()

    async def crash(self, node_id: int) -> None:
        """End a broker without telling the others, and without the mark of a clean stop."""
        broker = self.running.pop(node_id)
        await broker.server.close()
        await broker.workers.close()
        if self._store is None:
            broker.store.close()


def run(brokers: Brokers, body: Callable[[Brokers], Coroutine[Any, Any, None]], *, limit_s: float = 240) -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(body(brokers), limit_s)
        finally:
            for node_id in tuple(brokers.running):
                await brokers.stop(node_id)

    asyncio.run(main())


def led_by_another() -> MemoryStore:
    """Return a tree in which broker 2 is the controller, and never changes anything."""
    store = MemoryStore(lambda: NOW)
    prepare(store)
    session = store.open_session("broker-2", 60_000)
    store.create(CONTROLLER, encode_controller(2), session=session)
    store.create(broker_path(2), encode_broker(BrokerInfo(0)), session=session)
    return store


async def ask(broker: Broker, request: Message, version: int | None = None, listener: str = "PLAINTEXT") -> Any:
    """Send a request on a new connection, and return the response."""
    connection = await connect("127.0.0.1", broker.server.listeners[listener].port)
    try:
        return await connection.call(request, version)
    finally:
        connection.close()


async def three(brokers: Brokers, **settings: str) -> list[Broker]:
    """Start brokers 1, 2 and 3, and wait until they know each other."""
    for node_id in (1, 2, 3):
        await brokers.start(node_id, broker_rack=f"rack-{node_id}", **settings)
    started = list(brokers.running.values())
    await until(lambda: all(len(broker.metadata.image.brokers) == 3 for broker in started))
    return started


async def everywhere(brokers: Brokers, topic: str) -> None:
    """Wait until all brokers know a topic."""
    await until(lambda: all(broker.metadata.image.topic(topic) for broker in brokers.running.values()))


async def produce(
    broker: Broker,
    topic: str = "t",
    *,
    value: bytes = b"x",
    acks: int = -1,
    timeout_ms: int = 5000,
    sequence: int | None = None,
) -> int:
    """Write a record, with a `sequence` as an idempotent producer. Return the error code."""
    records = [Record(0, NOW, None, value)]
    if sequence is None:
        written = build_batch(records)
    else:
        written = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
    data = PartitionProduceData(index=0, records=written)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    answer = await ask(broker, ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics), 11)
    return int(answer.responses[0].partition_responses[0].error_code)


def fetch_nothing(broker: Broker) -> None:
    """Let no Fetch of a broker reach a leader."""
    request = broker.peers.request

    async def held(*arguments: Any) -> Any:
        if any(isinstance(each, FetchRequest) for each in arguments):
            await asyncio.Event().wait()
        return await request(*arguments)

    broker.peers.request = held  # type: ignore[method-assign,assignment]


def publish_before_register_returns(broker: Broker, then: Callable[[], object] = lambda: None) -> None:
    """Let the loader of a broker read its registration, and what `then` writes, before `_register` returns."""
    registration, offload = broker.registration, broker.workers.offload

    async def delayed(work: Callable[..., object], *arguments: object) -> object:
        result = await offload(work, *arguments)
        if work == registration._register:
            then()
            await asyncio.wait({asyncio.create_task(broker.loader.catch_up())}, timeout=0.5)
        return result

    broker.workers.offload = delayed


def has_record(broker: Broker, topic: str, partition: int) -> bool:
    """Return whether a broker's replica has exactly one record."""
    replica = broker.partitions.opened_replica(topic, partition)
    return replica is not None and replica.log.log_end_offset == 1
