"""`oncelog up --kafka-image`: read the environment and the mounted files as Apache Kafka's container image does.

The variables `KAFKA_...` are settings in any case. The image's scripts derive some of them from others, and so does
this module. Source: `docker/resources/common-scripts/configure` and `kafka.docker.KafkaDockerWrapper` of Kafka 4.3.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from oncelog.broker.config.sources import environment_settings
from oncelog.net.properties import parse_properties

MOUNTED = "/mnt/shared/config/server.properties"
SECRETS = "/etc/kafka/secrets"
DATA = "/var/lib/kafka/data"
IDENTITY = "meta.properties"
"""The file that makes a directory a log directory."""
LISTENERS, ADVERTISED = "PLAINTEXT://:9092", "PLAINTEXT://localhost:9092"
"""What the image's own server.properties says, without its controller. They count if nothing names a listener."""

_HOST = re.compile(r"://(?:\[[^]]*\]|[^:,]*):")
_DERIVED_FROM = (
    *("KAFKA_SSL_KEYSTORE_FILENAME", "KAFKA_SSL_KEYSTORE_CREDENTIALS", "KAFKA_SSL_KEY_CREDENTIALS"),
    *("KAFKA_SSL_TRUSTSTORE_FILENAME", "KAFKA_SSL_TRUSTSTORE_CREDENTIALS"),
)
"""Variables of the scripts only. As settings, they would be unknown."""
_WANTS_CERTIFICATES = ("required", "requested")
_LEVELS = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")


class ImageError(Exception):
    """The environment cannot be used. The message is one sentence."""


class Prepared(NamedTuple):
    """The environment for `oncelog up`, and the directory for its data."""

    environment: dict[str, str]
    data: str


def prepare(environment: Mapping[str, str], mounted: Mapping[str, str], read: Callable[[str], str]) -> Prepared:
    """Return what the image's scripts would make of an environment. Raises ImageError.

    `mounted` are the settings in MOUNTED. `read` returns the content of a file, and raises OSError.
    """
    found = dict(environment)
    _refuse_other_nodes(found)
    if not found.get("KAFKA_LISTENERS") and found.get("KAFKA_ADVERTISED_LISTENERS"):
        found["KAFKA_LISTENERS"] = _HOST.sub("://0.0.0.0:", found["KAFKA_ADVERTISED_LISTENERS"])
    if "SSL://" in found.get("KAFKA_ADVERTISED_LISTENERS", ""):
        _use_key_files(found, read)
    for variable in _DERIVED_FROM:
        found.pop(variable, None)
    settings = {**mounted, **environment_settings(found)}
    if not settings.get("listeners"):
        found["KAFKA_LISTENERS"] = LISTENERS
        if not settings.get("advertised.listeners"):
            found["KAFKA_ADVERTISED_LISTENERS"] = ADVERTISED
    level = found.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").upper()
    if level in _LEVELS:
        found.setdefault("ONCELOG_LOG_LEVEL", level)
    data = _data(settings)
    for variable in ("KAFKA_LOG_DIRS", "KAFKA_LOG_DIR"):
        found.pop(variable, None)
    return Prepared(found, data)


def _refuse_other_nodes(environment: Mapping[str, str]) -> None:
    """Raise ImageError if this container would be one node of several, or needs a file that only Java reads."""
    roles = environment.get("KAFKA_PROCESS_ROLES", "broker")
    if "broker" not in re.split(r"\s*,\s*", roles.strip()):
        raise ImageError(
            f"KAFKA_PROCESS_ROLES={roles} makes this container a controller without a broker; oncelog's brokers need "
            "no other controller. Remove the container"
        )
    for variable in ("KAFKA_CONTROLLER_QUORUM_VOTERS", "KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS"):
        others = environment.get(variable, "")
        if "," in others:
            raise ImageError(
                f"{variable}={others} names several nodes, but a container of oncelog is a whole cluster. Run one "
                "container with --brokers 3, and remove the variable"
            )
    if "java.security.auth.login.config" in environment.get("KAFKA_OPTS", ""):
        raise ImageError(
            "KAFKA_OPTS names a JAAS file, which only Java reads. Set "
            "KAFKA_LISTENER_NAME_<LISTENER>_<MECHANISM>_SASL_JAAS_CONFIG instead"
        )


def _use_key_files(environment: dict[str, str], read: Callable[[str], str]) -> None:
    """Set the locations and passwords of the stores from the names of files in SECRETS."""
    _store(environment, "SSL_KEYSTORE", read)
    environment["KAFKA_SSL_KEY_PASSWORD"] = _secret(environment, "SSL_KEY_CREDENTIALS", read)
    client = environment.get("KAFKA_SSL_CLIENT_AUTH", "")
    if any(word in client for word in _WANTS_CERTIFICATES):
        _store(environment, "SSL_TRUSTSTORE", read)


def _store(environment: dict[str, str], name: str, read: Callable[[str], str]) -> None:
    environment[f"KAFKA_{name}_LOCATION"] = _path(environment, f"{name}_FILENAME")
    environment[f"KAFKA_{name}_PASSWORD"] = _secret(environment, f"{name}_CREDENTIALS", read)


def _path(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(f"KAFKA_{name}"):
        raise ImageError(f"KAFKA_{name} environment variable not set, but KAFKA_ADVERTISED_LISTENERS needs TLS")
    return f"{SECRETS}/{environment[f'KAFKA_{name}']}"


def _secret(environment: Mapping[str, str], name: str, read: Callable[[str], str]) -> str:
    """Return the content of a file in SECRETS without the line breaks at its end, as the shell's `$(cat FILE)`."""
    path = _path(environment, name)
    try:
        return read(path).rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(f"KAFKA_{name}: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _data(settings: Mapping[str, str]) -> str:
    """Return the directory in `log.dirs` or `log.dir`, by default DATA."""
    given = settings.get("log.dirs") or settings.get("log.dir") or DATA
    folders = [path.strip() for path in given.split(",") if path.strip()]
    if len(folders) != 1:
        raise ImageError(f"log.dirs={given} names several directories; a container of oncelog has one")
    return folders[0]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _choose(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Change this process's environment, and the defaults of --config and --data. Raises ClickException."""
    if not wanted or context.resilient_parsing:
        return
    exists = os.path.exists(MOUNTED)
    try:
        prepared = prepare(os.environ, parse_properties(_read(MOUNTED)) if exists else {}, _read)
    except ImageError as error:
        raise click.ClickException(str(error)) from error
    if os.path.exists(os.path.join(prepared.data, IDENTITY)):
        raise click.ClickException(
            f"{prepared.data} is itself a log directory, for example of Apache Kafka. A container of oncelog keeps its "
            "logs in directories below. Mount an empty volume there, and import the logs with `oncelog broker`"
        )
    for variable in os.environ.keys() - prepared.environment.keys():
        del os.environ[variable]
    os.environ.update(prepared.environment)
    defaults: dict[str, Any] = {"data": prepared.data}
    context.default_map = {**defaults, "config_file": MOUNTED} if exists else defaults


with_kafka_image = click.option(
    "--kafka-image",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_choose,
    help=f"Read the environment, {MOUNTED} and {SECRETS} as Apache Kafka's container image does.",
)
"""The option of `oncelog up`."""
