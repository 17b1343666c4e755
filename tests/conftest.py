"""Fixtures for every test that needs a running server."""

from __future__ import annotations

from support.fixtures import new_cluster, oncelog_cluster

__all__ = ["new_cluster", "oncelog_cluster"]
