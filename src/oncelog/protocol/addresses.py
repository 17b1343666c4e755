"""Addresses as Kafka writes them: HOST:PORT. An IPv6 address is in brackets: `[::1]:9092`."""

from __future__ import annotations

import re

MOST_PORT = 65_535
_ADDRESS = re.compile(r"(.*):([0-9]{1,5})")


def parse_address(text: str) -> tuple[str, int] | None:
    """Return the host, without brackets, and the port, or None if `text` is no address. The host may be empty."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > MOST_PORT:
        return None
    return found[1].strip("[]"), int(found[2])


def bracketed(host: str) -> str:
    """Return the host as it is written before `:PORT`: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host
