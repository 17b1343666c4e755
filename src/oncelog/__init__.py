"""Exactly-once streaming for Python and Spark: a broker that speaks Kafka's protocol, a client and a Spark sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.version import __version__

__all__ = [
    "Admin",
    "Consumer",
    "OffsetAndMetadata",
    "PreparedTransaction",
    "Producer",
    "Transaction",
    "__version__",
    "scan",
    "sql",
]

if TYPE_CHECKING:
    from oncelog.client.admin.blocking import Admin
    from oncelog.client.consumer.blocking import Consumer
    from oncelog.client.group_offsets import OffsetAndMetadata
    from oncelog.client.producer.blocking import Producer, Transaction
    from oncelog.client.producer.prepared import PreparedTransaction
    from oncelog.tables.query import sql
    from oncelog.tables.scan import scan

_HOMES = {
    "Admin": "client.admin.blocking",
    "Consumer": "client.consumer.blocking",
    "OffsetAndMetadata": "client.group_offsets",
    "PreparedTransaction": "client.producer.prepared",
    "Producer": "client.producer.blocking",
    "Transaction": "client.producer.blocking",
    "scan": "tables.scan",
    "sql": "tables.query",
}


def __getattr__(name: str) -> object:
    """Import a part of the client when it is first used, because a broker never needs it."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"oncelog.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names of the module, including those that are not imported yet."""
    return sorted({*globals(), *_HOMES})
