"""Consumers that read from a follower in their rack (KIP-392), from three broker processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import oncelog
from oncelog.net.connection import connect
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from support.broker_processes import BrokerProcesses, broker_processes, running

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS = 50
LIMIT_S = 60


@contextlib.contextmanager
def three_racks(folder: Path, **settings: str) -> Iterator[BrokerProcesses]:
    """Yield three brokers in different racks, and a topic that broker 1 leads."""
    with broker_processes(folder) as processes:
        for node_id in (1, 2, 3):
            processes.start(
                node_id, broker_rack=f"rack-{node_id}", **{"replica_selector_class": RACK_AWARE, **settings}
            )
        processes.until(1, lambda metadata: running(metadata) == [1, 2, 3])
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, 3])
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment])
        (result,) = processes.ask(1, CreateTopicsRequest(topics=[topic])).topics
        assert result.error_code == 0
        yield processes


def bootstrap(processes: BrokerProcesses) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in processes.ports.values())


def produce(processes: BrokerProcesses, first: int, acks: str = "all") -> None:
    """Write the next records."""
    with oncelog.Producer(bootstrap(processes), acks=acks) as producer:
        for number in range(first, first + RECORDS):
            producer.send("t", str(number).encode())
            producer.flush()  # each record is a batch, so that a Fetch returns one record


def fetch(
    processes: BrokerProcesses, node_id: int, offset: int, version: int = 17, rack: str = "", isolation_level: int = 0
) -> PartitionData:
    """Fetch as a consumer, without a session."""
    topic_id = next(topic.topic_id for topic in processes.metadata(1).topics if topic.name == "t")
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="t", topic_id=topic_id, partitions=[partition])
    request = FetchRequest(
        max_wait_ms=0, session_epoch=-1, rack_id=rack, isolation_level=isolation_level, topics=[topic]
    )

    async def call() -> Any:
        connection = await connect("127.0.0.1", processes.ports[node_id])
        try:
            return await connection.call(request, version)
        finally:
            connection.close()

    found: PartitionData = asyncio.run(call()).responses[0].partitions[0]
    return found


def follower_has(processes: BrokerProcesses, node_id: int, end: int) -> None:
    """Wait until the follower knows that the records before `end` are committed."""
    limit = time.monotonic() + LIMIT_S
    while fetch(processes, node_id, 0).high_watermark < end:
        assert time.monotonic() < limit
        time.sleep(0.01)


class Confluent:
    """confluent-kafka's consumer, which requests the next batch when the application has the last one."""

    def __init__(self, servers: str, rack: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "g",
                "client.rack": rack,
                "fetch.message.max.bytes": 1,
                "queued.min.messages": 1,
                "fetch.queue.backoff.ms": 1,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])

    def poll(self) -> list[bytes]:
        message = self._consumer.poll(0.1)
        return [message.value()] if message is not None and message.error() is None else []

    def close(self) -> None:
        self._consumer.close()


class Ours:
    """oncelog's consumer."""

    def __init__(self, servers: str, rack: str) -> None:
        self._consumer = oncelog.Consumer(servers, client_rack=rack, max_partition_fetch_bytes=1)
        self._consumer.assign({("t", 0): 0})

    def poll(self) -> list[bytes]:
        return [bytes(record.value or b"") for record in self._consumer.poll(0.1, max_records=1)]

    def close(self) -> None:
        self._consumer.close()


Client = Confluent | Ours


def read(consumer: Client, count: int, limit_s: float = LIMIT_S) -> list[bytes]:
    """Return the values of the next records."""
    found: list[bytes] = []
    limit = time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < limit, f"{len(found)} of {count} records"
        found += consumer.poll()
    return found


def numbers(first: int, count: int = RECORDS) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


@pytest.mark.parametrize("client", [Confluent, Ours])
def test_consumer_reads_from_its_rack_while_the_leader_is_stopped(
    tmp_path: Path, client: Callable[[str, str], Client]
) -> None:
    with three_racks(tmp_path, broker_session_timeout_ms="600000") as processes:  # it remains the leader
        produce(processes, 0)
        follower_has(processes, 2, RECORDS)
        consumer = client(bootstrap(processes), "rack-2")
        assert read(consumer, 1) == numbers(0, 1)
        processes.send(1, signal.SIGSTOP)
        assert read(consumer, RECORDS - 1) == numbers(1, RECORDS - 1)
        processes.send(1, signal.SIGCONT)
        processes.send(2, signal.SIGKILL)
        produce(processes, RECORDS)
        assert read(consumer, RECORDS) == numbers(RECORDS)
        consumer.close()


