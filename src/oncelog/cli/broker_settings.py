"""Combine a broker's settings: properties file, environment, `--set`, then the flags. The last one wins."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence

import click

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listeners import require_broker_listener
from oncelog.broker.config.settings import load, misspelled
from oncelog.broker.config.sources import environment_settings, set_option
from oncelog.broker.process import TopicSpec
from oncelog.cli.log_format import note
from oncelog.net.properties import parse_properties
from oncelog.protocol.addresses import bracketed

with_settings = click.option(
    *("--set", "assignments"),
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one broker setting, by Kafka's name. Repeatable.",
)
"""The option `--set` of a command. `gather` reads its values."""


def gather(config_file: str | None, assignments: Sequence[str]) -> dict[str, str]:
    """Return the settings of a properties file, the environment and `--set`. The last one wins."""
    settings: dict[str, str] = {}
    if config_file is not None:
        with open(config_file, encoding="utf-8") as file:
            settings.update(parse_properties(file.read()))
    settings.update(environment_settings(os.environ))
    try:
        assigned = dict(set_option(text) for text in assignments)
        require_utf8(*assigned.values())
        for name in assigned:
            if meant := misspelled(name):
                raise click.UsageError(f"--set {name}: there is no such setting; did you mean {meant}?")
        if assigned:
            load(settings | assigned)
    except ConfigError as error:
        if not _is_valid(settings):
            raise
        raise click.UsageError(str(error)) from error  # the other settings alone are valid
    return settings | assigned


def _is_valid(settings: dict[str, str]) -> bool:
    try:
        load(settings)
    except ConfigError:
        return False
    return True


def require_utf8(*texts: str) -> None:
    """Raise UsageError if a path or another argument has bytes that are not UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(text).decode(errors="backslashreplace")
            raise click.UsageError(f"{shown} has bytes that are not UTF-8; rename it, or use another path") from error


def warn_of_access(*brokers: dict[str, str]) -> None:
    """Print one line if other machines may reach a listener that requires neither a login nor a certificate."""
    for settings in brokers:
        config = load(settings)
        if config.authorizer_class_name:
            return
        for listener in config.client_listeners:
            security = config.security.get(listener.name)
            if not _is_loopback(listener.host) and not (security is not None and security.identifies):
                shown = f"{bracketed(listener.host or '0.0.0.0')}:{listener.port}"
                note(
                    f"WARNING: every program that reaches {shown} can read, change and delete all data, because the "
                    "listener requires no login. Limit access with a firewall, secure the broker, or listen on "
                    "127.0.0.1.",
                    level="WARNING",
                )
                return


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host, or the host has no address: the broker reports such a name."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def require_own_ports(brokers: Sequence[dict[str, str]]) -> None:
    """Raise UsageError if two brokers would listen on the same port."""
    taken: dict[int, int] = {}
    for number, settings in enumerate(brokers, 1):
        config = load(settings)
        for port in {config.metrics_port, *(listener.port for listener in config.client_listeners)} - {0, -1}:
            other = taken.setdefault(port, number)
            if other != number:
                raise click.UsageError(
                    f"brokers {other} and {number} would both listen on port {port}, because broker 2 uses the ports "
                    f"after those of broker 1, and so on; choose listener ports that differ by {len(brokers)} or more"
                )


def require_way_between(settings: dict[str, str], brokers: int) -> None:
    """Raise UsageError if several brokers would have no listener to connect to each other."""
    config = load(settings)
    try:
        if brokers > 1:
            require_broker_listener(config.broker_listener, config.client_listeners)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def with_address(
    settings: dict[str, str], *, host: str | None, port: int | None, advertise: str | None
) -> dict[str, str]:
    """Return the settings with the listener that the flags define. Without flags, return them unchanged."""
    listeners = load(settings).client_listeners
    changed = dict(settings)
    if host is None and port is None and advertise is None:
        return changed
    if len(listeners) > 1:
        names = ", ".join(listener.name for listener in listeners)
        raise click.UsageError(
            f"--host, --port and --advertise need a single listener, but the settings have {names}; "
            "change listeners and advertised.listeners instead"
        )
    only = listeners[0]
    if host is not None or port is not None:
        host = only.host if host is None else host
        port = only.port if port is None else port
        changed["listeners"] = f"{only.name}://{bracketed(host)}:{port}"
    if advertise is not None:
        changed["advertised.listeners"] = f"{only.name}://{_advertised(advertise)}"
    return changed


