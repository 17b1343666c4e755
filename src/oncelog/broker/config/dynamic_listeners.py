"""The settings of one listener that may change while a broker runs: its certificates, keys and authorities.

Kafka accepts and stores others, such as `ssl.client.auth` and `sasl.jaas.config`, but they never take effect, not even
after a restart (tried on 4.3.1). An administrator would believe that clients need a certificate, so they are refused.
Source: Kafka's `SslConfigs.RECONFIGURABLE_CONFIGS`, `DynamicBrokerConfig.validateConfigs`, `DynamicListenerConfig`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from oncelog.broker.config.connection_limits import limits_a_listener
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listener_keys import listener_key
from oncelog.broker.config.listener_security import with_tls_values
from oncelog.broker.config.setting_types import check_value
from oncelog.broker.config.settings import BrokerConfig, is_secret, keys

RELOADABLE = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""The settings, without the prefix of a listener. Without it, they cannot change."""


def base_name(name: str) -> str | None:
    """Return the setting without the prefix of a listener. None if it has no such prefix, and for limits."""
    found = listener_key(name)
    if found is None or found.listener is None or limits_a_listener(found):
        return None
    return name.split(".", 3)[3]


def check_names(names: Collection[str], *, of_all: bool) -> None:
    """Raise ConfigError if a setting is for a listener that is not named, or cannot change.

    `of_all` says that the settings are for all brokers. As in Kafka, those of a listener are for one broker only.
    """
    general = sorted(RELOADABLE.intersection(names))
    if general:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{general}; for example listener.name.NAME.{general[0]}"
        )
    of_listeners = {name: base_name(name) for name in sorted(names) if base_name(name) is not None}
    fixed = [name for name, base in of_listeners.items() if base not in RELOADABLE]
    if fixed:
        raise ConfigError(
            f"Configs cannot be updated dynamically for existing listeners: {fixed}; set them in the broker's "
            "properties, and restart it"
        )
    if of_all and of_listeners:
        raise ConfigError(
            f"Cannot update these configs at default cluster level, broker id must be specified: {sorted(of_listeners)}"
        )


def check_values(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of listeners among `configs`, as they were written. Raises ConfigError for a bad value."""
    found = {}
    for name, text in configs.items():
        base = base_name(name)
        if base is not None:
            check_value(name, text, keys()[base])
            found[name] = text
    return found


def listeners_of(config: BrokerConfig, names: Collection[str]) -> list[str]:
    """Return the listeners of a broker to which settings apply."""
    prefixes = {name.split(".")[2] for name in names if base_name(name) is not None}
    return [each.name for each in config.client_listeners if each.name.lower() in prefixes]


def with_listener_configs(config: BrokerConfig, own: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration with this broker's settings of listeners. It loads no file.

    Raises ConfigError if a listener's settings contradict each other.
    """
    changed = {}
    for name in listeners_of(config, own):
        security = config.security.get(name)
        if security is None or security.tls is None:
            continue
        prefix = f"listener.name.{name.lower()}."
        values = {}
        for key, text in own.items():
            if key.startswith(prefix) and base_name(key) is not None:
                spec = keys()[key.removeprefix(prefix)]
                values[spec.attribute] = check_value(key, text, spec)
        changed[name] = with_tls_values(name, security, values)
    return msgspec.structs.replace(config, security={**config.security, **changed}) if changed else config


def without_secrets(configs: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a log line: those that are secret have no value."""
    return {name: "[hidden]" if is_secret(name, keys()) else text for name, text in configs.items()}
