"""Produces that a client sends before it gets answers, at a leader whose follower is paused or that is killed."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest

from oncelog.net.replies import MOST_PENDING
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from support.broker_processes import BrokerProcesses, broker_processes, leaders, running
from support.wire import Wire, batch, until

PATIENT = {"broker_session_timeout_ms": "60000", "replica_lag_time_max_ms": "60000"}
"""A paused follower stays in the ISR."""
VERSION = 11


def create(processes: BrokerProcesses, name: str, *replicas: list[int]) -> UUID:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas)
    ]
    configs = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
    topic = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=configs
    )
    (result,) = processes.ask(1, CreateTopicsRequest(topics=[topic])).topics
    assert result.error_code == 0
    topic_id: UUID = result.topic_id
    return topic_id


class Cluster:
    """Broker 1 leads both partitions of the topic `t`. Broker 2 follows, and can be paused."""

    def __init__(self, processes: BrokerProcesses) -> None:
        self._processes = processes
        for node_id in (1, 2):
            processes.start(node_id, **PATIENT)
        processes.until(1, lambda metadata: running(metadata) == [1, 2])
        self.topic_id = create(processes, "t", [1, 2], [1, 2])
        self.address = f"127.0.0.1:{processes.ports[1]}"
        with Wire(self.address) as wire:
            wire.leaders_serve("t", 2)
            for partition in (0, 1):  # the follower has fetched both partitions
                assert not wire.produce("t", batch([b"first"]), partition=partition).error_code
        self._other = Wire(self.address)

    def pause(self) -> None:
        self._processes.send(2, signal.SIGSTOP)

    def resume(self) -> None:
        self._processes.send(2, signal.SIGCONT)

    def log_end(self, partition: int = 0) -> int:
        """Return the log end offset, as tools see it."""
        asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
        request = ListOffsetsRequest(replica_id=-2, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        found = self._other.call(request, 7).topics[0].partitions[0]
        assert not found.error_code
        end: int = found.offset
        return end

    def until_log_end(self, end: int, partition: int = 0) -> None:
        until(lambda: self.log_end(partition), lambda found: found == end, "the log end offset")

    def committed(self) -> int:
        return self._other.offset("t")

    def close(self) -> None:
        self._other.close()
        self.resume()


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with broker_processes(tmp_path_factory.mktemp("brokers")) as processes:
        cluster = Cluster(processes)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def paused(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with all records committed, while the follower is paused."""
    until(running_cluster.committed, lambda offset: offset == running_cluster.log_end(), "all records are committed")
    running_cluster.pause()
    yield running_cluster
    running_cluster.resume()


def produce(value: bytes, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=bytes(batch([value])))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def corrupt() -> ProduceRequest:
    request = produce(b"corrupt")
    request.topic_data[0].partition_data[0].records = bytes(batch([b"corrupt"])[:-1]) + b"X"
    return request


def fetch(cluster: Cluster, offset: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic_id=cluster.topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])


class Pipeline:
    """One connection, on which a client sends requests without waiting."""

    def __init__(self, cluster: Cluster) -> None:
        self.wire = Wire(cluster.address)
        self._sent: list[tuple[Message, int]] = []

    def send(self, *requests: Message) -> None:
        for request in requests:
            version = VERSION if isinstance(request, ProduceRequest) else None
            self._sent.append((request, self.wire.send(request, version)))

    def answer(self) -> Any:
        return self.wire.receive(*self._sent.pop(0))

    def produced(self) -> tuple[int, int]:
        """Return (error code, base offset) of the next answer, which must be that of a Produce."""
        found = self.answer().responses[0].partition_responses[0]
        return found.error_code, found.base_offset

    def silent(self) -> bool:
        """Return whether no answer has arrived."""
        return not select.select([self.wire._socket], [], [], 0.1)[0]


@pytest.fixture
def pipeline(running_cluster: Cluster) -> Iterator[Pipeline]:
    made = Pipeline(running_cluster)
    with contextlib.closing(made.wire):
        yield made


def test_produces_are_appended_before_the_first_is_answered(paused: Cluster, pipeline: Pipeline) -> None:
    start = paused.log_end()
    pipeline.send(*[produce(b"%d" % number) for number in range(5)])
    paused.until_log_end(start + 5)
    assert pipeline.silent()
    assert paused.committed() == start
    paused.resume()
    assert [pipeline.produced() for _ in range(5)] == [(0, start + number) for number in range(5)]


def test_other_requests_wait_for_their_turn(paused: Cluster, pipeline: Pipeline) -> None:
    start = paused.log_end()
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    pipeline.send(produce(b"a"), produce(b"b"), fetch(paused, start), produce(b"c"), metadata, produce(b"d"))
    paused.until_log_end(start + 2)
    assert pipeline.silent()
    assert paused.log_end() == start + 2
    paused.resume()
    assert [pipeline.produced(), pipeline.produced()] == [(0, start), (0, start + 1)]
    assert pipeline.answer().responses[0].partitions[0].high_watermark == start + 2
    assert pipeline.produced() == (0, start + 2)
    assert pipeline.answer().topics[0].name == "t"
    assert pipeline.produced() == (0, start + 3)


