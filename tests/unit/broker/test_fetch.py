import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.fetch import bind
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import ALWAYS_WAITS, MOST_WAITING
from oncelog.broker.requests.dispatch import Dispatcher
from oncelog.net.session import Session
from oncelog.net.unsent import LEAST
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import live

CONTEXT = RequestContext(ApiKey.FETCH, 12, 1, "test", Session())
BY_ID = RequestContext(ApiKey.FETCH, 16, 1, "test", Session())


def test_session_finds_a_topic_created_after_its_first_fetch(tmp_path: Path) -> None:
    """As Kafka's `maybeResolveUnknownName`: the client does not name the partition again, because it has not
    changed.
    """

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        batch = build_batch([Record(0, 10**12, b"k", b"v")])
        broker.partitions.require("t", 0).append(memoryview(batch), now_ms=10**12)

        def fetch(session_id: int, epoch: int, *topics: FetchTopic) -> FetchResponse:
            request = FetchRequest(session_id=session_id, session_epoch=epoch, topics=list(topics))
            answer = bind(broker.services)(request, BY_ID)
            assert isinstance(answer, FetchResponse)
            return answer

        image = broker.metadata.image
        broker.metadata.image = image.with_topics({"t": None})
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
        first = fetch(0, 0, FetchTopic(topic_id=topic.topic_id, partitions=[partition]))
        assert first.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        broker.metadata.image = image
        [found] = fetch(first.session_id, 1).responses[0].partitions
        assert (found.error_code, len(found.records)) == (0, len(batch))

    live(tmp_path, life=life, now_ms=lambda: 10**12)


@pytest.mark.parametrize("epoch", [-1, 0])
@pytest.mark.parametrize("times", [2, 300])
def test_fetch_of_one_partition_named_many_times_reads_it_once(tmp_path: Path, epoch: int, times: int) -> None:
    """As in Kafka, the last position counts. The Fetch waits with one watcher, which each append calls."""

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        replica = broker.partitions.require("t", 0)
        batch = build_batch([Record(0, 10**12, b"k", b"v")])
        replica.append(memoryview(bytearray(batch)), now_ms=10**12)
        named = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000) for _ in range(times)]
        named[-1].fetch_offset = 1
        request = FetchRequest(
            session_epoch=epoch, max_wait_ms=2**31 - 1, min_bytes=1, topics=[FetchTopic(topic="t", partitions=named)]
        )
        pending: Any = bind(broker.services)(request, CONTEXT)
        fetch = asyncio.ensure_future(pending)
        while not replica._watchers:
            await asyncio.sleep(0)
            assert not fetch.done()
        assert len(replica._watchers) == 1
        replica.append(memoryview(bytearray(batch)), now_ms=10**12)
        [found] = (await asyncio.wait_for(fetch, 20)).responses[0].partitions
        assert len(found.records) == len(batch)

    live(tmp_path, life=life, now_ms=lambda: 10**12)


