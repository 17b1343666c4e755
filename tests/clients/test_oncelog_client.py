"""Our own client, against our broker or Apache Kafka (ONCELOG_TEST_SERVERS=apache-kafka): the same tests for both."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
import time

import pyarrow as pa
import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.protocol.errors import ErrorCode
from support.processes import wait_until
from support.reading import read
from support.servers import Server

COMMITTED = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_round_trip(server: Server, admin: Admin, name: str, codec: str) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap, compression_type=codec) as producer:
        first = producer.send(name, b"value", b"key", partition=1, timestamp=1234, headers=[("h", b"x"), ("n", None)])
        second = producer.send(name, None, None, partition=1, timestamp=1233)
        third = producer.send(name, "text", "", partition=1, timestamp=2_000)
        assert [future.result(30).offset for future in (first, second, third)] == [0, 1, 2]
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 1)])
        records: list[aio.ConsumerRecord] = []
        while len(records) < 3:
            records += consumer.poll(5)
    assert records == [
        (name, 1, 0, 1234, b"key", b"value", (("h", b"x"), ("n", None)), 0, 0),
        (name, 1, 1, 1233, None, None, (), 0, 0),
        (name, 1, 2, 2_000, b"", b"text", (), 0, 0),
    ]


@pytest.mark.parametrize("acks", ["all", "0"])
def test_record_timestamp_round_trips(server: Server, admin: Admin, name: str, acks: str) -> None:
    """Like Java's `RecordMetadata.timestamp()`, from the future and from a callback."""
    admin.create_topics(name)
    timestamps: list[int] = []
    before = time.time_ns() // 1_000_000
    with Producer(server.bootstrap, acks=acks, enable_idempotence=acks == "all") as producer:
        callback = {"on_delivery": lambda place, error: timestamps.append(place.timestamp)}
        futures = [producer.send(name, b"x", timestamp=moment, **callback) for moment in (123, None, 0)]
        first, second, third = (future.result(30).timestamp for future in futures)
    assert (first, third) == (123, 0)
    assert before <= second <= time.time_ns() // 1_000_000
    assert timestamps == [first, second, third]


def test_log_append_time_is_returned(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, configs={"message.timestamp.type": "LogAppendTime"})
    with Producer(server.bootstrap) as producer:
        place = producer.send(name, b"x", timestamp=123).result(30)
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        (record,) = consumer.poll(30)
    assert place.timestamp == record.timestamp > 123


@pytest.mark.parametrize("options", [{}, {"buffer_memory": 3_000}], ids=["metadata", "memory"])
def test_concurrent_sends_of_aio_that_wait_keep_their_order(
    server: Server, admin: Admin, name: str, options: dict[str, int]
) -> None:
    """Before, a send overtook those that waited for the topic's metadata, or for memory that was too small for them."""
    admin.create_topics(name)
    admin.create_topics(f"{name}-2")

    async def main() -> list[int]:
        async with aio.Producer(server.bootstrap, linger_ms=0, **options) as producer:

            async def send(number: int) -> int:
                future = await producer.send(name, b"x" * (100 + number % 7 * 200), partition=0)
                return (await future).offset

            sends = []
            for number in range(400):
                sends.append(asyncio.create_task(send(number)))
                await asyncio.sleep(0.001 if number > 100 else 0)
            await (await producer.send(f"{name}-2", b"other topic"))
            return [await each for each in sends]

    assert asyncio.run(main()) == list(range(400))


def test_send_to_a_missing_partition_does_not_delay_other_partitions(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)

    async def main() -> None:
        async with aio.Producer(server.bootstrap, metadata_max_age_ms=200) as producer:
            waiting = [asyncio.create_task(producer.send(name, b"%d" % number, partition=1)) for number in range(3)]
            await asyncio.sleep(0)
            await (await producer.send(name, b"now", partition=0))
            assert not any(each.done() for each in waiting)
            async with aio.Admin(server.bootstrap) as other:
                await other.create_partitions(name, 2)
            assert [(await (await each)).offset for each in waiting] == [0, 1, 2]

    asyncio.run(main())


