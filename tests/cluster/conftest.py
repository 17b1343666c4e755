"""Fixtures for tests of several brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.servers import ReplicatedCluster
from support.wire import Wire


@pytest.fixture
def wires(tmp_path: Path) -> Iterator[list[Wire]]:
    """Connect to each of three brokers."""
    cluster = ReplicatedCluster(tmp_path)
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(Wire(address)) for address in cluster.bootstrap.split(",")]
    finally:
        cluster.stop()
