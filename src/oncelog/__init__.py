"""Exactly-once streaming for Python and Spark: a broker that speaks Kafka's protocol, a client, a Spark sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.version import __version__

__all__ = ["Admin", "Consumer", "PreparedTransaction", "Producer", "Transaction", "__version__"]

if TYPE_CHECKING:
    from oncelog.client.admin import Admin
    from oncelog.client.consumer import Consumer
    from oncelog.client.prepared import PreparedTransaction
    from oncelog.client.producer import Producer, Transaction

_HOMES = {
    "Admin": "admin",
    "Consumer": "consumer",
    "PreparedTransaction": "prepared",
    "Producer": "producer",
    "Transaction": "producer",
}


def __getattr__(name: str) -> object:
    """The clients, imported when they are first asked for: a broker never needs them."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"oncelog.client.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What is here, with the clients that are not imported yet."""
    return sorted({*globals(), *_HOMES})