def test_number_of_waiting_produces_is_limited(paused: Cluster, pipeline: Pipeline) -> None:
    start = paused.log_end()
    count = 3 * MOST_PENDING
    pipeline.send(*[produce(b"%d" % number) for number in range(count)])
    paused.until_log_end(start + MOST_PENDING)
    assert pipeline.silent()
    assert paused.log_end() == start + MOST_PENDING
    paused.resume()
    assert [pipeline.produced() for _ in range(count)] == [(0, start + number) for number in range(count)]


def test_answers_with_errors_keep_their_place(paused: Cluster, pipeline: Pipeline) -> None:
    start = paused.log_end()
    pipeline.send(produce(b"a"), corrupt(), produce(b"b", acks=1), produce(b"c", timeout_ms=1), produce(b"d"))
    paused.until_log_end(start + 4)
    assert pipeline.silent()
    paused.resume()
    answers = [pipeline.produced() for _ in range(5)]
    late = ErrorCode.REQUEST_TIMED_OUT
    assert answers == [(0, start), (ErrorCode.CORRUPT_MESSAGE, -1), (0, start + 1), (late, start + 2), (0, start + 3)]


def test_each_request_has_its_own_timeout(paused: Cluster, pipeline: Pipeline) -> None:
    start = paused.log_end()
    pipeline.send(*[produce(b"late", timeout_ms=timeout) for timeout in (100, 1, 200)])
    late = ErrorCode.REQUEST_TIMED_OUT
    assert [pipeline.produced() for _ in range(3)] == [(late, start + number) for number in range(3)]


def test_failed_produce_without_acks_closes_the_connection_after_the_answers(
    paused: Cluster, pipeline: Pipeline
) -> None:
    start = paused.log_end()
    bad = corrupt()
    bad.acks = 0
    pipeline.send(produce(b"a"), produce(b"b", acks=0), bad, produce(b"never"))
    paused.until_log_end(start + 2)
    assert pipeline.silent()
    paused.resume()
    assert pipeline.produced() == (0, start)
    with pytest.raises(ConnectionError):
        pipeline.wire.receive(bad, VERSION)
    assert paused.log_end() == start + 2


def test_client_that_disconnects_loses_only_its_answers(paused: Cluster, pipeline: Pipeline) -> None:
    start = paused.log_end()
    pipeline.send(*[produce(b"%d" % number) for number in range(3)], fetch(paused, 0), produce(b"never"))
    paused.until_log_end(start + 3)
    pipeline.wire._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pipeline.wire.close()
    paused.resume()
    until(paused.committed, lambda offset: offset == start + 3, "the records are committed")
    assert paused.log_end() == start + 3


def test_answer_of_another_partition_waits_for_its_turn(paused: Cluster, pipeline: Pipeline) -> None:
    start, other = paused.log_end(0), paused.log_end(1)
    pipeline.send(produce(b"a", 0), produce(b"b", 1), produce(b"c", 1, acks=1), produce(b"d", 0))
    paused.until_log_end(start + 2)
    assert pipeline.silent()
    paused.resume()
    assert [pipeline.produced() for _ in range(4)] == [(0, start), (0, other), (0, other + 1), (0, start + 1)]


def leader_of(processes: BrokerProcesses) -> int:
    processes.until(1, lambda metadata: leaders(metadata)[0] > 0)
    return leaders(processes.metadata(1))[0]


def test_idempotent_librdkafka_producer_keeps_the_order_when_leaders_die(tmp_path: Path) -> None:
    count, kills = 6000, 3
    values = [b"%06d" % number for number in range(count)]
    failed: list[Any] = []
    with broker_processes(tmp_path) as processes:
        for node_id in (1, 2, 3):
            processes.start(node_id)
        processes.until(1, lambda metadata: running(metadata) == [1, 2, 3])
        topic_id = create(processes, "t", [1, 2, 3])
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in processes.ports.values()),
                "enable.idempotence": True,
                "max.in.flight": 5,
                "batch.num.messages": 20,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
            }
        )
        for number, value in enumerate(values):
            producer.produce("t", value, on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(0.001 if number % 20 == 0 else 0)
            if number and number % (count // (kills + 1)) == 0:
                leader = leader_of(processes)
                processes.kill(leader)
                processes.start(leader)
        assert producer.flush(60) == 0
        assert not failed
        with Wire(f"127.0.0.1:{processes.ports[leader_of(processes)]}") as wire:
            assert wire.values(topic_id) == values
