"""Fixtures of the stories."""

from __future__ import annotations

from support.cures import shop_server
from support.fixtures import name

__all__ = ["name", "shop_server"]