def test_leader_names_the_follower_of_the_rack(tmp_path: Path) -> None:
    with three_racks(tmp_path) as processes:
        produce(processes, 0)
        follower_has(processes, 3, RECORDS)
        named = fetch(processes, 1, 0, rack="rack-3")
        assert (named.error_code, named.preferred_read_replica, named.records) == (0, 3, b"")
        assert named.high_watermark == RECORDS
        for rack in ("rack-1", "rack-9", ""):
            found = fetch(processes, 1, 0, rack=rack)
            assert (found.preferred_read_replica, bool(found.records)) == (-1, True)
        assert fetch(processes, 3, 0, rack="rack-2").records  # a follower names none
        assert fetch(processes, 3, 0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_leader_does_not_name_a_follower_that_has_just_died(tmp_path: Path) -> None:
    """A consumer of librdkafka would try to reach the dead follower for minutes."""
    with three_racks(tmp_path, broker_session_timeout_ms="600000") as processes:
        produce(processes, 0)
        follower_has(processes, 3, RECORDS)
        assert fetch(processes, 1, 0, rack="rack-3").preferred_read_replica == 3
        processes.kill(3)
        found = fetch(processes, 1, 0, rack="rack-3")
        assert (found.preferred_read_replica, bool(found.records)) == (-1, True)
        processes.start(3, broker_rack="rack-3", replica_selector_class=RACK_AWARE)
        limit = time.monotonic() + LIMIT_S
        while fetch(processes, 1, 0, rack="rack-3").preferred_read_replica != 3:
            assert time.monotonic() < limit
            time.sleep(0.01)


def test_follower_returns_committed_records_only(tmp_path: Path) -> None:
    with three_racks(tmp_path) as processes:
        produce(processes, 0)
        follower_has(processes, 2, RECORDS)
        processes.send(3, signal.SIGSTOP)  # a member of the in-sync replicas
        produce(processes, RECORDS, acks="1")
        time.sleep(0.2)
        found = fetch(processes, 2, RECORDS)
        assert (found.error_code, found.high_watermark, found.records) == (0, RECORDS, b"")
        assert fetch(processes, 2, 3 * RECORDS).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        processes.send(3, signal.SIGCONT)
        follower_has(processes, 2, 2 * RECORDS)
        assert fetch(processes, 2, RECORDS).records


def test_follower_returns_no_records_of_open_or_aborted_transactions(tmp_path: Path) -> None:
    settings = {"transaction_state_log_num_partitions": "1", "transaction_state_log_replication_factor": "1"}
    with three_racks(tmp_path, **settings, transaction_state_log_min_isr="1") as processes:
        servers = bootstrap(processes)
        with (
            oncelog.Consumer(servers, client_rack="rack-3", isolation_level="read_committed") as consumer,
            oncelog.Producer(servers, transactional_id="a") as producer,
        ):
            consumer.assign({("t", 0): 0})
            with contextlib.suppress(ZeroDivisionError), producer.transaction():
                producer.send("t", b"aborted").result()
                raise ZeroDivisionError
            with producer.transaction():
                producer.send("t", b"committed").result()
                follower_has(processes, 3, 3)  # the aborted record, its marker, and the open transaction
                assert consumer.poll(0.5) == []
            limit = time.monotonic() + LIMIT_S
            while not (found := consumer.poll(0.1)):
                assert time.monotonic() < limit
            assert [record.value for record in found] == [b"committed"]
        assert fetch(processes, 3, 0, isolation_level=1).last_stable_offset == 4


def test_leaders_serve_all_racks_without_a_selector(tmp_path: Path) -> None:
    with three_racks(tmp_path, replica_selector_class="") as processes:
        produce(processes, 0)
        found = fetch(processes, 1, 0, rack="rack-3")
        assert (found.preferred_read_replica, bool(found.records)) == (-1, True)
