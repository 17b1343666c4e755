"""Read the sources of a listener's security: the lines of login modules, and TLS files. Failures are ConfigErrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog.broker.config.errors import ConfigError
from oncelog.net.credentials import Secret, parse_jaas

if TYPE_CHECKING:
    import logging

    from oncelog.net.tls_files import Loadable, ReloadedTls

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The SASL mechanisms that a broker supports."""


def jaas_options(
    listener: str, mechanism: str, lines: Mapping[str, Secret], missing: str
) -> tuple[str, dict[str, str]]:
    """Return the setting with a mechanism's line, by its name, and the options in the line. Raises ConfigError.

    `lines` has the lines by the mechanism in lower case. `missing` is the error without one, with the setting as {key}.
    """
    key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    line = lines.get(mechanism.lower())
    if line is None:
        raise ConfigError(missing.format(key=key))
    try:
        return key, parse_jaas(line.value, mechanism)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def load_tls(files: Loadable, where: str, logger: logging.Logger) -> ReloadedTls:
    """Load TLS files, which are loaded again when they change. Raises ConfigError. `where` says what needs them."""
    from oncelog.net.tls_files import ReloadedTls, TlsFileError

    try:
        return ReloadedTls(files, logger)
    except TlsFileError as error:
        raise ConfigError(f"{where}: {error}") from None
