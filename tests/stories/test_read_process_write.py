"""examples/read_process_write.py, killed or aborted at each of its steps: nothing is lost or duplicated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from oncelog import Admin, Consumer, Producer
from support.cures import EXAMPLES
from support.servers import OncelogCluster

NUMBER = 30


def transform(cluster: OncelogCluster, source: str, target: str, *arguments: str) -> int:
    command = [sys.executable, EXAMPLES / "read_process_write.py", source, target, "--name", source]
    command += ["--bootstrap", cluster.bootstrap, "--idle", "1", *arguments]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def test_each_record_is_processed_once(oncelog_cluster: OncelogCluster, name: str) -> None:
    source, target = filled(oncelog_cluster, name)
    for step in ("sent", "offsets", "committed"):
        assert transform(oncelog_cluster, source, target, "--die", step) == -signal.SIGKILL
    assert transform(oncelog_cluster, source, target) == 0
    assert read(oncelog_cluster, target, "read_committed") == sorted(f"WORD-{number}" for number in range(NUMBER))
    # The log also contains the killed attempts: only the transaction hides them.
    assert len(read(oncelog_cluster, target, "read_uncommitted")) > NUMBER


@pytest.mark.parametrize("step", ["sent", "offsets"])
def test_aborted_block_is_processed_again(oncelog_cluster: OncelogCluster, name: str, step: str) -> None:
    source, target = filled(oncelog_cluster, name)
    assert transform(oncelog_cluster, source, target, "--abort", step) == 0
    assert read(oncelog_cluster, target, "read_committed") == sorted(f"WORD-{number}" for number in range(NUMBER))
    assert len(read(oncelog_cluster, target, "read_uncommitted")) > NUMBER


def filled(cluster: OncelogCluster, name: str) -> tuple[str, str]:
    source, target = name, f"{name}-out"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([source, target], 2)
    with Producer(cluster.bootstrap) as producer:
        for number in range(NUMBER):
            producer.send(source, f"word-{number}".encode(), key=str(number).encode())
    return source, target


def read(cluster: OncelogCluster, name: str, isolation: str) -> list[str]:
    partitions = [(name, 0), (name, 1)]
    with Consumer(cluster.bootstrap, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        words: list[str] = []
        while any(consumer.position(*partition) < end for partition, end in ends.items()):
            words += [(record.value or b"").decode() for record in consumer.poll()]
    return sorted(words)