def test_fetch_ends_in_time_when_the_clock_is_set_back(tmp_path: Path) -> None:
    now = 10**12

    async def life(broker: Broker) -> None:
        nonlocal now
        await broker.topics.create("t", partitions=1)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
        request = FetchRequest(
            max_wait_ms=200,
            min_bytes=10_000,
            isolation_level=1,
            topics=[FetchTopic(topic="t", partitions=[partition])],
        )
        pending = bind(broker.services)(request, CONTEXT)
        assert not hasattr(pending, "responses")
        fetch = asyncio.ensure_future(pending)
        await asyncio.sleep(0)
        now -= 3_600_000
        batch = build_batch([Record(0, now, b"k", b"v")])
        broker.partitions.require("t", 0).append(memoryview(batch), now_ms=now)
        response = await asyncio.wait_for(fetch, 60)
        assert len(response.responses[0].partitions[0].records) == len(batch)

    live(tmp_path, life=life, now_ms=lambda: now)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_fetch_returns_less_while_other_answers_are_unread(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The Fetch returns some records at once: it does not wait for `min_bytes` that are already available."""

    async def life(broker: Broker) -> None:
        await broker.topics.create("small", partitions=40)
        await broker.topics.create("large", partitions=4)
        for topic, partitions, size in (("small", 40, 30_000), ("large", 4, 300_000)):
            for partition in range(partitions):
                batch = build_batch([Record(0, 10**12, None, bytes(size))])
                broker.partitions.require(topic, partition).append(memoryview(batch), now_ms=10**12)

        def fetch(topic: str, count: int) -> list[int]:
            wanted = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(count)]
            request = FetchRequest(
                max_wait_ms=60_000, min_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=wanted)]
            )
            answer = bind(broker.services)(request, CONTEXT)
            assert isinstance(answer, FetchResponse), "it waits for data that is available"
            assert not any(each.error_code for each in answer.responses[0].partitions)
            return [len(each.records) for each in answer.responses[0].partitions]

        held = 0
        for _ in range(10):
            sizes = fetch("small", 40)
            assert sizes[0] > 30_000
            held += sum(sizes)
            broker.server.unsent.bytes += sum(sizes)
        assert held < 1_000_000 + 10 * 2 * LEAST
        large = fetch("large", 4)
        if loop is uvloop.new_event_loop:
            assert sum(large) > 4 * 300_000, "pages of files are sent as they are"
        else:  # the system copies them
            assert [size > 300_000 for size in large] == [True, False, False, False]
        broker.server.unsent.bytes = 0
        assert sum(fetch("small", 40)) > 480_000

    live(tmp_path, life=life, loop=loop, now_ms=lambda: 10**12, queued_max_response_bytes="1000000")


def test_fetches_read_in_turns_share_the_budget(tmp_path: Path) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=150)
        for partition in range(150):
            batch = build_batch([Record(0, 10**12, None, bytes(20_000))])
            broker.partitions.require("t", partition).append(memoryview(batch), now_ms=10**12)
        wanted = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(150)]

        async def fetch(session: Session) -> int:
            request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="t", partitions=wanted)])
            answer = await bind(broker.services)(request, replace(CONTEXT, session=session))  # type: ignore[misc]
            return sum(len(each.records) for each in answer.responses[0].partitions)

        sizes = await asyncio.gather(*(fetch(Session()) for _ in range(20)))
        assert min(sizes) >= LEAST
        assert sum(sizes) == broker.server.unsent.bytes < 2_000_000 + 20 * 2 * LEAST

    live(tmp_path, life=life, now_ms=lambda: 10**12, queued_max_response_bytes="2000000")


def test_fetch_of_many_partitions_pauses_before_it_creates_its_session(tmp_path: Path) -> None:
    async def life(broker: Broker) -> None:
        partitions = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(1000)]
        request = FetchRequest(session_epoch=0, topics=[FetchTopic(topic="no", partitions=partitions)])
        pending: Any = bind(broker.services)(request, CONTEXT)
        for _ in range(9):
            pending.send(None)
        assert len(broker.fetch_sessions) == 0
        response = await asyncio.ensure_future(pending)
        assert len(broker.fetch_sessions) == 1
        assert len(response.responses[0].partitions) == 1000

    live(tmp_path, life=life, now_ms=lambda: 10**12)


def test_fetch_that_forgets_many_partitions_pauses_before_it_changes_its_session(tmp_path: Path) -> None:
    async def life(broker: Broker) -> None:
        topics = [FetchTopic(topic="no", partitions=[FetchPartition(partition=0), FetchPartition(partition=1)])]
        begun = bind(broker.services)(FetchRequest(session_epoch=0, topics=topics), CONTEXT)
        assert isinstance(begun, FetchResponse)
        for forgotten in (
            [ForgottenTopic(topic="no", partitions=list(range(1, 1000)))],
            [ForgottenTopic(topic=f"no-{number}", partitions=[0]) for number in range(1000)],
        ):
            (session,) = broker.fetch_sessions._sessions.values()
            epoch = session.epoch
            request = FetchRequest(session_id=begun.session_id, session_epoch=epoch, forgotten_topics_data=forgotten)
            pending: Any = bind(broker.services)(request, CONTEXT)
            for _ in range(9):
                pending.send(None)
            assert session.epoch == epoch
            await asyncio.ensure_future(pending)
            assert (session.epoch, len(session.positions)) == (epoch + 1, 1)

    live(tmp_path, life=life, now_ms=lambda: 10**12)


def one_and_many(one: str, many: str) -> list[FetchTopic]:
    """Return a topic with one partition and one with 150, more than a Fetch reads in one turn."""
    return [
        FetchTopic(
            topic=name,
            partitions=[FetchPartition(partition=index, partition_max_bytes=1000) for index in range(count)],
        )
        for name, count in ((one, 1), (many, 150))
    ]


def test_fetch_waits_for_a_topic_recreated_during_its_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that the Fetch has read first is closed. It waits for the log of the new topic instead."""
    reads = 0

    async def life(broker: Broker) -> None:
        await broker.topics.create("again", partitions=1)
        await broker.topics.create("wide", partitions=150)
        asked = one_and_many("again", "wide")
        require = broker.partitions.require

        def counted(topic: str, partition: int) -> Any:
            nonlocal reads
            reads += topic == "again"
            return require(topic, partition)

        monkeypatch.setattr(broker.partitions, "require", counted)
        request = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=asked)
        pending: Any = bind(broker.services)(request, CONTEXT)
        while not reads:
            pending.send(None)
        # The Fetch has read the first 100 partitions.
        topic = broker.metadata.image.topic("again")
        assert topic is not None
        await broker.topics.delete(topic)
        await broker.topics.create("again", partitions=1)
        fetch = asyncio.ensure_future(pending)
        for _ in range(100):
            await asyncio.sleep(0)
        assert reads == 2, "it polls in a busy loop"
        batch = build_batch([Record(0, 10**12, b"k", b"v")])
        broker.partitions.require("again", 0).append(memoryview(batch), now_ms=10**12)
        response = await asyncio.wait_for(fetch, 60)
        assert len(response.responses[0].partitions[0].records) == len(batch)

    live(tmp_path, life=life, now_ms=lambda: 10**12)


