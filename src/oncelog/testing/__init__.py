"""A broker for tests, for any client library, faults on demand, and an assertion that an output is exactly-once.

    from oncelog.testing import Broker

    with Broker() as broker:
        run_my_service(broker.bootstrap_servers)

With pytest, the fixtures `bootstrap_servers`, `topic`, `new_topic`, `oncelog_broker`, `oncelog_faults` and
`oncelog_registry` need no import. They come from the plugin `oncelog.testing.plugin`, which pytest loads if oncelog is
installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Broker",
    "BrokerStartError",
    "FaultProxy",
    "OncelogContainer",
    "SchemaRegistryDouble",
    "assert_exactly_once",
]

if TYPE_CHECKING:
    from oncelog.faults.proxy import FaultProxy
    from oncelog.testing.broker import Broker, BrokerStartError
    from oncelog.testing.container import OncelogContainer
    from oncelog.testing.exactly_once import assert_exactly_once
    from oncelog.testing.registry import SchemaRegistryDouble

_HOMES = {
    "Broker": "testing.broker",
    "BrokerStartError": "testing.broker",
    "FaultProxy": "faults.proxy",
    "OncelogContainer": "testing.container",
    "SchemaRegistryDouble": "testing.registry",
    "assert_exactly_once": "testing.exactly_once",
}


def __getattr__(name: str) -> object:
    """Import a module when one of its names is first used, because pytest imports this package in every run."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"oncelog.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names of the module, including those that are not imported yet."""
    return sorted({*globals(), *_HOMES})
