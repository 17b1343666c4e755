"""Fixtures for tests of two-phase commit (KIP-939), which no Apache Kafka serves: they run on our brokers only."""

from __future__ import annotations

import pytest

from support.fixtures import module_server, module_wire, name, own_server, vary_servers

__all__ = ["module_server", "module_wire", "name", "own_server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a variant of each test for each server."""
    vary_servers(metafunc, "oncelog")
