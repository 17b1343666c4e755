"""A broker without free file descriptors rejects requests, keeps its open files, and recovers."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.processes import accepts, gone, wait_until
from support.servers import OncelogCluster
from support.transactions import until_state, written
from support.wire import Wire, batch, code, retried, visible

PARTITIONS = 600
"""More than a broker keeps open."""
SHORTAGE_S = 2.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OncelogCluster]:
    server = OncelogCluster(tmp_path)
    yield server
    server.process.kill()


class Shortage:
    """Leave the broker no free descriptors inside the block, or few: those below a `limit`."""

    def __init__(self, cluster: OncelogCluster, limit: int = 3) -> None:
        self._pid = cluster.broker_pid()
        self._limit = limit
        self._before = resource.prlimit(self._pid, resource.RLIMIT_NOFILE)

    def __enter__(self) -> Shortage:
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, (self._limit, self._before[1]))
        return self

    def __exit__(self, *exc: object) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._before)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def fill(wire: Wire, topic: str) -> None:
    """Write one record to each partition. The files of the first ones are closed afterwards."""
    partitions = [PartitionProduceData(index=index, records=batch([b"x"])) for index in range(PARTITIONS)]
    data = TopicProduceData(name=topic, partition_data=partitions)
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
    [answer] = wire.call(request, 9).responses
    assert {each.error_code for each in answer.partition_responses} == {0}


def test_partitions_survive_a_shortage_of_descriptors(cluster: OncelogCluster) -> None:
    with Wire(cluster.bootstrap) as wire:
        topic_id = wire.create_topic("t", PARTITIONS)
        fill(wire, "t")
        with Shortage(cluster):
            refused = wire.produce("t", batch([b"y"]))
            assert refused.error_code == code("KAFKA_STORAGE_ERROR")
            assert wire.fetch(topic_id).error_code == code("KAFKA_STORAGE_ERROR")
            assert not wire.produce("t", batch([b"y"]), partition=PARTITIONS - 1).error_code
        assert not wire.produce("t", batch([b"z"])).error_code
        assert wire.values(topic_id) == [b"x", b"z"]
        assert wire.values(topic_id, PARTITIONS - 1) == [b"x", b"y"]


def deleted(wire: Wire, offset: int) -> tuple[int, int]:
    """Delete the records before an offset. Return the error and the low watermark."""
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    [answer] = wire.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=10_000)).topics[0].partitions
    return answer.error_code, answer.low_watermark


def test_deletion_of_records_is_reported_only_when_it_is_durable(cluster: OncelogCluster) -> None:
    with Wire(cluster.bootstrap) as wire:
        topic_id = wire.create_topic("t")
        for value in (b"a", b"b", b"c"):
            assert not wire.produce("t", batch([value])).error_code
        assert deleted(wire, 1) == (0, 1)
        with Shortage(cluster):
            assert deleted(wire, 2) == (code("KAFKA_STORAGE_ERROR"), -1)
        assert deleted(wire, 2) == (0, 2)
        cluster.kill()
        cluster.wait_ready()
    with Wire(cluster.bootstrap) as wire:
        wire.leaders_serve("t")
        assert visible(retried(lambda: wire.fetch(topic_id, offset=2)), 2) == [b"c"]
        assert wire.offset("t", -2) == 2


def test_marker_that_waits_for_descriptors_logs_its_error_once(cluster: OncelogCluster) -> None:
    with Wire(cluster.bootstrap) as wire:
        topic_id = wire.create_topic("t", PARTITIONS)
        for number in range(2):  # the first transaction loads the handlers, the second one stays open
            who = wire.session("x")
            wire.add_partitions("x", who, "t", [0])
            written(wire, "x", who, "t", [b"%d" % number], version=11)
            until_state(wire, "x", "Ongoing")
            if number == 0:
                assert not wire.end("x", who).error_code
                until_state(wire, "x", "CompleteCommit")
        fill(wire, "t")
        wire.add_partitions("x", who, "t", [1])  # the coordinator's own log is open again
        with Shortage(cluster):
            assert not wire.end("x", who).error_code
            time.sleep(SHORTAGE_S)
            until_state(wire, "x", "PrepareCommit")
        until_state(wire, "x", "CompleteCommit")
        assert wire.values(topic_id, committed=True) == [b"0", b"1", b"x"]
    refusals = cluster.process.stderr_path.read_text().count(") to t-0: ")
    assert refusals == 1


def test_shortage_while_clients_connect_does_not_stop_the_broker(cluster: OncelogCluster) -> None:
    pid = cluster.broker_pid()
    with Wire(cluster.bootstrap) as wire:
        wire.create_topic("t")
        assert not retried(lambda: wire.produce("t", batch([b"x"]))).error_code
        highest = max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir())
        with Shortage(cluster, limit=highest + 3):
            waiting = connections(cluster, 20)
            assert not wire.produce("t", batch([b"y"])).error_code
        for each in waiting:
            each.close()
        wait_until(lambda: accepts(cluster.bootstrap), "the broker accepts connections again")
        with Wire(cluster.bootstrap) as other:
            assert not other.produce("t", batch([b"z"])).error_code
        assert not gone(pid)


def test_connections_leave_descriptors_for_files(cluster: OncelogCluster) -> None:
    resource.prlimit(cluster.process.pid, resource.RLIMIT_NOFILE, (128, 128))  # the next broker inherits it
    cluster.kill()
    cluster.wait_ready()
    pid = cluster.broker_pid()
    with Wire(cluster.bootstrap) as wire:
        waiting = connections(cluster, 300)
        before = cpu_s(pid)
        time.sleep(SHORTAGE_S)
        assert cpu_s(pid) - before < SHORTAGE_S / 2
        wire.create_topic("t", 20)
        for partition in range(20):
            assert not retried(lambda p=partition: wire.produce("t", batch([b"x"]), partition=p)).error_code
        for each in waiting:
            each.close()
    wait_until(lambda: accepts(cluster.bootstrap), "the broker accepts connections again")
    assert not gone(pid)


def connections(cluster: OncelogCluster, number: int) -> list[socket.socket]:
    host, _, port = cluster.bootstrap.rpartition(":")
    return [socket.create_connection((host, int(port))) for _ in range(number)]
