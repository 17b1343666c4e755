"""What the stories use."""

from __future__ import annotations

from support.fixtures import name

__all__ = ["name"]
