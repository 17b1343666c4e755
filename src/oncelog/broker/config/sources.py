"""Settings from the environment and the command line, before they are checked."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.ignored_configs import NOT_SETTINGS


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in `KAFKA_*` variables. As in Kafka's images, `_` is `.`, `__` is `_`, and `___` is `-`."""
    found = {}
    for variable in sorted(environment):
        if variable.startswith("KAFKA_") and variable not in NOT_SETTINGS:
            name = variable[len("KAFKA_") :].lower()
            name = name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
            found[name] = environment[variable]
    return found


def set_option(text: str) -> tuple[str, str]:
    """Return the key and the value in `KEY=VALUE`, the form of the option `--set`. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set takes KEY=VALUE, not {text!r}")
    return name.strip(), value.strip()
