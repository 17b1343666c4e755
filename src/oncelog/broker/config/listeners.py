"""The listeners of a broker: the addresses that it binds, and the addresses that its clients get.

Source: Kafka's `AbstractKafkaConfig.listenerListToEndPoints` and `KafkaConfig.validateValues`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from oncelog.broker.config.errors import ConfigError
from oncelog.net.server_options import PLAINTEXT
from oncelog.protocol.addresses import parse_address

DEFAULT_LISTENERS = "PLAINTEXT://127.0.0.1:9092"
"""Kafka's default listens on every interface, which is not safe for a broker without authentication."""
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""A listener with the name of a protocol needs no entry in `listener.security.protocol.map`."""
_NOT_ROUTABLE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One listener for clients, as it is configured."""

    name: str = PLAINTEXT
    protocol: str = PLAINTEXT
    host: str = "127.0.0.1"
    """The host that the server binds; empty for every IPv4 interface."""
    port: int = 9092
    """The port that the server binds; 0 for a free port."""
    advertised_host: str = ""
    """The host that clients get; empty for `host`."""
    advertised_port: int = 0
    """The port that clients get; 0 for the bound port."""


@dataclass(frozen=True, slots=True)
class _Address:
    """One part of `listeners` or `advertised.listeners`."""

    name: str
    host: str
    port: int


def parse_listeners(listeners: str, advertised: str, protocols: str, controllers: str) -> tuple[ListenerConfig, ...]:
    """Return the listeners for clients, from four settings as they were written. Raises ConfigError.

    The arguments are `listeners`, `advertised.listeners`, `listener.security.protocol.map` and
    `controller.listener.names`. As in Kafka, names are compared in upper case. If a listener is not advertised, its
    clients get the address that it binds. In Kafka, they find no broker.
    """
    known = {name: name for name in PROTOCOLS} | _protocol_map(protocols)
    left_out = {name.strip().upper() for name in controllers.split(",")}
    everything = _addresses("listeners", listeners)
    _check_ports(everything, listeners)
    bound = [address for address in everything if address.name not in left_out]
    if not bound:
        raise ConfigError(
            f"listeners has no listener for clients: controller.listener.names contains all of {listeners!r}"
        )
    published = {
        address.name: address
        for address in _addresses("advertised.listeners", advertised)
        if address.name not in left_out
    }
    for name, address in published.items():
        if all(name != each.name for each in bound):
            names = ", ".join(each.name for each in bound)
            raise ConfigError(f"advertised.listeners names {name}, which is not one of the listeners ({names})")
        if address.host == _NOT_ROUTABLE:
            raise ConfigError(f"advertised.listeners must name a host that clients can reach, not {_NOT_ROUTABLE}")
    return tuple(_listener(address, published.get(address.name), known) for address in bound)


def broker_listener(name: str, protocol: str, listeners: Collection[str]) -> str:
    """Return the listener to which other brokers connect. Raises ConfigError.

    The arguments are `inter.broker.listener.name`, `security.inter.broker.protocol` and the names of the listeners. As
    in Kafka, the default is PLAINTEXT. If there is no such listener, return "": other brokers cannot connect. Kafka
    does not start then, but a single broker needs no listener for brokers.
    """
    if name and protocol:
        raise ConfigError("set inter.broker.listener.name or security.inter.broker.protocol, not both")
    if protocol and protocol.upper() not in PROTOCOLS:
        raise ConfigError(f"security.inter.broker.protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    found = (name or protocol).upper()
    if not found:
        return PLAINTEXT if PLAINTEXT in listeners else ""
    if found not in listeners:
        key = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
        raise ConfigError(f"{key} must be one of the listeners ({', '.join(listeners)}), not {found!r}")
    return found


def require_broker_listener(listener: str, listeners: Sequence[ListenerConfig]) -> None:
    """Raise ConfigError if other brokers cannot connect, because `broker_listener` has found no listener for them."""
    if not listener:
        names = ", ".join(each.name for each in listeners)
        raise ConfigError(
            f"several brokers connect to each other through a listener with the name {PLAINTEXT}, and there is none. "
            f"Set inter.broker.listener.name to one of the listeners ({names})"
        )


def _listener(bound: _Address, published: _Address | None, protocols: dict[str, str]) -> ListenerConfig:
    protocol = protocols.get(bound.name)
    if protocol is None:
        raise ConfigError(f"listeners names {bound.name}, but listener.security.protocol.map has no protocol for it")
    if protocol not in PROTOCOLS:
        raise ConfigError(f"listeners uses protocol {protocol}, but there are only {', '.join(PROTOCOLS)}")
    if published is None:
        return ListenerConfig(bound.name, protocol, bound.host, bound.port)
    return ListenerConfig(bound.name, protocol, bound.host, bound.port, published.host, published.port)


def _addresses(key: str, text: str) -> list[_Address]:
    """Return the addresses in the value of `key`. An empty value has none."""
    found = [_address(key, part.strip()) for part in text.split(",")] if text else []
    names = [address.name for address in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{key} must give each listener its own name, but {text!r} has {name} more than once")
    return found


def _address(key: str, text: str) -> _Address:
    name, scheme, address = text.partition("://")
    found = parse_address(address)
    if not scheme or found is None:
        raise ConfigError(f"{key} must look like PLAINTEXT://HOST:PORT, not {text!r}")
    return _Address(name.upper(), *found)


def _check_ports(addresses: Sequence[_Address], text: str) -> None:
    """Raise ConfigError if listeners share a port, unless one has an IPv4 address and the other an IPv6 address."""
    for port in {address.port for address in addresses} - {0}:
        families = [_ip_version(address.host) for address in addresses if address.port == port]
        if len(families) > 1 and sorted(families) != [4, 6]:
            message = f"listeners must give each listener its own port, but {text!r} has {port} more than once"
            raise ConfigError(message)


def _ip_version(host: str) -> int:
    """Return 4 or 6 for an IPv4 or IPv6 address, 0 for a name or if the host means every interface."""
    if ":" in host:
        return 6
    return 4 if re.fullmatch("[0-9.]+", host) else 0


def _protocol_map(text: str) -> dict[str, str]:
    pairs = (pair.partition(":") for pair in text.split(",") if pair.strip())
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}