def test_many_records_in_order(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 3)
    with Producer(server.bootstrap, linger_ms=1, batch_size=2_000) as producer:
        futures = [producer.send(name, b"%d" % i, partition=i % 3) for i in range(6_000)]
        producer.flush()
        assert [future.result(0).offset for future in futures] == [i // 3 for i in range(6_000)]
    values = [int(value or b"") for value in read(server.bootstrap, name, 3)]
    assert values == [*range(0, 6_000, 3), *range(1, 6_000, 3), *range(2, 6_000, 3)]


def test_round_robin_and_keys(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 5)
    with Producer(server.bootstrap, partitioner="round_robin") as producer:
        places = [producer.send(name, b"x").result(30).partition for _ in range(60)]
        assert sorted(places) == [partition for partition in range(5) for _ in range(12)]
    with Producer(server.bootstrap) as producer:
        places = [producer.send(name, value, b"21").result(30).partition for value in (b"x", b"y")]
        assert places[0] == places[1]


def test_send_yields_once_per_record_when_it_waits_for_memory(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 5)
    with Producer(server.bootstrap, partitioner="round_robin", buffer_memory=10_000) as producer:
        futures = [producer.send(name, b"x" * 1_000, headers={"a": "b"}) for _ in range(60)]
        places = [future.result(30).partition for future in futures]
    assert places == [partition for _ in range(12) for partition in range(5)]


@pytest.mark.parametrize("acks", ["0", "1"])
def test_without_idempotence(server: Server, admin: Admin, name: str, acks: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap, acks=acks) as producer:
        offset = producer.send(name, b"1").result(30).offset
        assert offset == (-1 if acks == "0" else 0)
        assert producer.producer_id == -1
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        assert [record.value for record in consumer.poll(30)] == [b"1"]


def test_errors_of_single_records(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, configs={"max.message.bytes": "2000"})
    with Producer(server.bootstrap, allow_auto_create_topics=False, max_block_ms=6_000) as producer:
        with pytest.raises(errors.RecordTooLargeError) as caught:
            producer.send(name, b"x" * 3_000).result(30)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(name, b"small").result(30).offset == 0
        with pytest.raises(errors.UnknownTopicError, match=f"{name}' has only partition 0, not 7") as unknown:
            producer.send(name, b"x", partition=7)
        assert unknown.value.advice.endswith(f"add partitions: `oncelog topic alter {name} --partitions 8`.")
        assert pickle.loads(pickle.dumps(unknown.value)).advice == unknown.value.advice
        with pytest.raises(errors.UnknownTopicError, match="Create the topic"):
            producer.send(f"{name}-missing", b"x")
        with pytest.raises(errors.RecordTooLargeError, match="max_request_size"):
            producer.send(name, b"x" * 2_000_000)


def test_send_waits_if_buffer_memory_is_small(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap, buffer_memory=20_000, batch_size=4_000) as producer:
        futures = [producer.send(name, b"x" * 1_000) for _ in range(300)]
        assert [future.result(30).offset for future in futures] == list(range(300))


# -- tables -----------------------------------------------------------------------------------------------------------


def test_tables(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 3)
    keys = [b"k%d" % (i % 100) for i in range(5_000)]
    table = pa.table({"key": keys, "value": [b"%d" % i for i in range(5_000)]})
    with Producer(server.bootstrap, transactional_id=name) as producer:
        with producer.transaction() as txn:
            first = txn.send_table(name, table).result(30)
        assert producer.first_offsets == first
        by_one = {key: producer._core.buffer.partitioner(name, key, None, 3) for key in set(keys)}
    with Consumer(server.bootstrap, **COMMITTED) as consumer:
        consumer.assign([(name, index) for index in range(3)])
        seen: list[pa.Table] = []
        for part in consumer.tables(timeout=30):
            seen.append(part)
            if sum(map(len, seen)) >= 5_000:
                break
        got = pa.concat_tables(seen)
        assert consumer.lag() == {(name, index): 0 for index in range(3)}
    assert sorted(map(int, got["value"].to_pylist())) == list(range(5_000))
    for key, partition, value in zip(*(got[c].to_pylist() for c in ("key", "partition", "value")), strict=True):
        assert by_one[key] == partition, value
    rows = list(zip(got["partition"].to_pylist(), map(int, got["value"].to_pylist()), strict=True))
    for index in range(3):
        mine = [value for partition, value in rows if partition == index]
        assert mine == sorted(mine)


# -- consumers --------------------------------------------------------------------------------------------------------


def test_positions(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for i in range(100):
            producer.send(name, b"%d" % i, timestamp=1_000 + i)
    with Consumer(server.bootstrap, group_id=name, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        assert consumer.position(name, 0) == 0
        assert [record.offset for record in consumer.poll(30, max_records=10)] == list(range(10))
        assert consumer.position(name, 0) == 10
        assert consumer.lag() == {(name, 0): 90}
        consumer.commit()
        assert consumer.committed() == {(name, 0): 10}
        consumer.seek(name, 0, 95)
        assert [record.offset for record in consumer.poll(30)] == [95, 96, 97, 98, 99]
        consumer.seek_to_time(1_042)
        assert consumer.poll(30, max_records=1)[0].offset == 42
        consumer.seek_to_end()
        assert consumer.position(name, 0) == 100
        consumer.seek_to_beginning()
        assert consumer.poll(30, max_records=1)[0].offset == 0
        consumer.seek(name, 0, 10**9)
        assert consumer.poll(30, max_records=1)[0].offset == 0, "out of range: auto_offset_reset decides"
    with Consumer(server.bootstrap, group_id=name) as consumer:
        consumer.subscribe([name])
        assert consumer.poll(30, max_records=1)[0].offset == 10
    with Consumer(server.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(name, 0)])
        with pytest.raises(errors.OffsetOutOfRangeError):
            consumer.poll(30)


def test_position_during_iteration_is_after_the_current_record(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for i in range(20):
            producer.send(name, b"%d" % i)
    with Consumer(server.bootstrap, group_id=name, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([name])
        for record in consumer:
            assert consumer.positions() == {(name, 0): record.offset + 1}
            if record.offset == 7:
                break
        consumer.commit()
        assert consumer.poll(30, max_records=1)[0].offset == 8
        assert consumer.committed() == {(name, 0): 8}


def test_members_share_and_take_over(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 4)
    seen: list[tuple[str, list[tuple[str, int]]]] = []
    options = {"group_id": name, "heartbeat_interval_ms": 100, "session_timeout_ms": 6_000, **COMMITTED}
    one, two = (Consumer(server.bootstrap, **options) for _ in range(2))
    one.subscribe(
        [name],
        on_assigned=lambda tps: seen.append(("assigned", sorted(tps))),
        on_revoked=lambda tps: seen.append(("revoked", sorted(tps))),
    )
    one.poll(0.1)
    wait_until(lambda: one.poll(0.05) == [] and len(one.assignment()) == 4, "the first member has all partitions")
    two.subscribe([name])

    def shared() -> bool:
        one.poll(0.05)
        two.poll(0.05)
        return len(one.assignment()) == len(two.assignment()) == 2

    wait_until(shared, "each member has half of the partitions")
    assert sorted(one.assignment() + two.assignment()) == [(name, index) for index in range(4)]
    assert [member.client_id for member in admin.describe_group(name).members] == ["oncelog", "oncelog"]
    two.close()
    wait_until(lambda: one.poll(0.05) == [] and len(one.assignment()) == 4, "the first member has all partitions again")
    everything = [(name, index) for index in range(4)]
    assert seen[0] == ("assigned", everything)
    assert seen[1] == ("revoked", everything)
    assert seen[-1] == ("assigned", everything)
    one.close()


def test_static_member_is_fenced_by_its_successor(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    options = {"group_id": name, "group_instance_id": "it", "heartbeat_interval_ms": 100, **COMMITTED}
    with Consumer(server.bootstrap, **options) as old, Consumer(server.bootstrap, **options) as new:
        old.subscribe([name])
        wait_until(lambda: old.poll(0.05) == [] and old.assignment(), "the first member has joined")
        new.subscribe([name])
        wait_until(lambda: new.poll(0.05) == [] and new.assignment(), "the second member has joined")

        def fenced() -> bool:
            try:
                old.poll(0.05)
            except errors.FencedMemberError:
                return True
            return False

        wait_until(fenced, "the first member is fenced")


# -- blocking and asyncio ---------------------------------------------------------------------------------------------


def test_asyncio(server: Server, name: str) -> None:
    async def body() -> None:
        async with aio.Admin(server.bootstrap) as admin:
            await admin.create_topics(name)
            async with (
                aio.Producer(server.bootstrap, transactional_id=name) as producer,
                aio.Consumer(server.bootstrap, group_id=name, enable_auto_commit=False, **COMMITTED) as consumer,
            ):
                async with producer.transaction() as txn:
                    futures = [await txn.send(name, b"%d" % i) for i in range(10)]
                assert [(await future).offset for future in futures] == list(range(10))
                consumer.subscribe([name])
                async for record in consumer:
                    if record.offset == 4:
                        break
                await consumer.commit()
                assert await consumer.committed() == {(name, 0): 5}
                assert await consumer.lag() == {(name, 0): 6}
            assert (await admin.describe_group(name)).state == "Empty"

    asyncio.run(body())


def test_after_a_fork(server: Server, admin: Admin, name: str) -> None:
    """PySpark's daemon forks: the child gets its own loop and must not use the parent's clients."""
    admin.create_topics(name)
    script = f"""
        import os, sys
        from oncelog import Producer, errors
        parent = Producer({server.bootstrap!r})
        parent.send({name!r}, b"parent").result(30)
        child = os.fork()
        if child == 0:
            with Producer({server.bootstrap!r}) as producer:
                producer.send({name!r}, b"child").result(30)
            try:
                parent.flush()
            except errors.UsageError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        parent.send({name!r}, b"parent again").result(30)
        parent.close()
        print("fine", [m for m in ("numpy", "pyarrow", "numba") if m in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout == "fine []\n", done.stderr
    assert read(server.bootstrap, name) == [b"parent", b"child", b"parent again"]


def test_admin(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2, configs={"retention.ms": "123456"})
    assert admin.list_topics()[name] == 2
    assert admin.describe_configs("topic", name)["retention.ms"] == "123456"
    with pytest.raises(errors.RequestError) as caught:
        admin.create_topics(name)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    cluster = admin.describe_cluster()
    assert f"{cluster.brokers[0].host}:{cluster.brokers[0].port}" == server.bootstrap
    assert cluster.controller_id in {broker.node_id for broker in cluster.brokers}
    assert cluster.features["transaction.version"] == 2
    admin.set_offsets(name, {(name, 1): 0})
    assert name in {group.group_id for group in admin.list_groups()}
    assert admin.committed(name) == {(name, 1): 0}
    admin.delete_topics(name)
    wait_until(lambda: name not in admin.list_topics(), "Apache Kafka's broker has its controller's changes")
    with pytest.raises(errors.UnknownTopicError):
        admin.delete_topics(name)
    with pytest.raises(errors.KafkaError) as caught_too:
        admin.describe_transaction(name)
    assert caught_too.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_no_broker() -> None:
    with Admin("127.0.0.1:1", default_api_timeout_ms=300) as admin, pytest.raises(errors.ConnectionFailedError):
        admin.list_topics()


# -- a killed broker ---------------------------------------------------------------------------------------------------


def test_nothing_is_lost_or_duplicated_when_the_broker_is_killed(own_server: Server) -> None:
    topic = "killed"
    with Admin(own_server.bootstrap) as admin:
        admin.create_topics(topic, 2)
    with (
        Producer(own_server.bootstrap, linger_ms=1) as plain,
        Producer(own_server.bootstrap, transactional_id=topic) as transactional,
    ):
        futures = [plain.send(topic, b"%d" % i, partition=0) for i in range(500)]
        transactional.begin_transaction()
        transactional.send(topic, b"before", partition=1).result(30)
        own_server.kill()
        futures += [plain.send(topic, b"%d" % i, partition=0) for i in range(500, 1_000)]
        transactional.send(topic, b"while down", partition=1)
        own_server.wait_ready()
        transactional.commit_transaction()
        plain.flush()
        assert all(future.exception(60) is None for future in futures)
    values = [int(value or b"") for value in read(own_server.bootstrap, topic)]
    assert values == list(range(1_000))
    with Consumer(own_server.bootstrap, **COMMITTED) as consumer:
        consumer.assign([(topic, 1)])
        seen: list[bytes | None] = []
        while len(seen) < 2:
            seen += [record.value for record in consumer.poll(30)]
    assert seen == [b"before", b"while down"]
