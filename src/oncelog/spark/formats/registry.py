"""The options for the schema registry, and its client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.option_tables import DEFAULT_REGISTRY_MS, SHARED_OPTIONS
from oncelog.spark.options import Options

if TYPE_CHECKING:
    from oncelog.client.serialization.registry import SchemaRegistry

URL: Final = "schemaRegistryUrl"
REGISTRY_OPTIONS: Final = tuple(name for name in SHARED_OPTIONS if name.startswith("schemaRegistry"))


@dataclass(frozen=True)
class RegistryOptions:
    """How to reach the schema registry."""

    url: str
    username: str | None
    password: str | None
    token: str | None
    ca_file: str | None
    timeout_ms: int

    def connect(self) -> SchemaRegistry:
        """Return a client of the registry. Raises MisuseError."""
        from oncelog.client.serialization.registry import SchemaRegistry
        from oncelog.errors import ConfigError

        try:
            context = None if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise MisuseError(f"option schemaRegistryCaFile={self.ca_file!r}: {error}") from None
        try:
            return SchemaRegistry(
                self.url,
                username=self.username,
                password=self.password,
                token=self.token,
                ssl_context=context,
                timeout=self.timeout_ms / 1000,
            )
        except ConfigError as error:
            raise MisuseError(f"options schemaRegistry...: {error}") from None


def registry_options(options: Options) -> RegistryOptions | None:
    """Return how to reach the registry, or None without the option schemaRegistryUrl. Raises MisuseError."""
    url = options.text(URL)
    if not url:
        for name in REGISTRY_OPTIONS:
            if name != URL and options.text(name) is not None:
                raise MisuseError(f"option {name} needs the option {URL}")
        return None
    return RegistryOptions(
        url,
        username=options.text("schemaRegistryUsername"),
        password=options.text("schemaRegistryPassword"),
        token=options.text("schemaRegistryToken"),
        ca_file=options.text("schemaRegistryCaFile"),
        timeout_ms=options.number("schemaRegistryTimeoutMs", DEFAULT_REGISTRY_MS) or DEFAULT_REGISTRY_MS,
    )
