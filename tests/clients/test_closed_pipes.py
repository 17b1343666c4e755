"""A command whose reader has gone ends quietly, with status 0, as `oncelog topic list | head -1` needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers import OncelogCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    cluster = OncelogCluster(tmp_path_factory.mktemp("cluster"), arguments=("--topic", "orders"))
    yield cluster
    cluster.stop()


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "topic --help",
        "--version",
        "story",
        "topic list",
        "topic list --format json",
        "topic describe orders",
        "topic consume orders -e",
        "cluster describe",
        "cluster describe --configs",
        "group list",
        "txn list",
    ],
)
def test_command_without_a_reader_ends_quietly(cluster: OncelogCluster, words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [Path(sys.executable).with_name("oncelog"), *words.split()],
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, "ONCELOG_BROKERS": cluster.bootstrap},
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_errors_keep_their_status_without_a_reader(cluster: OncelogCluster) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "ONCELOG_BROKERS": cluster.bootstrap}
    program = Path(sys.executable).with_name("oncelog")
    with os.fdopen(writer, "wb") as out:
        for words, status in (("topic describe missing", 1), ("topic", 2), ("topic list --wrong", 2)):
            command = [program, *words.split()]
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=env, timeout=60, check=False)
            assert done.returncode == status, (words, done.stderr)
