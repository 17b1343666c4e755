"""Run other projects' tools against Apache Kafka first (the control), then against our broker."""

from __future__ import annotations

import pytest

from support.cures import shop_server
from support.fixtures import (
    apache_kafka,
    guarded,
    module_server,
    name,
    new_cluster,
    oncelog_cluster,
    own_server,
    replicated_cluster,
    server,
    start_server,
    three_kafkas,
    token_server,
    vary_servers,
)
from support.hooks import pytest_collection_modifyitems, pytest_configure
from support.suite_counts import servers_to_run

__all__ = [
    "apache_kafka",
    "guarded",
    "module_server",
    "name",
    "new_cluster",
    "oncelog_cluster",
    "own_server",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "replicated_cluster",
    "server",
    "shop_server",
    "start_server",
    "three_kafkas",
    "token_server",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a variant of each test for each server.

    A module with foreign suites names them in `SUITES`, one with other servers than one broker in `SERVERS`.
    """
    suites = getattr(metafunc.module, "SUITES", ())
    default = ",".join(getattr(metafunc.module, "SERVERS", ("apache-kafka", "oncelog")))
    vary_servers(metafunc, ",".join(servers_to_run(suites)) if suites else default)
