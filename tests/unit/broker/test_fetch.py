import asyncio
from pathlib import Path

from oncelog.broker.broker import Broker
from oncelog.broker.config import load
from oncelog.broker.context import RequestContext
from oncelog.broker.handlers.fetch import handle
from oncelog.cluster.tree_memory import MemoryTree
from oncelog.log.disk import OsDisk
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from oncelog.protocol.records import Record, build_batch

CONTEXT = RequestContext(ApiKey.FETCH, 12, 1, "", "", 1)
BY_ID = RequestContext(ApiKey.FETCH, 16, 1, "", "", 1)


def test_a_topic_that_comes_later_is_found_by_the_session_that_asked_too_early(tmp_path: Path) -> None:
    """As Kafka's `maybeResolveUnknownName`: the client does not name the partition again, for nothing changed."""

    async def run() -> None:
        config = load({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        broker = Broker(config, disk=OsDisk(), tree=MemoryTree(lambda: 0), now_ms=lambda: 10**12)
        await broker.start()
        await broker.create_topic("t", partitions=1)
        topic = broker.metadata.topic("t")
        assert topic is not None
        batch = build_batch([Record(0, 10**12, b"k", b"v")])
        broker.partitions.find("t", 0).append(memoryview(batch), now_ms=10**12)

        def fetch(session_id: int, epoch: int, *topics: FetchTopic) -> FetchResponse:
            request = FetchRequest(session_id=session_id, session_epoch=epoch, topics=list(topics))
            answer = handle(broker, request, BY_ID)
            assert isinstance(answer, FetchResponse)
            return answer

        broker.metadata.forget(topic)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
        first = fetch(0, 0, FetchTopic(topic_id=topic.topic_id, partitions=[partition]))
        assert first.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        broker.metadata.admit(topic)
        [found] = fetch(first.session_id, 1).responses[0].partitions
        assert (found.error_code, len(found.records)) == (0, len(batch))
        await broker.stop()

    asyncio.run(run())


def test_a_fetch_ends_in_time_when_the_clock_is_set_back(tmp_path: Path) -> None:
    async def run() -> None:
        now = 10**12
        config = load({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        broker = Broker(config, disk=OsDisk(), tree=MemoryTree(lambda: 0), now_ms=lambda: now)
        await broker.start()
        await broker.create_topic("t", partitions=1)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
        request = FetchRequest(
            max_wait_ms=200,
            min_bytes=10_000,
            isolation_level=1,
            topics=[FetchTopic(topic="t", partitions=[partition])],
        )
        pending = handle(broker, request, CONTEXT)
        assert not hasattr(pending, "responses")
        fetch = asyncio.ensure_future(pending)
        await asyncio.sleep(0)
        now -= 3_600_000
        batch = build_batch([Record(0, now, b"k", b"v")])
        broker.partitions.find("t", 0).append(memoryview(batch), now_ms=now)
        response = await asyncio.wait_for(fetch, 20)
        assert len(response.responses[0].partitions[0].records) == len(batch)
        await broker.stop()

    asyncio.run(run())
