"""Combine a broker's settings: properties file, environment, `--set`, then the flags. The last one wins."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from oncelog.broker.config.listeners import bracketed
from oncelog.broker.config.properties import parse_properties
from oncelog.broker.config.settings import environment_settings, load, set_option
from oncelog.broker.process import TopicSpec

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
    settings.update(set_option(text) for text in assignments)
    return settings


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
    for each in load(settings).client_listeners:
        listeners.append(f"{each.name}://{bracketed(each.host)}:{_next_port(each.port, number)}")
        if each.advertised_host:
            port = _next_port(each.advertised_port, number)
            advertised.append(f"{each.name}://{bracketed(each.advertised_host)}:{port}")
    changed = settings | {"listeners": ",".join(listeners)}
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
