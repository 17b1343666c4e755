"""The loader: every change of metadata is written to the tree, and the parts of the broker follow the tree."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.metadata import loader as loader_module
from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.workers import Runtime, Workers
from oncelog.cluster import configs, features
from oncelog.cluster.changes import PATH, ChangeLog
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.image_nodes import prepare
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.store import UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topic_nodes import erase_topic, write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import BrokerStorage, append
from support.failing_store import FailingStore, Once, fail

TOPIC = TopicInfo("t", UUID(int=1, version=4), (PartitionInfo((1,), PartitionState(1, 0, (1,))),))
LOGGER = logging.getLogger("test")


def unreadable(times: int) -> Once:
    """Return a hook that fails the first reads of the log of changes."""
    return Once(fail(UnavailableError(PATH)), PATH.__eq__, times)


def with_loader(body: Callable[[FailingStore, MetadataLoader, MetadataCache], Coroutine[Any, Any, None]]) -> None:
    async def offload(work: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return work(*arguments)

    async def main() -> None:
        store = FailingStore()
        prepare(store)
        features.initialize(store, {})
        workers, cache = Workers(offload, LOGGER), MetadataCache()
        loader = MetadataLoader(store, cache, Runtime(workers, lambda: 0, random.getrandbits, LOGGER))
        loader.load()
        try:
            await body(store, loader, cache)
        finally:
            await workers.close()

    asyncio.run(main())


def test_topic_created_and_deleted_by_another_writer_is_applied(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        log = ChangeLog(broker.store)
        write_topic(log, TOPIC)
        assert broker.metadata.image.topic("t") is None
        await broker.loader.catch_up()
        assert broker.metadata.image.topic("t") == TOPIC
        replica = broker.partitions.require("t", 0)
        append(replica)
        configs.update_topic(log, "t", lambda _: {"retention.ms": "77"})
        await broker.loader.catch_up()
        assert replica.log.config.retention_ms == 77
        erase_topic(log, TOPIC)
        await broker.loader.catch_up()
        assert replica.log.closed

    storage.run_broker(life)


def test_broker_settings_changed_by_another_writer_are_applied(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        log = broker.partitions.require("t", 0).log
        change = {"log.retention.ms": "77", "max.connections": "5"}
        configs.update_broker(ChangeLog(broker.store), None, lambda _: change)
        await broker.loader.catch_up()
        assert (log.config.retention_ms, broker.server.entrance.quotas.max_connections) == (77, 5)

    storage.run_broker(life)


def test_change_of_another_writer_is_applied_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "POLL_S", 0.001)

    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        loader.start()
        applied = asyncio.Event()
        loader.subscribe(lambda delta: applied.set())
        write_topic(ChangeLog(store), TOPIC)
        await asyncio.wait_for(applied.wait(), 60)
        assert cache.image.topic("t") == TOPIC

    with_loader(body)


def test_caller_waits_for_a_change_that_another_reader_has_found() -> None:
    """Otherwise, CreateTopics could return before the broker has applied the change."""

    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        released = asyncio.Event()
        loader.subscribe(lambda delta: released.wait)  # type: ignore[arg-type, return-value]
        write_topic(ChangeLog(store), TOPIC)
        await loader.refresh()
        assert cache.image.topic("t") == TOPIC
        waiting = asyncio.ensure_future(loader.catch_up())
        for _ in range(3):
            await loader.refresh()
        assert not waiting.done()
        released.set()
        await asyncio.wait_for(waiting, 60)

    with_loader(body)


def test_topic_recreated_between_two_reads_has_its_own_logs(storage: BrokerStorage) -> None:
    many = 150

    async def life(broker: Broker) -> None:
        old = await broker.topics.create("t", partitions=many)
        for partition in range(many):
            append(broker.partitions.require("t", partition))
        log = ChangeLog(broker.store)
        erase_topic(log, old)
        new = replace(old, topic_id=UUID(int=2, version=4))
        write_topic(log, new)
        following = asyncio.ensure_future(broker.loader.catch_up())
        while broker.metadata.image.topic("t") != new:
            await asyncio.sleep(0)
        for partition in reversed(range(many)):
            append(broker.partitions.require("t", partition), b"new")
        await following
        for partition in range(many):
            replica = broker.partitions.require("t", partition)
            assert (replica.topic_id, replica.log.log_end_offset) == (new.topic_id, 1)

    async def again(broker: Broker) -> None:
        for partition in range(many):
            assert broker.partitions.require("t", partition).log.log_end_offset == 1

    storage.run_broker(life)
    storage.run_broker(again)


def test_second_of_two_deletions_does_not_delete_a_new_topic_of_the_name(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        old = await broker.topics.create("t", partitions=1)
        work = broker.topics.delete(old), broker.topics.create("t", partitions=1), broker.topics.delete(old)
        _, new, refused = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(refused, ProtocolError)
        assert refused.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.metadata.image.topic("t") == new

    storage.run_broker(life)


def test_stopped_broker_leaves_no_watch_in_the_store(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        """Do nothing."""

    for _ in range(3):
        storage.run_broker(life)
    assert isinstance(storage.store, MemoryStore)
    assert not storage.store._watches._watches


def test_unreadable_change_times_out_and_is_applied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "POLL_S", 0.001)

    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        loader.start()
        applied = asyncio.Event()
        loader.subscribe(lambda delta: applied.set())

        async def change() -> None:
            async with loader.changing() as log:
                write_topic(log, TOPIC)
                store.before_get = unreadable(2)

        with pytest.raises(ProtocolError, match="the metadata cannot be read") as caught:
            await change()
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert cache.image.topic("t") is None
        await applied.wait()
        assert cache.image.topic("t") == TOPIC

    with_loader(body)


def test_change_whose_answer_was_lost_is_applied() -> None:
    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        async def change() -> None:
            async with loader.changing() as log:
                write_topic(log, TOPIC)
                raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "the answer is lost")

        with pytest.raises(ProtocolError, match="the answer is lost"):
            await change()
        assert cache.image.topic("t") == TOPIC

    with_loader(body)


def test_failing_subscriber_does_not_keep_others_from_the_change(caplog: pytest.LogCaptureFixture) -> None:
    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        seen: list[str] = []

        def failing(delta: MetadataDelta) -> None:
            raise LookupError("a bug")

        loader.subscribe(failing)
        loader.subscribe(lambda delta: seen.extend(topic.name for topic in delta.created_topics))
        write_topic(ChangeLog(store), TOPIC)
        await loader.catch_up()
        assert seen == ["t"]
        assert "cannot apply change 1 of the metadata" in caplog.text

    with_loader(body)


def test_subscribers_apply_a_change_although_its_request_is_cancelled() -> None:
    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            begun.set()
            await may_end.wait()
            ended.set()

        loader.subscribe(lambda delta: slow)
        write_topic(ChangeLog(store), TOPIC)
        request: asyncio.Future[None] = asyncio.ensure_future(loader.catch_up())
        await begun.wait()
        request.cancel()
        assert isinstance((await asyncio.gather(request, return_exceptions=True))[0], asyncio.CancelledError)
        may_end.set()
        await asyncio.wait_for(ended.wait(), 60)

    with_loader(body)


def test_subscribers_start_in_the_order_of_the_changes() -> None:
    async def body(store: FailingStore, loader: MetadataLoader, cache: MetadataCache) -> None:
        begun: list[tuple[str, list[str]]] = []
        may_end = asyncio.Event()

        def subscriber(number: str) -> Callable[[MetadataDelta], Callable[[], Awaitable[object]]]:
            def begin(delta: MetadataDelta) -> Callable[[], Awaitable[object]]:
                begun.append((number, [topic.name for topic in delta.created_topics]))
                return may_end.wait

            return begin

        loader.subscribe(subscriber("first"))  # type: ignore[arg-type]
        loader.subscribe(subscriber("second"))  # type: ignore[arg-type]
        log = ChangeLog(store)
        waiting = []
        for work in (write_topic, erase_topic):  # the second change does not wait for the work of the first
            work(log, TOPIC)
            waiting.append(asyncio.ensure_future(loader.catch_up()))
            while len(begun) < 2 * len(waiting):
                await asyncio.sleep(0)
        assert begun == [("first", ["t"]), ("second", ["t"]), ("first", []), ("second", [])]
        assert not any(each.done() for each in waiting)
        may_end.set()
        await asyncio.gather(*waiting)

    with_loader(body)


def test_read_that_fails_after_its_callers_were_cancelled_is_no_unhandled_error() -> None:
    async def body(store: FailingStore, loader: MetadataLoader, _cache: MetadataCache) -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        write_topic(ChangeLog(store), TOPIC)
        store.before_get = failing = unreadable(1)
        caller = asyncio.ensure_future(loader.catch_up())
        await asyncio.sleep(0)
        caller.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not failing.left
        gc.collect()
        assert caller.cancelled()
        assert not unhandled

    with_loader(body)


def test_long_deletion_does_not_block_other_metadata_changes(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        may_end = asyncio.Event()
        topic = await broker.topics.create("t", partitions=1)
        broker.loader.subscribe(lambda delta: may_end.wait if delta.deleted_topics else None)  # type: ignore[arg-type,return-value]
        deleting = asyncio.ensure_future(broker.topics.delete(topic))
        while broker.metadata.image.topic("t") is not None:
            await asyncio.sleep(0)
        await broker.topics.create("other", partitions=1)
        assert not deleting.done()
        may_end.set()
        await deleting

    storage.run_broker(life)
