"""Run every test with every client against our broker, or against the servers in ONCELOG_TEST_SERVERS.

`ONCELOG_TEST_SERVERS=apache-kafka` is the control: a test that Apache Kafka does not pass is wrong (`scripts/control`
runs it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from oncelog import Admin
from support.clients.aio import AioClient
from support.clients.base import Client
from support.clients.confluent import ConfluentClient
from support.clients.kafka_python import KafkaPythonClient
from support.clients.ours import OurClient
from support.fixtures import (
    apache_kafka,
    guarded,
    locked,
    module_proxy,
    module_server,
    module_wire,
    name,
    new_cluster,
    own_server,
    proxy,
    server,
    token_server,
    tool,
    vary_servers,
    wire,
)
from support.servers import Server

__all__ = [
    "apache_kafka",
    "guarded",
    "locked",
    "module_proxy",
    "module_server",
    "module_wire",
    "name",
    "new_cluster",
    "own_server",
    "proxy",
    "server",
    "token_server",
    "tool",
    "wire",
]

CLIENTS: dict[str, Callable[[str], Client]] = {
    client.name: client for client in (ConfluentClient, KafkaPythonClient, AioClient, OurClient)
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a variant of each test for each server and each client."""
    vary_servers(metafunc, "oncelog")
    for fixture in ("client", "other_client"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, CLIENTS, indirect=True)


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    """Return our own admin client, connected to the shared server."""
    with Admin(server.bootstrap) as made:
        yield made


@pytest.fixture
def client(request: pytest.FixtureRequest, server: Server) -> Client:
    """Return one of the libraries, connected to the shared server."""
    return CLIENTS[request.param](server.bootstrap)


@pytest.fixture
def other_client(request: pytest.FixtureRequest, server: Server) -> Client:
    """Return another (or the same) library."""
    return CLIENTS[request.param](server.bootstrap)
