"""Hooks of pytest for all tests: which files run first in several processes, how Spark starts, and SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

from support.apache_kafka import SHORT_LIVED

SPARK = {
    "SPARK_CONF_DIR": str(Path(__file__).with_name("spark_conf")),
    "SPARK_DAEMON_JAVA_OPTS": " ".join(SHORT_LIVED),
    "SPARK_LAUNCHER_OPTS": " ".join(SHORT_LIVED),
}
"""Variables that let each JVM of Spark need half of the CPU time, because tests only use it for a short time."""

LONGEST = (
    "tests/spark/test_explorer.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_chaos.py",
    "tests/spark/test_typed_crashes.py",
    "tests/spark/test_broker_restarts.py",
    "tests/spark/test_spark.py",
    "tests/spark/test_docs.py",
    "tests/cluster/test_broken_brokers.py",
    "tests/clients/test_produce_files.py",
    "tests/clients/test_topic_export.py",
    "tests/clients/test_command_line.py",
    "tests/clients/test_transactions.py",
    "tests/features/test_transaction_two_phase_commit.py",
    "tests/clients/test_groups.py",
    "tests/features/test_transaction_timeouts.py",
    "tests/clients/test_prepared_transactions.py",
    "tests/features/test_log_compaction.py",
    "tests/simulation/test_cluster_worlds.py",
    "tests/unit/testing/test_plugin.py",
    "conformance/test_login_table.py",
    "conformance/test_logins.py",
    "conformance/test_kafka_python_suite.py",
    "conformance/test_foreign_clients.py",
)
"""Files that take a minute or more. Each process takes the next file when it has finished one. If a long file came
last, one process would run it alone.
"""


def longest_first(files: Sequence[str]) -> list[int]:
    """Return the indexes of `files` in the order to run: LONGEST first, then the others in their own order."""
    ranks = {file: rank for rank, file in enumerate(LONGEST)}
    return sorted(range(len(files)), key=lambda index: ranks.get(files[index], len(ranks)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder the tests in a worker of pytest-xdist. A single process keeps the usual order."""
    if hasattr(config, "workerinput"):
        items[:] = [items[index] for index in longest_first([item.location[0] for item in items])]


def pytest_configure(config: pytest.Config) -> None:
    """Choose how Spark starts. End a run on SIGTERM as on Ctrl-C: fixtures stop the servers that they have started."""
    for name, text in SPARK.items():
        os.environ.setdefault(name, text)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
