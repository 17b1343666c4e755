"""Several broker processes on one tree: what the others see when one is killed, paused or started twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from oncelog.cluster.brokers import read_registrations
from oncelog.cluster.leases import END_BYTES, PAUSE_MS
from oncelog.cluster.store_sqlite import SqliteStore, monotonic_ms
from oncelog.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from support.broker_processes import BrokerProcesses, broker_processes, leaders, running
from support.processes import wait_until

SESSION_MS = 4000


def create(processes: BrokerProcesses, name: str, *replicas: list[int]) -> None:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    (result,) = processes.ask(1, CreateTopicsRequest(topics=[topic])).topics
    assert result.error_code == 0


def lease_end(processes: BrokerProcesses, node_id: int) -> int:
    """Return the end of a broker's lease on the monotonic clock, in ms."""
    content = Path(f"{processes.tree}-lease-broker-{node_id}").read_bytes()
    return int.from_bytes(content[:END_BYTES], "big")


def renewed_at(processes: BrokerProcesses, node_id: int, at_ms: int) -> None:
    """Wait until a broker has renewed its lease at this time or later. It reads the leases of the others more often."""
    wait_until(lambda: lease_end(processes, node_id) >= at_ms + SESSION_MS, f"a renewal of broker {node_id}")


def test_killed_broker_is_gone_at_once_and_returns_without_waiting(tmp_path: Path) -> None:
    """A wait for the lease of the killed process would exceed the limits of the test."""
    with broker_processes(tmp_path) as processes:
        for node_id in (1, 2, 3):
            processes.start(node_id, broker_session_timeout_ms="3600000")
        for node_id in (1, 2, 3):
            processes.until(node_id, lambda metadata: running(metadata) == [1, 2, 3])
        create(processes, "t", [1, 2, 3], [2, 3, 1])
        create(processes, "u", [1])
        processes.kill(1)  # the controller
        for node_id in (2, 3):
            processes.until(node_id, lambda metadata: leaders(metadata) == [2, 2, -1])
            described = processes.ask(node_id, DescribeClusterRequest())
            assert [broker.broker_id for broker in described.brokers] == [2, 3]
            assert processes.metadata(node_id).controller_id in (2, 3)
        processes.start(1)
        for node_id in (1, 2, 3):
            processes.until(node_id, lambda metadata: running(metadata) == [1, 2, 3])
            processes.until(node_id, lambda metadata: leaders(metadata) == [2, 2, 1])
        assert processes.stop(2) == 0
        processes.until(3, lambda metadata: leaders(metadata) in ([1, 3, 1], [3, 3, 1]))


def test_killed_broker_leads_its_partitions_again_after_it_returns(tmp_path: Path) -> None:
    settings = {"leader_imbalance_check_interval_seconds": "1"}
    with broker_processes(tmp_path) as processes:
        for node_id in (1, 2, 3):
            processes.start(node_id, **settings)
        processes.until(1, lambda metadata: running(metadata) == [1, 2, 3])
        create(processes, "t", [1, 2, 3], [2, 3, 1], [3, 1, 2], [2, 1, 3])
        processes.kill(2)
        processes.until(1, lambda metadata: leaders(metadata) == [1, 3, 3, 1])
        processes.start(2, **settings)
        for node_id in (1, 2, 3):
            processes.until(node_id, lambda metadata: leaders(metadata) == [1, 2, 3, 2], limit_s=60)


def test_paused_broker_learns_that_its_session_has_ended(tmp_path: Path) -> None:
    settings = {"broker_session_timeout_ms": "5000", "broker_heartbeat_interval_ms": "300"}
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    with broker_processes(tmp_path) as processes:
        for node_id in (1, 2):
            processes.start(node_id, **settings)
        processes.until(1, lambda metadata: running(metadata) == [1, 2])
        create(processes, "t", [2, 1])
        processes.send(2, signal.SIGSTOP)
        time.sleep(0.4)
        assert running(processes.metadata(1)) == [1, 2]
        processes.until(1, lambda metadata: running(metadata) == [1] and leaders(metadata) == [1])
        processes.send(2, signal.SIGCONT)
        processes.until(1, lambda metadata: running(metadata) == [1, 2])
        assert read_registrations(store)[2].epoch == 1
        processes.until(2, lambda metadata: running(metadata) == [1, 2] and leaders(metadata) == [1])
    store.close()


HOLD_THE_WRITE_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holding", flush=True)
sys.stdin.read()
connection.execute("COMMIT")
"""


def test_brokers_keep_their_sessions_while_a_writer_hangs(tmp_path: Path) -> None:
    settings = {"broker_session_timeout_ms": str(SESSION_MS), "broker_heartbeat_interval_ms": "300"}
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    with broker_processes(tmp_path) as processes:
        for node_id in (1, 2, 3):
            processes.start(node_id, **settings)
        for node_id in (1, 2, 3):
            processes.until(node_id, lambda metadata: running(metadata) == [1, 2, 3])
        create(processes, "t", [2, 3, 1], [1, 2, 3])
        command = [sys.executable, "-c", HOLD_THE_WRITE_LOCK, processes.tree]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.send_signal(signal.SIGSTOP)
            processes.send(2, signal.SIGSTOP)
            try:
                for node_id in (1, 3):  # until they have tried to end the session of broker 2
                    renewed_at(processes, node_id, lease_end(processes, 2) + PAUSE_MS)
                assert running(processes.metadata(1)) == [1, 2, 3]
            finally:
                writer.send_signal(signal.SIGCONT)
                writer.communicate()
            processes.until(1, lambda metadata: running(metadata) == [1, 3] and leaders(metadata) == [3, 1])
            processes.send(2, signal.SIGCONT)
            processes.until(1, lambda metadata: running(metadata) == [1, 2, 3])
        assert {broker: info.epoch for broker, info in read_registrations(store).items()} == {1: 0, 2: 1, 3: 0}
    store.close()


def test_brokers_keep_their_sessions_if_all_are_paused(tmp_path: Path) -> None:
    settings = {"broker_session_timeout_ms": str(SESSION_MS), "broker_heartbeat_interval_ms": "300"}
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    with broker_processes(tmp_path) as processes:
        for node_id in (1, 2, 3):
            processes.start(node_id, **settings)
        for node_id in (1, 2, 3):
            processes.send(node_id, signal.SIGSTOP)
        wait_until(lambda: max(map(partial(lease_end, processes), (1, 2, 3))) < monotonic_ms(), "the end of all leases")
        for node_id in (1, 2, 3):
            processes.send(node_id, signal.SIGCONT)
            time.sleep(0.1)
        continued_ms = monotonic_ms()
        for node_id in (1, 2, 3):
            renewed_at(processes, node_id, continued_ms + 2 * PAUSE_MS)
        assert [info.epoch for info in read_registrations(store).values()] == [0, 0, 0]
    store.close()


def test_second_process_of_a_broker_id_is_refused(tmp_path: Path) -> None:
    with broker_processes(tmp_path) as processes:
        processes.start(1)
        second = processes.spawn(1, data="other")
        _, errors = second.communicate(timeout=60)
        assert second.returncode == 1
        assert b"another running process is broker 1 of this cluster. Stop it, or set another node.id" in errors
        assert running(processes.metadata(1)) == [1]
