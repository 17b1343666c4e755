"""Metadata changed while a broker runs: concurrently, without access to the tree, and read again afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.fetch import bind as fetch
from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.requests.context import RequestContext
from oncelog.cluster import configs
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.store import UnavailableError
from oncelog.cluster.topic_nodes import add_partitions, read_topic
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.broker_fixtures import NOW, live
from support.failing_store import FailingStore, fail, ignore


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(lambda: NOW)


def setting(name: str, value: str) -> Callable[[Mapping[str, str]], dict[str, str]]:
    """Return a change of one setting."""
    return lambda before: {**before, name: value}


def test_concurrent_changes_are_all_kept(tmp_path: Path, store: FailingStore) -> None:
    names = ["retention.ms", "segment.ms", "flush.ms", "max.message.bytes"]

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        log = broker.partitions.require("t", 0).log
        alter = broker.settings.alter_topic
        await asyncio.gather(*(alter("t", setting(name, "77"), validate_only=False) for name in names))
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        assert topic.configs == dict.fromkeys(names, "77")
        assert (log.config.retention_ms, log.config.segment_ms, log.config.max_message_bytes) == (77, 77, 77)

    live(tmp_path, store, life)
    assert configs.read(store, "/config/topics/t") == dict.fromkeys(names, "77")


def test_unknown_settings_are_kept_and_do_not_block_changes(tmp_path: Path, store: FailingStore) -> None:
    foreign = "leader.replication.throttled.replicas"

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1, configs={foreign: "*"})
        await broker.settings.alter_topic("t", setting("retention.ms", "77"), validate_only=False)
        assert configs.read(store, "/config/topics/t") == {foreign: "*", "retention.ms": "77"}
        for change in (setting(foreign, "0:1"), setting("another.strange.one", "1")):
            with pytest.raises(ProtocolError) as caught:
                await broker.settings.alter_topic("t", change, validate_only=False)
            assert caught.value.code == ErrorCode.INVALID_CONFIG
        await broker.settings.alter_topic("t", lambda _: {}, validate_only=False)
        assert configs.read(store, "/config/topics/t") == {}
        store.create(configs.broker_path(1), configs.encode({"from.the.future": "1"}))
        change = setting("log.cleaner.backoff.ms", "77")
        await broker.settings.alter_broker(1, change, validate_only=False)
        found = configs.read(store, configs.broker_path(1))
        assert found == {"from.the.future": "1", "log.cleaner.backoff.ms": "77"}

    live(tmp_path, store, life)


def test_concurrent_growth_and_deletion(tmp_path: Path, store: FailingStore) -> None:
    """Whichever is first: nothing of the topic is left, and nothing reappears."""

    async def life(broker: Broker) -> None:
        for turn in range(4):
            topic = await broker.topics.create("t", partitions=1)
            grow = broker.topics.add_partitions(topic, [(1,), (1,)])
            work = [grow, broker.topics.delete(topic)]
            results = await asyncio.gather(*(work if turn % 2 else reversed(work)), return_exceptions=True)
            failures = [each for each in results if isinstance(each, BaseException)]
            assert all(isinstance(each, ProtocolError) for each in failures), failures
            assert [each.code for each in failures if isinstance(each, ProtocolError)] in (
                [],
                [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            )
            assert broker.metadata.image.topic("t") is None
            assert store.children("/brokers/topics") == []

    live(tmp_path, store, life)


def test_change_whose_turn_comes_after_its_deadline_is_not_made(tmp_path: Path, store: FailingStore) -> None:
    async def life(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=1)
        deadline = Deadline(1)
        async with broker.loader.changing():
            work = (
                asyncio.ensure_future(broker.topics.add_partitions(topic, [(1,)], deadline)),
                asyncio.ensure_future(broker.topics.delete(topic, deadline)),
            )
            loop = asyncio.get_running_loop()
            over = loop.time() + 0.001
            while loop.time() <= over:
                await asyncio.sleep(0.001)
        for each in await asyncio.gather(*work, return_exceptions=True):
            assert isinstance(each, ProtocolError)
            assert each.code == ErrorCode.REQUEST_TIMED_OUT
        assert broker.metadata.image.topic("t") == topic
        assert read_topic(store, "t") == topic

    live(tmp_path, store, life)


def test_change_that_the_store_rejects_has_no_effect(tmp_path: Path, store: FailingStore) -> None:
    async def life(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=2)
        before = broker.config.current
        administration = broker.settings
        store.before = fail(UnavailableError("/"))
        for work in (
            administration.alter_topic("t", setting("retention.ms", "5"), validate_only=False),
            administration.alter_broker(1, setting("message.max.bytes", "5"), validate_only=False),
            broker.topics.add_partitions(topic, [(1,)]),
        ):
            with pytest.raises(ProtocolError) as caught:
                await work
            assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        store.before = ignore
        assert broker.metadata.image.topic("t") == topic
        assert broker.config.current == before

    live(tmp_path, store, life)
    found = read_topic(store, "t")
    assert (found.partition_count, found.configs) == (2, {})


def test_growth_from_an_outdated_partition_count(tmp_path: Path, store: FailingStore) -> None:
    async def life(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=1)
        grow = broker.topics.add_partitions
        results = await asyncio.gather(grow(topic, [(1,)]), grow(topic, [(1,)]), return_exceptions=True)
        (failure,) = [each for each in results if each is not None]
        assert isinstance(failure, ProtocolError)
        assert failure.code == ErrorCode.INVALID_PARTITIONS
        grown = broker.metadata.image.topic("t")
        assert grown is not None
        assert grown.partition_count == 2
        with pytest.raises(ProtocolError, match="now has 2 partitions"):  # as another broker would find it
            add_partitions(ChangeLog(store), topic, grown.partitions[1:])

    live(tmp_path, store, life)


def test_unknown_settings_are_skipped(tmp_path: Path, store: FailingStore, caplog: pytest.LogCaptureFixture) -> None:
    async def first(broker: Broker) -> None:
        await broker.settings.alter_broker(None, setting("message.max.bytes", "500"), validate_only=False)

    async def second(broker: Broker) -> None:
        assert broker.config.current.message_max_bytes == 500
        assert broker.config.of_all == {"message.max.bytes": "500"}

    live(tmp_path, store, first)
    path = "/config/brokers/<default>"
    strange = {"message.max.bytes": "500", "log.segment.bytes": "tiny", "from.the.future": "1"}
    store.set(path, configs.encode(strange))
    with caplog.at_level(logging.ERROR):
        live(tmp_path, store, second)
    assert [record.getMessage().rsplit(" ", 1)[1] for record in caplog.records] == [
        "from.the.future",
        "log.segment.bytes",
    ]


def test_disconnected_watcher_is_removed(tmp_path: Path, store: FailingStore) -> None:
    async def life(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=1)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=2**31 - 1,
            min_bytes=1,
            max_bytes=1000,
            topics=[FetchTopic(topic_id=topic.topic_id, partitions=[partition])],
        )
        context = RequestContext(ApiKey.FETCH, 16, 1, "test", Session())
        pending = fetch(broker.services)(request, context)
        assert isinstance(pending, Awaitable)
        waiting = asyncio.ensure_future(pending)
        await asyncio.sleep(0)
        watchers = broker.partitions.require("t", 0)._watchers
        assert watchers
        context.session.disconnected()
        answer = await waiting
        assert answer.responses[0].partitions[0].records == b""
        assert not watchers
        assert not context.session.waiting

    live(tmp_path, store, life)
