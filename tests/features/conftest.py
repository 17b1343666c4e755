"""One test module a row of the feature table, at the wire; the same tests run against Apache Kafka.

`ONCELOG_TEST_SERVERS=apache-kafka` is the control (`scripts/control` runs it): what it does not pass is no test of
ours. Where the outcome differs on purpose, the test says `DIFFERS[...]` with the reason, and both outcomes are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fixtures import apache_kafka, module_server, name, own_server, server, start_server, vary_servers
from support.servers import Server
from support.wire import Wire

__all__ = ["apache_kafka", "module_server", "name", "own_server", "server", "start_server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One variant of a test for each server."""
    vary_servers(metafunc, "oncelog")


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A connection to the shared server."""
    with Wire(server.bootstrap) as connection:
        yield connection


@pytest.fixture
def module_wire(module_server: Server) -> Iterator[Wire]:
    """A connection to the module's server."""
    with Wire(module_server.bootstrap) as connection:
        yield connection
