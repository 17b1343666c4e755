"""Where a command finds the schema registry, and how it logs in: `--registry`, a properties file, and variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog import errors

if TYPE_CHECKING:
    from oncelog.client.serialization.registry import SchemaRegistry

Command = TypeVar("Command", bound=Callable[..., Any])

PREFIX = "schema.registry."
SETTINGS = {
    "schema.registry.url": "url",
    "schema.registry.username": "username",
    "schema.registry.password": "password",
    "schema.registry.token": "token",
    "schema.registry.ca.file": "ca_file",
    "schema.registry.basic.auth.user.info": "user_info",
}
"""Name in a properties file -> what it sets. The last one is Confluent's name, for USER:PASSWORD."""
_KEY = "oncelog.registry_settings"


def is_of_registry(name: str) -> bool:
    """Return whether a setting with this dotted name is about the registry."""
    return name.startswith(PREFIX)


def keep_registry_settings(context: click.Context, settings: Mapping[str, str]) -> None:
    """Keep the settings for `connect`. Raises ConfigError for an unknown one."""
    for name in settings:
        if name not in SETTINGS:
            raise errors.ConfigError(
                f"{name} is unknown; the settings of the schema registry are {', '.join(SETTINGS)}"
            )
    context.meta[_KEY] = {SETTINGS[name]: value for name, value in settings.items()}


def with_registry(command: Command) -> Command:
    """Add `--registry`."""
    return click.option(
        "--registry",
        metavar="URL",
        help=(
            "Schema registry of Avro values. Default: schema.registry.url in the file of --command-config, or "
            "$ONCELOG_SCHEMA_REGISTRY_URL. The file may also have a login: schema.registry.username and password, or "
            "token, and schema.registry.ca.file."
        ),
    )(command)


def connect(url: str | None) -> SchemaRegistry:
    """Return a client of the registry at `url`, or of the settings. Raises UsageError if neither names one."""
    found = found_registry(url)
    if found is None:
        raise click.UsageError(
            "Avro needs a schema registry: name it with --registry URL, with schema.registry.url in the file of "
            "--command-config, or with $ONCELOG_SCHEMA_REGISTRY_URL"
        )
    return found


def found_registry(url: str | None) -> SchemaRegistry | None:
    """Return a client of the registry at `url`, or of the settings, or None if neither names one."""
    import ssl

    from oncelog.client.serialization.registry import SchemaRegistry

    context = click.get_current_context(silent=True)
    given: dict[str, str] = {} if context is None else dict(context.meta.get(_KEY, {}))
    where = url or given.get("url")
    if not where:
        return None
    username, password = given.get("username"), given.get("password")
    if "user_info" in given:
        username, _, password = given["user_info"].partition(":")
    try:
        trusted = ssl.create_default_context(cafile=given["ca_file"]) if "ca_file" in given else None
    except (OSError, ssl.SSLError) as error:
        raise click.UsageError(f"schema.registry.ca.file={given['ca_file']}: {error}") from None
    try:
        return SchemaRegistry(
            where, username=username, password=password, token=given.get("token"), ssl_context=trusted
        )
    except errors.ConfigError as error:
        raise click.UsageError(f"schema registry: {error}") from None
