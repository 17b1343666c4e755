"""Run every test of the console against our broker, or against the servers in ONCELOG_TEST_SERVERS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog import Admin
from support.consoles import ConsoleProcess
from support.fixtures import (
    apache_kafka,
    guarded,
    locked,
    module_server,
    name,
    new_cluster,
    oncelog_cluster,
    own_server,
    replicated_cluster,
    server,
    vary_servers,
)
from support.servers import Server

__all__ = [
    "apache_kafka",
    "guarded",
    "locked",
    "module_server",
    "name",
    "new_cluster",
    "oncelog_cluster",
    "own_server",
    "replicated_cluster",
    "server",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a variant of each test for each server."""
    vary_servers(metafunc, "oncelog")


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    """Return our own admin client, connected to the shared server."""
    with Admin(server.bootstrap) as made:
        yield made


@pytest.fixture
def start_console(tmp_path: Path) -> Iterator[Callable[..., ConsoleProcess]]:
    """Start consoles for this test (arguments of ConsoleProcess without the folder), and stop them afterwards."""
    made: list[ConsoleProcess] = []

    def start(bootstrap: str, *arguments: str, **options: dict[str, str]) -> ConsoleProcess:
        folder = tmp_path / f"console-{len(made)}"
        folder.mkdir()
        made.append(ConsoleProcess(bootstrap, folder, *arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for each in made:
        assert each.stop() == 0, each.process.output()
        assert "Traceback" not in each.process.output(), each.process.output()


@pytest.fixture
def console(server: Server, start_console: Callable[..., ConsoleProcess]) -> ConsoleProcess:
    """Return a console of the shared server."""
    return start_console(server.bootstrap)
