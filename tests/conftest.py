"""Fixtures for every test that needs a running server, and how hypothesis runs."""

from __future__ import annotations

import signal
from types import FrameType

import pytest
from hypothesis import settings

from support.fixtures import new_cluster, oncelog_cluster

__all__ = ["new_cluster", "oncelog_cluster"]

# No test depends on the machine's speed: the first example of a run may compile kernels.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends a run as Ctrl-C does: fixtures stop the servers that they have started."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
