"""A client's metrics equal what the test, the proxy and the broker count."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.discovery.topology import Topology
from oncelog.client.metrics import stats
from support.processes import wait_until
from support.proxy import LOSE_ANSWER, LOSE_REQUEST, PASS, Produced, Proxy, redirect
from support.servers import Server


def fill(server: Server, topic: str, counts: list[int]) -> None:
    """Create a topic and send this many records to each partition."""
    with Admin(server.bootstrap) as admin:
        admin.create_topics(topic, len(counts))
    with Producer(server.bootstrap) as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=partition)


def test_records_and_bytes_sent(server: Server, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {f"{name}-{number}": 100 * (number + 1) for number in range(3)}
    for topic in topics:
        admin.create_topics(topic, 2)
    with closing(Proxy(server.bootstrap)) as proxy:
        redirect(monkeypatch, proxy)
        with Producer(server.bootstrap, compression_type="zstd", client_id="c-1") as producer:
            for topic, count in topics.items():
                for number in range(count):
                    producer.send(topic, b"x" * 100 + b"%d" % number)
                producer.flush()
            found = producer.metrics()
            batches = [len(records) for request in proxy.seen for records in request.records]
            assert {topic: each.record_send_total for topic, each in found.topics.items()} == topics
            assert found.record_send_total == sum(topics.values())
            assert sum(each.byte_total for each in found.topics.values()) == sum(batches)
            assert found.batch_size_max == max(batches)
            assert found.batch_size_avg == pytest.approx(sum(batches) / len(batches))
            assert found.records_per_request_avg == pytest.approx(sum(topics.values()) / len(proxy.seen))
            assert found.requests["PRODUCE"].request_total == len(proxy.seen)
            assert sum(found.requests["PRODUCE"].latency_histogram.values()) == len(proxy.seen)
            assert 0 < (found.request_latency_avg or 0) <= (found.request_latency_max or 0) < 30_000
            assert 0 < found.record_send_rate <= sum(topics.values())
            assert (found.record_retry_total, found.record_error_total, found.batch_split_total) == (0, 0, 0)
            assert found.buffered_records == found.requests_in_flight == 0
            assert found.buffer_available_bytes == found.buffer_total_bytes == producer.options["buffer_memory"]
            assert found.client_id == "c-1"
            assert found.connection_count == found.connection_creation_total >= 2
            node = found.nodes[1]
            assert node.request_total == node.response_total >= len(proxy.seen)
            assert node.outgoing_byte_total > sum(batches)
        after = producer.metrics()
    assert (after.connection_count, after.connection_close_total) == (0, after.connection_creation_total)


def test_retries_are_those_that_the_proxy_has_forced(
    server: Server, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics(name, 1)
    fates = {1: LOSE_REQUEST, 3: LOSE_ANSWER, 5: LOSE_ANSWER}

    def rule(request: Produced) -> str:
        return fates.get(request.number, PASS)

    with closing(Proxy(server.bootstrap)) as proxy:
        redirect(monkeypatch, proxy)
        proxy.rule = rule
        with Producer(server.bootstrap, max_in_flight_requests_per_connection=1) as producer:
            for _ in range(10):
                for number in range(7):
                    producer.send(name, b"%d" % number)
                producer.flush()
            found = producer.metrics()
        sent = sum(batch.count for request in proxy.seen for batch in request.batches)
        lost = sum(
            batch.count
            for request in proxy.seen
            for batch in request.batches
            if fates.get(request.number, PASS) != PASS
        )
    assert lost
    assert found.record_retry_total == found.topics[name].record_retry_total == lost
    assert found.record_send_total == sent == 70 + lost
    assert found.record_error_total == 0
    assert found.request_lost_total == len(fates)
    assert admin.end_offsets([(name, 0)]) == {(name, 0): 70}


def test_errors_are_counted(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 1, configs={"max.message.bytes": "1000"})
    with Producer(server.bootstrap) as producer:
        futures = [producer.send(name, b"x" * size) for size in (10, 5_000, 20)]
        producer.flush()
        assert [future.exception() is None for future in futures] == [True, False, True]
        found = producer.metrics()
    assert (found.record_error_total, found.topics[name].record_error_total) == (1, 1)
    assert found.batch_split_total >= 1


def test_full_buffer_is_counted(name: str) -> None:
    producer = Producer("localhost:1", buffer_memory=1000, max_block_ms=50)
    with closing(producer), suppress(errors.TimedOutError):
        producer._core.counts[name] = 1
        producer.send(name, b"x" * 800)
        for _ in range(2):
            with pytest.raises(errors.TimedOutError):
                producer.send(name, b"x" * 800)
        found = producer.metrics()
        assert found.buffer_exhausted_total == 2
        assert found.buffered_records == 1
        assert 0 <= found.buffer_available_bytes < 200
        assert found.connection_count == 0
        producer.close(0)


def test_records_consumed_and_lag(server: Server, name: str) -> None:
    fill(server, name, [300, 40, 0])
    with Consumer(server.bootstrap, auto_offset_reset="earliest", max_poll_records=25) as consumer:
        consumer.assign([(name, partition) for partition in range(3)])
        read = 0
        while read < 100:
            read += len(consumer.poll(5))
        found = consumer.metrics()
        assert found.records_consumed_total == found.topics[name].records_consumed_total == read
        truth = consumer.lag()
        lags = {tp: each.records_lag for tp, each in found.partitions.items()}
        assert lags == {tp: lag for tp, lag in truth.items() if tp in lags}
        assert sum(lags.values()) == 340 - read
        assert found.records_lag_max == max(lags.values())
        assert found.assigned_partitions == 3
        while read < 340:
            read += len(consumer.poll(5))
        found = consumer.metrics()
        assert found.records_consumed_total == 340
        assert found.records_lag_max == 0
        assert found.bytes_consumed_total == found.topics[name].bytes_consumed_total > 340
        assert found.fetch_total == found.requests["FETCH"].request_total >= 2
        consumer.assign([(name, 2)])
        consumer.poll(0)
        found = consumer.metrics()
        assert set(found.partitions) <= {(name, 2)}, "partitions that are gone disappear"
        assert found.records_consumed_total == 340


def test_rows_of_tables_are_counted(server: Server, name: str) -> None:
    fill(server, name, [50, 60])
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0), (name, 1)])
        rows = sum(table.num_rows for table in consumer.tables(timeout=2))
        assert rows == 110
        assert consumer.metrics().records_consumed_total == 110
        consumer.assign([])
        assert consumer.metrics().topics == {}, "topics that are gone disappear"


def test_records_that_a_loop_does_not_reach_are_not_counted(server: Server, name: str) -> None:
    fill(server, name, [500])
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        for number, record in enumerate(consumer, 1):
            assert consumer.metrics().records_consumed_total == number == record.offset + 1
            if number == 3:
                break
        assert consumer.metrics().topics[name].records_consumed_total == 3
        assert len(consumer.poll(5)) == 497
        assert consumer.metrics().records_consumed_total == 500


def test_records_that_a_deserializer_cannot_read_are_not_counted(server: Server, name: str) -> None:
    def read(data: bytes, context: object) -> int:
        if data == b"3":
            raise ValueError("a poison record")
        return int(data)

    fill(server, name, [500])
    with Consumer(server.bootstrap, auto_offset_reset="earliest", value_deserializer=read) as consumer:
        consumer.assign([(name, 0)])
        assert len(consumer.poll(5)) == 3
        for _ in range(5):
            with pytest.raises(errors.SerializationError):
                consumer.poll(5)
        assert consumer.metrics().records_consumed_total == 3
        consumer.seek(name, 0, 4)
        assert [record.value for _, record in zip(range(2), consumer, strict=False)] == [4, 5]
        assert consumer.metrics().records_consumed_total == 5


def test_asyncio_loop_counts_what_it_reaches(server: Server, name: str) -> None:
    async def main() -> int:
        async with aio.Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(name, 0)])
            async for record in consumer:
                if record.offset == 9:
                    break
            return consumer.metrics().records_consumed_total

    fill(server, name, [100])
    assert asyncio.run(main()) == 10


def test_rebalances_and_commits(server: Server, name: str) -> None:
    fill(server, name, [10, 10])
    options = {"group_id": name, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}
    with Consumer(server.bootstrap, **options) as one:
        one.subscribe([name])
        wait_until(lambda: one.poll(0.1) and one.assignment(), "an assignment")
        assert (one.metrics().rebalance_total, one.metrics().assigned_partitions) == (1, 2)
        one.commit()
        one.commit()
        with Consumer(server.bootstrap, **options) as other:
            other.subscribe([name])
            wait_until(lambda: (one.poll(0.1), other.poll(0.1)) and other.assignment(), "the second member")
            wait_until(lambda: one.poll(0.1) is not None and len(one.assignment()) == 1, "one partition each")
            assert other.metrics().rebalance_total == 1
        found = one.metrics()
        assert found.rebalance_total == 2
        assert found.commit_total >= 2
        assert 0 < (found.commit_latency_avg or 0) <= (found.commit_latency_max or 0)
        assert found.heartbeat_total >= 1
        assert 0 <= (found.last_rebalance_seconds_ago or -1) < 60


def test_admin_and_its_errors(server: Server, name: str) -> None:
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 1)
        found = admin.metrics()
        assert found.requests["CREATE_TOPICS"].request_total == 1
        assert found.connection_count >= 1
        assert found.request_total == found.response_total
    dead = Admin("localhost:1", default_api_timeout_ms=300)
    with pytest.raises(errors.ConnectionFailedError):
        dead.list_topics()
    assert dead.metrics().connection_failure_total >= 1
    dead.close()


def test_broker_that_the_metadata_lacks_stays_while_it_is_connected(
    server: Server, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Topology.update

    def update_without_brokers(topology: Topology, *args: Any, **options: Any) -> None:
        update(topology, *args, **options)
        topology.brokers = {}

    for topic in (name, f"{name}-2", f"{name}-3"):
        admin.create_topics(topic, 1)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"x").result(10)
        before = producer.metrics().nodes[1]
        with monkeypatch.context() as stale:
            stale.setattr(Topology, "update", update_without_brokers)
            producer.partitions_for(f"{name}-2")
        producer.partitions_for(f"{name}-3")
        producer.send(name, b"x").result(10)
        after = producer.metrics().nodes[1]
    assert after.request_total > before.request_total > 0


def test_names_are_kafkas(server: Server, name: str) -> None:
    fill(server, name, [3])
    with Producer(server.bootstrap, client_id="etl") as producer:
        producer.send(name, b"x").result(10)
        found = producer.metrics().by_kafka_name()
    client = ("client-id", "etl")
    assert found["producer-metrics", "record-send-total", (client,)] == 1
    assert found["producer-topic-metrics", "record-send-total", (client, ("topic", name))] == 1
    assert found["producer-node-metrics", "request-total", (client, ("node-id", "node-1"))] >= 1
    with Consumer(server.bootstrap, client_id="etl", auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        assert len(consumer.poll(10)) == 4
        read = consumer.metrics().by_kafka_name()
    group = "consumer-fetch-manager-metrics"
    assert read[group, "records-lag", (client, ("topic", name), ("partition", "0"))] == 0
    assert read[group, "records-consumed-total", (client,)] == 4
    assert read["consumer-coordinator-metrics", "assigned-partitions", (client,)] == 1
    assert read["consumer-metrics", "connection-count", (client,)] >= 1


def test_statistics_callback(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def report(metrics: object) -> None:
        seen.append(metrics.record_send_total)  # type: ignore[attr-defined]
        if len(seen) == 1:
            raise ValueError("the first call fails")

    with Producer(server.bootstrap, {"statistics.interval.ms": 20, "stats_cb": report}) as producer:
        producer.send(name, b"x").result(10)
        wait_until(lambda: seen and seen[-1] == 1, "a report after the record")
    assert "on_statistics raised an error" in caplog.text
    time.sleep(0.1)
    count = len(seen)
    time.sleep(0.1)
    assert len(seen) == count, "no call after close"


def test_asyncio(server: Server, name: str) -> None:
    async def main() -> None:
        reports: list[int] = []
        async with aio.Producer(
            server.bootstrap,
            statistics_interval_ms=20,
            on_statistics=lambda metrics: reports.append(metrics.record_send_total),
        ) as producer:
            await (await producer.send(name, b"x"))
            assert producer.metrics().record_send_total == 1
            while 1 not in reports:
                await asyncio.sleep(0.01)
        async with aio.Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(name, 0)])
            assert len(await consumer.poll(10)) == 1
            assert consumer.metrics().records_consumed_total == 1
        async with aio.Admin(server.bootstrap) as admin:
            await admin.list_topics()
            assert admin.metrics().response_total >= 1

    asyncio.run(main())


def test_any_thread_reads_while_others_count(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "WINDOW_S", 0.01)
    topics = [f"{name}-{number}" for number in range(30)]
    with Admin(server.bootstrap) as admin:
        for topic in topics:
            admin.create_topics(topic, 1)
    with (
        Producer(server.bootstrap) as producer,
        Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer,
        ThreadPoolExecutor(1) as pool,
    ):
        done = threading.Event()

        def read() -> int:
            reads = 0
            while not done.is_set():
                for client in (producer, consumer):
                    assert all(value >= 0 for value in client.metrics().by_kafka_name().values())
                reads += 1
            return reads

        reading = pool.submit(read)
        try:
            for turn in range(len(topics)):
                for topic in topics[: turn + 1]:
                    producer.send(topic, b"x")
                producer.flush()
                consumer.assign([(topic, 0) for topic in topics[turn : turn + 3]])
                consumer.poll(0.05)
        finally:
            done.set()
        assert reading.result(30) > 10
        assert producer.metrics().record_send_total == len(topics) * (len(topics) + 1) / 2
