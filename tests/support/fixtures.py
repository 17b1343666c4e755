"""Fixtures for tests that need a running server. A conftest imports the ones that its tests use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from support.apache_kafka import ApacheKafka
from support.command_line import Tool
from support.delegation_token_servers import TOKEN_SERVERS, TokenServer
from support.kafka_nodes import ThreeKafkas
from support.locked_servers import LOCKED, Locked
from support.permissions import GUARDED, SETTINGS, GuardedServer
from support.proxy import Proxy, redirect
from support.secured_cluster import SecuredCluster
from support.servers import OncelogCluster, ReplicatedCluster, Server
from support.wire import Wire

SERVERS: dict[str, Callable[..., Server]] = {
    "oncelog": OncelogCluster,
    "oncelog-3": ReplicatedCluster,
    SecuredCluster.name: SecuredCluster,
    "apache-kafka": ApacheKafka,
    "apache-kafka-3": ThreeKafkas,
}
"""How to start each server under test in a folder."""

SHARED = {
    "oncelog": "oncelog_cluster",
    "oncelog-3": "replicated_cluster",
    "apache-kafka": "apache_kafka",
    "apache-kafka-3": "three_kafkas",
}
"""The fixture with each shared server."""

OLD_RECORDS_STAY = {"log.retention.check.interval.ms": "86400000", "log.initial.task.delay.ms": "86400000"}
"""Settings of the shared servers.

Many tests give their records timestamps of 1970, and the check for old segments would delete them (Kafka checks half a
minute after its start, both every five minutes). A server that does not know the second key has no check at its start.
"""


def vary_servers(metafunc: pytest.Metafunc, default: str) -> None:
    """Create a variant of a test for each server (`$ONCELOG_TEST_SERVERS`, otherwise `default`: names separated by
    commas).
    """
    servers = os.environ.get("ONCELOG_TEST_SERVERS", default).split(",")
    scopes: dict[str, Literal["session", "module", "function"]] = {
        "server": "session",
        "module_server": "module",
        "own_server": "function",
        "start_server": "function",
        "guarded": "module",
        "locked": "module",
        "token_server": "module",
    }
    for fixture, scope in scopes.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, servers, indirect=True, scope=scope)


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., OncelogCluster]]:
    """Create clusters for this test (arguments of OncelogCluster), and stop them afterwards.

    With `directory`, a cluster has the data of another one, which has stopped.
    """
    made: list[OncelogCluster] = []

    def make(directory: Path | None = None, **options: object) -> OncelogCluster:
        cluster = OncelogCluster(directory or tmp_path / f"cluster-{len(made)}", **options)  # type: ignore[arg-type]
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="session")
def oncelog_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    """Run one `oncelog up`, shared by all tests that do not change it (own topics, no kills)."""
    cluster = OncelogCluster(tmp_path_factory.mktemp("oncelog"), settings=OLD_RECORDS_STAY)
    yield cluster
    assert cluster.stop() == 0, cluster.process.output()


@pytest.fixture(scope="session")
def replicated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    """Run one `oncelog up --brokers 3`, shared in the same way."""
    cluster = ReplicatedCluster(tmp_path_factory.mktemp("oncelog-3"), settings=OLD_RECORDS_STAY)
    yield cluster
    assert cluster.stop() == 0, cluster.process.output()


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Run one Apache Kafka, shared in the same way."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"), settings=OLD_RECORDS_STAY)
    yield kafka
    kafka.stop()


@pytest.fixture(scope="session")
def three_kafkas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeKafkas]:
    """Run three nodes of Apache Kafka, shared in the same way."""
    kafkas = ThreeKafkas(tmp_path_factory.mktemp("apache-kafka-3"), settings=OLD_RECORDS_STAY)
    yield kafkas
    kafkas.stop()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """Return a server shared by all tests that leave it running. Each creates its own topics and groups."""
    shared: Server = request.getfixturevalue(SHARED[request.param])
    return shared


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server for the tests of one module, with the settings in its `SETTINGS`."""
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    made = SERVERS[request.param](tmp_path_factory.mktemp("module"), settings=settings)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    """Run a server with ACLs for the tests of one module, with the settings in its `GUARDED_SETTINGS`."""
    settings = {**SETTINGS, **getattr(request.module, "GUARDED_SETTINGS", {})}
    made = GUARDED[request.param](tmp_path_factory.mktemp("guarded"), settings)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def locked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """Run a server with TLS, logins and ACLs for the tests of one module, with the settings in its `SETTINGS`."""
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    made = LOCKED[request.param](tmp_path_factory.mktemp("locked"), settings=settings)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def token_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    """Run a server with delegation tokens for the tests of one module."""
    made = TOKEN_SERVERS[request.param](tmp_path_factory.mktemp("tokens"))
    yield made
    made.stop()


@pytest.fixture
def module_wire(module_server: Server) -> Iterator[Wire]:
    """Connect to the module's server."""
    with Wire(module_server.bootstrap) as connection:
        yield connection


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Run a server for this test alone, which may kill it."""
    made = SERVERS[request.param](tmp_path)
    yield made
    made.stop()


@pytest.fixture
def start_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers for this test, with settings (Kafka's dotted names) that both support."""
    made: list[Server] = []

    def start(settings: dict[str, str]) -> Server:
        made.append(SERVERS[request.param](tmp_path / f"server-{len(made)}", settings=settings))
        return made[-1]

    yield start
    for each in made:
        each.stop()


def _proxy_to(server: Server, patch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    made = Proxy(server.bootstrap)
    redirect(patch, made)
    yield made
    made.close()


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Run a proxy between every client of the test and the shared server."""
    yield from _proxy_to(server, monkeypatch)


@pytest.fixture
def module_proxy(module_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Run a proxy between every client of the test and the module's server."""
    yield from _proxy_to(module_server, monkeypatch)


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """Connect to the shared server."""
    with Wire(server.bootstrap) as connection:
        yield connection


@pytest.fixture
def tool(server: Server) -> Tool:
    """Return the command line, connected to the shared server."""
    return Tool(server.bootstrap)


@pytest.fixture
def name() -> str:
    """Return a name for a topic, group or transactional id that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
