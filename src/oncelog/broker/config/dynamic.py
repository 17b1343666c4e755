"""A broker's settings that change while it runs, and the layers that each value comes from (KIP-226).

Each layer overrides the ones before it: the defaults, the settings that the broker was started with, the dynamic
settings of all brokers, the dynamic settings of this broker.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oncelog.broker.config.connection_limits import (
    DYNAMIC_LIMITS,
    check_changed_limit,
    check_limits,
    limit_of,
)
from oncelog.broker.config.dynamic_listeners import base_name, check_names, check_values, with_listener_configs
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.setting_types import check_value
from oncelog.broker.config.settings import BrokerConfig, keys
from oncelog.broker.config.topics import TOPIC_KEYS, plain_text
from oncelog.protocol.errors import ErrorCode, ProtocolError

DYNAMIC = frozenset(
    {
        *(key.broker_key for key in TOPIC_KEYS.values()),
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
        *DYNAMIC_LIMITS,
        "group.consumer.assignment.interval.ms",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    }
)
"""The settings that may change while a broker runs: those in Kafka's `DynamicBrokerConfig` that are here, too."""


class DynamicConfig:
    """The layers, and the settings that result from them."""

    def __init__(self, static: BrokerConfig) -> None:
        """`static` are the settings that the broker was started with."""
        self.static = static
        self.of_all: Mapping[str, str] = {}
        self.own: Mapping[str, str] = {}
        self.current = static
        """The settings that apply now."""

    def replace_dynamic(self, *, of_all: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
        """Replace the dynamic layers by the ones in the tree. Return the names of the settings that cannot be used.

        Unusable settings are skipped, because another version may have written them.
        """
        self.of_all, self.own = _usable(of_all, of_all=True), _usable(own)
        try:
            self.current = self.resulting(self.of_all, self.own)
        except ConfigError:  # settings of a listener contradict each other
            self.own = {name: text for name, text in self.own.items() if base_name(name) is None}
            self.current = self.resulting(self.of_all, self.own)
        return sorted({*of_all, *own} - {*self.of_all, *self.own})

    def of_listeners(self) -> dict[str, str]:
        """Return the limits that listeners have of their own, by Kafka's names."""
        layers = {**self.static.given, **self.of_all, **self.own}
        return {name: text for name, text in layers.items() if is_listener_limit(name)}

    def resulting(self, of_all: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """Return the settings that layers of checked values would give. Raises ConfigError if they contradict."""
        table = keys()
        changed = {name: text for name, text in {**of_all, **own}.items() if name in table}
        values = {table[name].attribute: check_value(name, text, table[name]) for name, text in changed.items()}
        return with_listener_configs(msgspec.structs.replace(self.static, **values), own)


def is_listener_limit(name: str) -> bool:
    """Return whether it is a limit of one listener, such as `listener.name.NAME.max.connections`."""
    return limit_of(name) != name


def check_broker_limits(config: BrokerConfig) -> None:
    """Check the limits of connections together. Raises INVALID_REQUEST."""
    try:
        check_limits(config.max_connections_per_ip, config.max_connections_per_ip_overrides)
    except ConfigError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, str(error)) from error


def check_broker_configs(configs: Mapping[str, str], *, of_all: bool = False) -> dict[str, str]:
    """Return the settings of one broker, or with `of_all` of all, as plain text. Raises INVALID_REQUEST, as Kafka."""
    try:
        check_names(configs, of_all=of_all)
        of_listeners = check_values(configs)
    except ConfigError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return _check_general({n: text for n, text in configs.items() if n not in of_listeners}) | of_listeners


def _check_general(configs: Mapping[str, str]) -> dict[str, str]:
    """Check settings that are not for a listener."""
    table = keys()
    fixed = sorted(name for name in configs if limit_of(name) not in DYNAMIC)
    if fixed:
        known = [name for name in fixed if name in table]
        message = f"Cannot update these configs dynamically: {fixed}"
        if len(known) < len(fixed):
            strange = ", ".join(name for name in fixed if name not in table)
            message += f"; oncelog has no setting {strange}"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    try:
        values = {name: check_value(name, text, table[limit_of(name)]) for name, text in configs.items()}
        for name, value in values.items():
            check_changed_limit(name, value)
        return {name: plain_text(value) for name, value in values.items()}
    except ConfigError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, str(error)) from error


def check_changed_broker_configs(
    before: Mapping[str, str], after: Mapping[str, str], *, of_all: bool = False
) -> dict[str, str]:
    """Check a change as `check_broker_configs` does. Existing settings that this version cannot use stay."""
    usable = _usable(before, of_all=of_all)
    foreign = {name: text for name, text in before.items() if name not in usable and after.get(name) == text}
    wanted = {name: text for name, text in after.items() if name not in foreign}
    return check_broker_configs(wanted, of_all=of_all) | foreign


def _usable(configs: Mapping[str, str], *, of_all: bool = False) -> dict[str, str]:
    found = {}
    for name, text in configs.items():
        try:
            found.update(check_broker_configs({name: text}, of_all=of_all))
        except ProtocolError:
            continue
    return found
