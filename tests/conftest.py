"""Fixtures for every test that needs a running server, and hypothesis's settings."""

from __future__ import annotations

from hypothesis import Phase, settings

from support.fixtures import new_cluster, oncelog_cluster, replicated_cluster
from support.hooks import pytest_collection_modifyitems, pytest_configure

__all__ = ["new_cluster", "oncelog_cluster", "pytest_collection_modifyitems", "pytest_configure", "replicated_cluster"]

# No test depends on the machine's speed: the first example of a run may compile kernels.
settings.register_profile("oncelog", deadline=None, print_blob=True)
settings.load_profile("oncelog")
# `tests/mutation` wants to know only whether a test fails, and the same each time.
settings.register_profile(
    "mutation", deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
)
