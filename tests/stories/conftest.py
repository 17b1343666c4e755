"""Fixtures of the stories."""

from __future__ import annotations

from support.fixtures import name

__all__ = ["name"]
