"""Reactions of `oncelog up` when its broker ends: after a failure of its only disk, and with topics of `--topic`."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from oncelog.broker.process import NO_LOG_DIRECTORY, Launch, Ready
from oncelog.cli.broker_process import BrokerProcess, Restarts
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.processes import gone, wait_until
from support.servers import OncelogCluster
from support.wire import Wire, batch

NewCluster = Callable[..., OncelogCluster]
LIMIT = 1 << 20


def test_broker_without_a_disk_exits_with_the_reason(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--topic", "t"))
    pid = cluster.broker_pid()
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, hard))
    kept = 0
    with Wire(cluster.bootstrap) as wire:
        while not (found := wire.produce("t", batch([b"x" * 100_000]))).error_code:
            kept += 1
            assert kept * 100_000 < 2 * LIMIT, "the limit has no effect"
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wait_until(lambda: gone(pid), "the broker ends")
    cluster.process.wait_for(lambda: "Retrying" in cluster.process.output(), "the supervisor reports it")
    output = cluster.process.output()
    assert "oncelog: stopped broker 1: all log directories have failed" in output
    assert "oncelog: broker 1 cannot use any of its log directories, and serves no clients until it can." in output
    assert "Traceback" not in output
    cluster.process.wait_for(lambda: output_count(cluster, "started") >= 2, "another broker serves")
    cluster.wait_ready()
    with Wire(cluster.bootstrap) as wire:
        wire.leaders_serve("t")
        assert wire.offset("t") >= kept


def test_broker_with_a_deleted_log_directory_is_retried_until_it_is_restored(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    directory, aside = cluster.data / "broker-1", cluster.data / "aside"
    directory.rename(aside)
    said = "oncelog: broker 1 cannot use any of its log directories, and serves no clients until it can."
    cluster.process.wait_for(lambda: cluster.process.output().count(said) >= 2, "the broker is restarted")
    shutil.rmtree(directory, ignore_errors=True)
    wait_until(lambda: _moved(aside, directory), "the directory is restored")
    cluster.wait_ready()
    assert cluster.stop() == 0


def _moved(source: Path, target: Path) -> bool:
    """Move a directory to a place where a broker creates an empty one at each attempt."""
    try:
        source.rename(target)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def test_broker_that_ran_for_long_is_restarted_at_once() -> None:
    restarts = Restarts()
    assert [restarts.wait_s(8.0, was_ready=True) for _ in range(20)] == [0.0] * 20


def test_broker_that_dies_early_is_restarted_with_doubling_delays() -> None:
    restarts = Restarts()
    waits = [restarts.wait_s(1.0, was_ready=True) for _ in range(9)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert restarts.wait_s(60.0, was_ready=False) == 5.0
    assert restarts.wait_s(2.0, was_ready=True) == 0.0
    assert restarts.wait_s(1.0, was_ready=True) == 0.05


def output_count(cluster: OncelogCluster, text: str) -> int:
    return cluster.process.output().count(f"[KafkaServer id=1] {text}")


def test_deleted_topic_is_not_recreated_by_a_restart(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--topic", "kept", "--topic", "deleted"))
    with Wire(cluster.bootstrap) as wire:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="deleted")], timeout_ms=10_000)
        assert not wire.call(request).responses[0].error_code
    cluster.kill()
    cluster.wait_ready()
    with Wire(cluster.bootstrap) as wire:
        asked = [MetadataRequestTopic(name=name) for name in ("kept", "deleted")]
        request_all = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        codes = [topic.error_code for topic in wire.call(request_all, 12).topics]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_metadata_of_a_newer_version_is_rejected(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.stop()
    with closing(sqlite3.connect(cluster.data / "metadata.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(AssertionError, match="was written by a newer oncelog"):
        cluster.start()
    assert "Traceback" not in cluster.process.output()


def test_restarts_slow_down_while_a_disk_is_full(tmp_path: Path) -> None:
    """A broker on a full disk starts, serves some requests, and fails again."""
    metadata = tmp_path / "metadata.sqlite"
    metadata.touch()
    said: list[str] = []
    broker = BrokerProcess(Launch({"node.id": "2", "log.dirs": "/disk2"}, str(metadata)), restart=True, say=said.append)
    broker.ready = Ready("127.0.0.1", 9093, "127.0.0.1:9093")
    broker._accepts = True
    for wait in ("0.05 s", "0.1 s (2 attempts have failed)", "", "0.4 s (4 attempts have failed)"):
        broker.process = SimpleNamespace(returncode=NO_LOG_DIRECTORY)  # type: ignore[assignment]
        assert broker.died()
        assert not wait or said.pop() == (
            "broker 2 cannot use any of its log directories, and serves no clients until it can. Free space on the "
            f"disk of /disk2, repair it, or put the directory back if it is missing. Retrying in {wait}."
        )
        assert not said


def test_reason_that_repeats_is_not_printed_at_each_attempt(new_cluster: NewCluster) -> None:
    """A disk may be full for days, and `oncelog up` tries again every 5 s."""
    cluster = new_cluster()
    pid_file = cluster.data / "broker-1" / "broker.pid.new"
    pid_file.symlink_to("/dev/full")
    os.kill(cluster.broker_pid(), signal.SIGKILL)
    cluster.process.wait_for(lambda: "(8 attempts have failed)" in cluster.process.output(), "it tries again")
    reason = f"oncelog: cannot write {pid_file.with_suffix('')}: the file system of {pid_file.parent} is full: "
    assert output_count(cluster, reason) <= 5, "the attempts 1, 2, 4 and 8, and the first line after the kill"
    assert output_count(cluster, "attempts have failed") <= 4
    pid_file.unlink()
    cluster.process.wait_for(lambda: output_count(cluster, "started") >= 2, "another broker serves")
    cluster.wait_ready()
