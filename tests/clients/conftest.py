"""Runs every test with every client against our broker, or against those that ONCELOG_TEST_SERVERS names.

`ONCELOG_TEST_SERVERS=apache-kafka` is the control: what Apache Kafka does not pass is no test of ours
(`scripts/conformance` runs it).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.clients.aio import AioClient
from support.clients.base import Client
from support.clients.confluent import ConfluentClient
from support.clients.kafka_python import KafkaPythonClient
from support.fixtures import SERVERS, apache_kafka
from support.servers import Server

__all__ = ["apache_kafka"]

CLIENTS: dict[str, Callable[[str], Client]] = {
    client.name: client for client in (ConfluentClient, KafkaPythonClient, AioClient)
}

SHARED = {"oncelog": "oncelog_cluster", "apache-kafka": "apache_kafka"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One variant of a test for each server and each client it asks for."""
    servers = os.environ.get("ONCELOG_TEST_SERVERS", "oncelog").split(",")
    for fixture, scope in (("server", "session"), ("own_server", "function")):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, servers, indirect=True, scope=scope)
    for fixture in ("client", "other_client"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, CLIENTS, indirect=True)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """A server shared by all tests that leave it running; each makes topics and groups of its own."""
    return request.getfixturevalue(SHARED[request.param])


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server for this test alone, which may kill it."""
    made = SERVERS[request.param](tmp_path)
    yield made
    made.stop()


@pytest.fixture
def client(request: pytest.FixtureRequest, server: Server) -> Client:
    """One of the libraries, against the shared server."""
    return CLIENTS[request.param](server.bootstrap)


@pytest.fixture
def other_client(request: pytest.FixtureRequest, server: Server) -> Client:
    """Another (or the same) of the libraries."""
    return CLIENTS[request.param](server.bootstrap)


@pytest.fixture
def name() -> str:
    """A name for a topic, group or transactional id that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