def of_broker(settings: dict[str, str], number: int) -> dict[str, str]:
    """Return the settings of broker `number` of several on this machine: broker 2 listens on the next ports, and so on.

    Port 0, any free port, stays 0.
    """
    if number == 1:
        return settings
    listeners, advertised = [], []
    config = load(settings)
    for each in config.client_listeners:
        listeners.append(f"{each.name}://{bracketed(each.host)}:{_next_port(each.port, number)}")
        if each.advertised_host:
            port = _next_port(each.advertised_port, number)
            advertised.append(f"{each.name}://{bracketed(each.advertised_host)}:{port}")
    changed = settings | {"listeners": ",".join(listeners)}
    if config.metrics_port > 0:
        changed["metrics.port"] = str(_next_port(config.metrics_port, number))
    return changed | {"advertised.listeners": ",".join(advertised)} if advertised else changed


def _next_port(port: int, number: int) -> int:
    if port and port + number - 1 > 65535:
        raise click.UsageError(f"broker {number} would listen on port {port + number - 1}; choose a smaller --port")
    return port + number - 1 if port else 0


def _advertised(text: str) -> str:
    """Parse `HOST[:PORT]` of `--advertise`. Without a port, return port 0: that of the listener."""
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not text.startswith("[")):
        host, number = text, "0"
    if not host or not number.isdigit() or int(number) > 65535:
        raise click.UsageError(f"--advertise takes HOST[:PORT], not {text!r}")
    return f"{bracketed(host.strip('[]'))}:{number}"


def topic_specs(texts: Sequence[str], brokers: int) -> tuple[TopicSpec, ...]:
    """Parse the values of `--topic`. Raises UsageError, also if two names are equal or differ only in '.' and '_'."""
    from oncelog.cluster.topics import MAX_NEW_PARTITIONS

    found: dict[str, TopicSpec] = {}
    for text in texts:
        spec = _topic_spec(text, brokers)
        folded = spec.name.replace(".", "_")
        if folded in found:
            other = found[folded].name
            if other == spec.name:
                raise click.UsageError(f"--topic {text}: topic {other!r} is named twice")
            raise click.UsageError(
                f"--topic {text}: topic {spec.name!r} collides with {other!r}: names must differ in more than '.' "
                "and '_'"
            )
        found[folded] = spec
    partitions = sum(spec.partitions for spec in found.values())
    if partitions > MAX_NEW_PARTITIONS:
        raise click.UsageError(
            f"--topic names {partitions} partitions, but at most {MAX_NEW_PARTITIONS} are created at once"
        )
    return tuple(found.values())


def _topic_spec(text: str, brokers: int) -> TopicSpec:
    """Parse `NAME[:PARTITIONS[:RF]]`. Raises UsageError."""
    from oncelog.cluster.topics import check_topic_name
    from oncelog.protocol.errors import ProtocolError

    name, *numbers = text.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise click.UsageError(f"--topic takes NAME[:PARTITIONS[:REPLICATION-FACTOR]], not {text!r}")
    partitions, replication_factor = (*map(int, numbers), 1, 1)[:2]
    try:
        check_topic_name(name)
    except ProtocolError as error:
        raise click.UsageError(f"--topic {text!r}: {error}") from error
    if replication_factor > brokers:
        raise click.UsageError(
            f"--topic {text}: replication factor {replication_factor} needs {replication_factor} brokers, but "
            f"--brokers is {brokers}"
        )
    return TopicSpec(name, partitions, replication_factor)
