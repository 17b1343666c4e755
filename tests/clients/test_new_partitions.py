"""Records for partitions that were added or removed after the producer had loaded the topic's metadata."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.producer import table_batches
from support.processes import wait_until
from support.reading import read
from support.servers import Server

WITHIN_S = 60.0


def test_added_partition_can_be_sent_to(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"a", partition=1).result(WITHIN_S)
        admin.create_partitions(name, 3)
        assert producer.send(name, b"b", partition=2).result(WITHIN_S).partition == 2
        admin.create_partitions(name, 4)
        table = pa.table({"value": ["c", "d"], "partition": [3, 0]})
        assert producer.send_table(name, table).result(WITHIN_S) == {(name, 3): 0, (name, 0): 0}
    assert read(server.bootstrap, name, 4) == [b"d", b"a", b"b", b"c"]


def test_added_partition_can_be_sent_to_with_asyncio(server: Server, admin: Admin, name: str) -> None:
    async def body() -> None:
        async with aio.Producer(server.bootstrap) as producer:
            await producer.send(name, b"a", partition=1)
            await asyncio.to_thread(admin.create_partitions, name, 3)
            assert (await (await producer.send(name, b"b", partition=2))).partition == 2
            await asyncio.to_thread(admin.create_partitions, name, 4)
            sent = await producer.send_table(name, pa.table({"value": ["c"], "partition": [3]}))
            assert await sent == {(name, 3): 0}

    admin.create_topics(name, 2)
    asyncio.run(asyncio.wait_for(body(), WITHIN_S))


def test_partly_sent_table_continues_in_added_partition(
    server: Server, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_batches, "PIECE_ROWS", 10)
    monkeypatch.setattr(table_batches, "LOOK_AHEAD", 2)
    numbers = list(range(100))
    partitions = [number // 50 for number in numbers]
    with Producer(server.bootstrap) as producer:
        admin.create_topics(name)
        producer.partitions_for(name)
        admin.create_partitions(name, 2)
        table = pa.table({"value": [str(number) for number in numbers], "partition": partitions})
        sent = producer.send_table(name, table)
        assert sent.rows == 100
        assert sent.result(WITHIN_S) == {(name, 0): 0, (name, 1): 0}
    assert read(server.bootstrap, name, 2) == [b"%d" % number for number in numbers]


def test_error_names_missing_partition_and_wait_time(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap, max_block_ms=2_000) as producer:
        with pytest.raises(errors.UnknownTopicError, match=r"partitions 0 to 1, not 7, after 2000 ms \(max_block_ms\)"):
            producer.send(name, b"x", partition=7)
        with pytest.raises(errors.UnknownTopicError, match=r"not 7, after 2000 ms"):
            producer.send_table(name, pa.table({"value": ["x"], "partition": [7]}))


def test_metadata_requests_for_recreated_topic_back_off(server: Server, admin: Admin, name: str) -> None:
    """Before, the producer requested metadata 12,000 times a second."""
    admin.create_topics(name, 3)
    with Producer(server.bootstrap, retry_backoff_ms=100, linger_ms=0) as producer:
        producer.send(name, b"x", partition=2).result(WITHIN_S)
        updater = producer._core.cluster._metadata
        asked: list[None] = []
        refresh = updater._refresh

        async def counted(*arguments: object) -> None:
            asked.append(None)
            await refresh(*arguments)  # type: ignore[arg-type]

        updater._refresh = counted  # type: ignore[method-assign, assignment]
        admin.delete_topics(name)
        wait_until(lambda: name not in admin.list_topics(), "the topic is deleted")
        admin.create_topics(name, 1)
        producer.send(name, b"late", partition=2)
        wait_until(lambda: producer.partitions_for(name) == 1, "the producer knows the new topic")
        producer.send(name, b"new").result(WITHIN_S)
        before = len(asked)
        with pytest.raises(errors.TimedOutError):
            producer.flush(2.0)
        assert len(asked) - before <= 20, "with back-off, 100 ms at first"
        with pytest.raises(errors.TimedOutError):
            producer.close(0)


def test_added_partition_can_be_read(server: Server, admin: Admin, name: str) -> None:
    """Before, the consumer kept metadata with two partitions for metadata.max.age.ms."""
    admin.create_topics(name, 2)
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        assert consumer.end_offsets([(name, 1)]) == {(name, 1): 0}
        admin.create_partitions(name, 3)
        assert consumer.end_offsets([(name, 2)]) == {(name, 2): 0}
        admin.create_partitions(name, 4)
        with Producer(server.bootstrap) as producer:
            producer.send(name, b"x", partition=3)
        consumer.assign([(name, 3)])
        assert [record.value for record in consumer.poll(WITHIN_S)] == [b"x"]
        with pytest.raises(errors.UnknownTopicError, match="partitions 0 to 3, not 4"):
            consumer.end_offsets([(name, 4)])
