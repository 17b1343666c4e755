"""Parse the broker addresses that users specify."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog import errors

Address = tuple[str, int]


def parse_bootstrap(servers: str | Iterable[str]) -> list[Address]:
    """Read `"a:9092,[::1]:9093"`, or a list of such addresses, as (host, port) pairs. Raises ConfigError."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = []
    for part in parts:
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise errors.ConfigError(f"bootstrap_servers: {part!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return found
