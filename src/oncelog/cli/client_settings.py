"""Read the settings of a command's client: TLS, login and others, from a properties file and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oncelog import errors
from oncelog.cli.registry_settings import SETTINGS, is_of_registry, keep_registry_settings

CONFIG_VARIABLE = "ONCELOG_COMMAND_CONFIG"
PREFIX = "ONCELOG_"
ATTEMPT_MS = "4000"
"""How long one attempt to connect or to get a token may take. A command waits longer (CONTACT_WAIT_MS), so that its
error has the reason.
"""
_KEY = "oncelog.client_settings"
_PRODUCER = "oncelog.producer_settings"
_BROKERS = "oncelog.brokers"


def client_settings() -> dict[str, str]:
    """Return the settings of the command that runs, by Kafka's names."""
    context = click.get_current_context(silent=True)
    found: dict[str, str] = {} if context is None else context.meta.get(_KEY, {})
    return found


def producer_settings() -> dict[str, str]:
    """Return the settings of the command that runs which only producers have, by Kafka's names."""
    context = click.get_current_context(silent=True)
    found: dict[str, str] = {} if context is None else context.meta.get(_PRODUCER, {})
    return found


def brokers_in_file(context: click.Context) -> str | None:
    """Return bootstrap.servers of the file, if it has them. `read_command_config` has run."""
    found: str | None = context.meta.get(_BROKERS)
    return found


def read_command_config(context: click.Context, _option: click.Parameter, path: str | None) -> None:
    """Keep the settings of the file and the environment for `client_settings`. Raises BadParameter."""
    from oncelog.client.connections.pool import parse_bootstrap
    from oncelog.client.options import COMMON, cluster_options, option_name, read_options
    from oncelog.net.properties import parse_properties

    settings = from_environment(os.environ)
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise click.BadParameter(f"{path}: {why}") from None
        in_file = {name.replace("_", "."): value for name, value in parse_properties(text).items()}
        context.meta[_BROKERS] = in_file.pop("bootstrap.servers", None) or None
        settings = {**settings, **in_file}
    of_registry = {name: settings.pop(name) for name in list(settings) if is_of_registry(name)}
    settings.setdefault("socket.connection.setup.timeout.ms", ATTEMPT_MS)
    if "OAUTHBEARER" in (settings.get("sasl.mechanism"), settings.get("sasl.mechanisms")):
        settings.setdefault("sasl.login.read.timeout.ms", ATTEMPT_MS)
    try:
        keep_registry_settings(context, of_registry)
        parse_bootstrap(brokers_in_file(context) or "any:1")
        of_producers = {name: value for name, value in settings.items() if option_name(name) not in COMMON}
        if of_producers:
            from oncelog.client.producer.options import PRODUCER  # without the imports

            read_options(PRODUCER, of_producers, {"bootstrap_servers": "any"})
        settings = {name: value for name, value in settings.items() if name not in of_producers}
        cluster_options(read_options(COMMON, settings, {"bootstrap_servers": "any"})[0])
    except errors.ConfigError as error:
        raise click.BadParameter(f"{'the environment' if path is None else path}: {error}") from None
    context.meta[_KEY], context.meta[_PRODUCER] = settings, of_producers


def from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of variables such as ONCELOG_SASL_PASSWORD, by Kafka's names."""
    from oncelog.client.options import is_security

    found = {}
    for variable, value in variables.items():
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and (is_security(name) or name.replace("_", ".") in SETTINGS):
            found[name.replace("_", ".")] = value
    return found
