"""The commands run against our broker, or against ONCELOG_TEST_SERVERS. Apache Kafka is the control."""

from __future__ import annotations

import pytest

from support.fixtures import apache_kafka, server, tool, vary_servers, wire

__all__ = ["apache_kafka", "server", "tool", "wire"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a variant of a test for each server."""
    vary_servers(metafunc, "oncelog")
