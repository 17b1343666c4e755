"""The verbs run against our broker, or those that ONCELOG_TEST_SERVERS names: Apache Kafka is the control."""

from __future__ import annotations

import pytest

from support.fixtures import apache_kafka, server, vary_servers

__all__ = ["apache_kafka", "server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One variant of a test a server."""
    vary_servers(metafunc, "oncelog")
