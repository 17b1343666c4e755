"""What `oncelog up` does when its broker ends: after a failure of its only disk, and with topics of `--topic`."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.processes import gone, wait_until
from support.servers import OncelogCluster
from support.wire import Wire, batch

NewCluster = Callable[..., OncelogCluster]
LIMIT = 1 << 20


def test_a_broker_without_a_disk_ends_and_says_why(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--topic", "t"))
    pid = cluster.broker_pid()
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, hard))
    kept = 0
    with Wire(cluster.bootstrap) as wire:
        while not (found := wire.produce("t", batch([b"x" * 100_000]))).error_code:
            kept += 1
            assert kept * 100_000 < 2 * LIMIT, "the limit does not hold"
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wait_until(lambda: gone(pid), "the broker ends")
    cluster.process.wait_for(lambda: "starting it again" in cluster.process.output(), "the supervisor says so")
    output = cluster.process.output()
    assert "oncelog: the broker stops: all log directories have failed" in output
    assert "broker 1 ended with status 1, starting it again in" in output
    assert "Traceback" not in output
    cluster.process.wait_for(lambda: output_count(cluster, "started") >= 2, "another broker serves")
    cluster.wait_ready()
    with Wire(cluster.bootstrap) as wire:
        wire.leaders_serve("t")
        assert wire.offset("t") >= kept


def output_count(cluster: OncelogCluster, text: str) -> int:
    return cluster.process.output().count(f"[KafkaServer id=1] {text}")


def test_a_topic_that_was_deleted_does_not_come_back_with_a_restart(new_cluster: NewCluster) -> None:
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


def test_metadata_of_a_newer_version_is_refused(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.stop()
    with closing(sqlite3.connect(cluster.data / "metadata.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(AssertionError, match="was written by a newer oncelog"):
        cluster.start()
    assert "Traceback" not in cluster.process.output()
