"""The test double of a schema registry, by the names that our own tests use."""

from __future__ import annotations

from oncelog.testing.registry import SchemaRegistryDouble as FakeRegistry
from oncelog.testing.registry import guid_of

__all__ = ["FakeRegistry", "fake_registry", "guid_of"]

fake_registry = FakeRegistry
