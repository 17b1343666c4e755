"""Test sink and source on our broker. The conformance suite runs the same tests on Apache Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncelog.spark
from oncelog.spark import faults
from oncelog.spark.java import ensure_java
from oncelog.testing.registry import SchemaRegistryDouble
from support.fixtures import apache_kafka, name, own_server, server, start_server, vary_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["apache_kafka", "name", "own_server", "server", "start_server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    vary_servers(metafunc, "oncelog")


@pytest.fixture
def registry() -> Iterator[SchemaRegistryDouble]:
    """Return a schema registry that runs."""
    with SchemaRegistryDouble() as made:
        yield made


@pytest.fixture(scope="session")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of this file select a fault in the sink's processes."""
    return tmp_path_factory.mktemp("faults") / "fault"


@pytest.fixture(scope="session")
def spark(fault: Path) -> Iterator[SparkSession]:
    """Start one JVM for all tests. It and its workers keep the environment of its start."""
    from pyspark.sql import SparkSession

    ensure_java()
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PYSPARK_PYTHON", sys.executable)
        changed.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        changed.setenv(faults.VARIABLE, f"@{fault}")
        made = (
            SparkSession.builder.master("local[2,3]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "512m")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.streaming.stopTimeout", "30s")
            .getOrCreate()
        )
    made.sparkContext.setLogLevel("OFF")
    oncelog.spark.register(made)
    yield made
    made.stop()
