"""Sink and source are tested on our broker; the conformance suite runs the same tests on Apache Kafka."""

from __future__ import annotations

import pytest

from support.fixtures import apache_kafka, name, own_server, server, start_server, vary_servers

__all__ = ["apache_kafka", "name", "own_server", "server", "start_server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    vary_servers(metafunc, "oncelog")
