"""Fixtures for tests that need a running server; a conftest imports those that its tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.apache_kafka import ApacheKafka
from support.servers import OncelogCluster, Server

SERVERS: dict[str, Callable[[Path], Server]] = {"oncelog": OncelogCluster, "apache-kafka": ApacheKafka}
"""How each server that a test may run against is started in a folder."""


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., OncelogCluster]]:
    """Makes clusters of this test's own (arguments of OncelogCluster); all are stopped after it."""
    made: list[OncelogCluster] = []

    def make(**options: object) -> OncelogCluster:
        cluster = OncelogCluster(tmp_path / f"cluster-{len(made)}", **options)  # type: ignore[arg-type]
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="session")
def oncelog_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    """One running `oncelog up` shared by all tests that leave it as they found it (own topics, no kills)."""
    cluster = OncelogCluster(tmp_path_factory.mktemp("oncelog"))
    yield cluster
    assert cluster.stop() == 0, cluster.process.output()


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One running Apache Kafka, shared likewise."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"))
    yield kafka
    kafka.stop()
