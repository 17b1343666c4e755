"""The limits of connections: of the broker, of a listener, and of an address.

Source: Kafka's `SocketServerConfigs`, `KafkaConfig.validateValues`, `ConnectionQuotas`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TypeGuard

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listener_keys import ListenerKey, listener_key
from oncelog.net.admission import ListenerQuota

LISTENER_LIMITS = frozenset({"max.connections", "max.connection.creation.rate"})
"""The limits that a listener may have of its own. They may change while the broker runs, like those of the broker."""
DYNAMIC_LIMITS = LISTENER_LIMITS | {"max.connections.per.ip", "max.connections.per.ip.overrides"}

_OVERRIDES = "max.connections.per.ip.overrides"
_HOST = re.compile(r"[0-9a-zA-Z\-%._:]+")
_COUNT = re.compile(r"[+-]?[0-9]{1,10}")
_INT_MAX = 2**31 - 1


def limits_a_listener(found: ListenerKey | None) -> TypeGuard[ListenerKey]:
    """Return whether it is a limit that one listener has of its own."""
    return found is not None and found.mechanism is None and found.key in LISTENER_LIMITS


def limit_of(name: str) -> str:
    """Return the setting that a listener's limit overrides, such as `max.connections`. Return other names as they are.

    As in Kafka, the name of the listener must be in lower case.
    """
    found = listener_key(name)
    return found.key if limits_a_listener(found) else name


def listener_quotas(settings: Mapping[str, str]) -> dict[str, ListenerQuota]:
    """Return the limits of the listeners that have own ones, by the listener's name in lower case."""
    own: dict[str, dict[str, int]] = {}
    for name, text in settings.items():
        found = listener_key(name)
        if limits_a_listener(found):
            own.setdefault(found.listener or "", {})[found.key] = int(text)
    return {
        name: ListenerQuota(limits.get("max.connections"), limits.get("max.connection.creation.rate"))
        for name, limits in own.items()
    }


def overrides(text: str) -> dict[str, int]:
    """Return the limits of hosts, from `HOST:COUNT` with commas between them. Raises ConfigError."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        host, colon, count = part.rpartition(":")
        host, count = host.strip(), count.strip()
        if not colon or _COUNT.fullmatch(count) is None or abs(int(count)) > _INT_MAX:
            raise ConfigError(f"{_OVERRIDES} must be HOST:COUNT with commas between them, not {part!r}")
        if _HOST.fullmatch(host) is None:
            raise ConfigError(f"{_OVERRIDES} contains invalid addresses : {host}")
        found[host] = int(count)
    return found


def check_limits(per_address: int, of_addresses: str) -> None:
    """Check the limits of addresses together. Raises ConfigError."""
    if not overrides(of_addresses) and per_address == 0:
        raise ConfigError(f"max.connections.per.ip can be set to zero only if {_OVERRIDES} property is set.")


def check_changed_limit(name: str, value: object) -> None:
    """Check a limit that changes while the broker runs, which may not be zero. Raises ConfigError."""
    if limit_of(name) in LISTENER_LIMITS and value == 0:
        raise ConfigError(f"Invalid {limit_of(name)} {value}")
    if name == _OVERRIDES:
        overrides(str(value))


def as_address(host: str) -> str | None:
    """Return an IP address as the system writes it, or None if `host` is a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None