def test_fetch_in_turns_returns_the_offsets_of_its_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark of a later turn may be that of another leader, with other records at these offsets."""
    reads = 0

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        await broker.topics.create("wide", partitions=150)
        replica = broker.partitions.require("t", 0)
        batch = build_batch([Record(0, 10**12, b"k", b"v")])
        replica.append(memoryview(bytearray(batch)), now_ms=10**12)
        asked = one_and_many("t", "wide")
        require_any = broker.partitions.require_any

        def counted(topic: str, partition: int) -> Any:
            nonlocal reads
            reads += topic == "t"
            return require_any(topic, partition)

        monkeypatch.setattr(broker.partitions, "require_any", counted)
        pending: Any = bind(broker.services)(FetchRequest(topics=asked), CONTEXT)
        while not reads:
            pending.send(None)
        # The Fetch has read the first 100 partitions.
        replica.append(memoryview(bytearray(batch)), now_ms=10**12)
        assert replica.log.high_watermark == 2
        response = await asyncio.wait_for(asyncio.ensure_future(pending), 60)
        [found] = response.responses[0].partitions
        assert len(found.records) == len(batch)
        assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (1, 1, 0)

    live(tmp_path, life=life, now_ms=lambda: 10**12)


def test_fetch_of_many_partitions_is_answered_soon_while_too_many_wait(tmp_path: Path) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=300)
        handle = bind(broker.services)

        def fetch(partitions: int) -> Any:
            indexes = range(partitions)
            wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10) for index in indexes]
            topics = [FetchTopic(topic="t", partitions=wanted)]
            request = FetchRequest(session_epoch=-1, max_wait_ms=600_000, min_bytes=1, topics=topics)
            result = handle(request, CONTEXT)
            return result if isinstance(result, FetchResponse) else asyncio.ensure_future(result)

        waiting = fetch(300)
        while handle._waiting.count < 300:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        handle._waiting.count = MOST_WAITING  # type: ignore[attr-defined]
        for partitions in (ALWAYS_WAITS + 1, 300):
            answer = fetch(partitions)
            if not isinstance(answer, FetchResponse):
                answer = await asyncio.wait_for(answer, 60)
            assert len(answer.responses[0].partitions) == partitions
        small = fetch(ALWAYS_WAITS)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        large = fetch(300 - ALWAYS_WAITS)
        while handle._waiting.count < MOST_WAITING:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert not large.done()
        assert not small.done()
        for each in (small, large):
            each.cancel()
        await asyncio.gather(small, large, return_exceptions=True)
        assert handle._waiting.count == MOST_WAITING - 300  # type: ignore[attr-defined]

    live(tmp_path, life=life, now_ms=lambda: 10**12)


def test_all_versions_of_fetch_share_the_limit_of_waiting_partitions(tmp_path: Path) -> None:
    """Otherwise, a client would get the limit once for each version."""

    async def life(broker: Broker) -> None:
        partitions = ALWAYS_WAITS + 1
        await broker.topics.create("t", partitions=partitions)
        dispatcher = Dispatcher(broker.services)

        def fetch(version: int, max_wait_ms: int) -> Any:
            wanted = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=10) for n in range(partitions)]
            topics = [FetchTopic(topic="t", partitions=wanted)]
            request = FetchRequest(session_epoch=-1, max_wait_ms=max_wait_ms, min_bytes=1, topics=topics)
            header = encode_request_header(RequestHeader(ApiKey.FETCH, version, 1, "test"))
            return dispatcher(memoryview(bytearray(header + request.encode(version))), Session("", 1, 1))

        fetch(11, 0)
        handler: Any = dispatcher._routes[ApiKey.FETCH, 11].handle
        handler._waiting.count = MOST_WAITING
        assert await asyncio.wait_for(fetch(12, 600_000).answer, 30)
        assert handler._waiting.count == MOST_WAITING

    live(tmp_path, life=life, now_ms=lambda: 10**12)
