"""Test modules for the rows of the feature table, at the protocol level. The same tests run against Apache Kafka.

`ONCELOG_TEST_SERVERS=apache-kafka` is the control (`scripts/control` runs it): a test that it does not pass is wrong.
If the outcome differs on purpose, the test says `DIFFERS[...]` with the reason, and checks both outcomes.
"""

from __future__ import annotations

import pytest

from support.fixtures import (
    apache_kafka,
    guarded,
    module_server,
    module_wire,
    name,
    own_server,
    proxy,
    server,
    start_server,
    vary_servers,
    wire,
)

__all__ = [
    "apache_kafka",
    "guarded",
    "module_server",
    "module_wire",
    "name",
    "own_server",
    "proxy",
    "server",
    "start_server",
    "wire",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a variant of each test for each server."""
    vary_servers(metafunc, "oncelog")
