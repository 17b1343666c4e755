"""Read the values of options, and check them before any request is sent. `option_tables` describes the options."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from oncelog.client.connections.pool import parse_bootstrap
from oncelog.client.options import is_security, read_security
from oncelog.client.other_options import advice_for_unsupported
from oncelog.errors import AuthenticationError, ConfigError, ConnectionFailedError
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.option_tables import (
    BOOTSTRAP,
    DEFAULT_BOOTSTRAP_MS,
    FIXED,
    FORBIDDEN,
    INLINE_KEYS,
    KAFKA_OPTIONS,
    NO_EFFECT,
    USED_BY,
)
from oncelog.spark.user_errors import in_spark

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster

log = logging.getLogger("oncelog.spark")

MAX_LONG = (1 << 63) - 1
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_DURATION = re.compile(r"([0-9]{1,12})\s*(ms|s|m|min|h|d)?")


class Options:
    """The options of a data source, by case-insensitive name. Raises MisuseError, which names the wrong option."""

    def __init__(self, given: Mapping[str, str], known: Collection[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = known
        self._check_names(given)

    def _check_names(self, given: Mapping[str, str]) -> None:
        kafka = {name.lower() for name in (*KAFKA_OPTIONS, *NO_EFFECT)}
        lower = {name.lower(): name for name in self._known}
        for name in given:
            small = name.lower()
            if given[name].strip().lower() in FIXED.get(small, ()):
                continue
            if small in FORBIDDEN:
                raise MisuseError(f"option {name}: {FORBIDDEN[small]}")
            if small.startswith("kafka."):
                bare = small.removeprefix("kafka.")
                if small not in kafka and not is_security(bare):
                    if bare.startswith(("ssl.", "sasl.")) and (
                        advice := advice_for_unsupported(bare.replace(".", "_"))
                    ):
                        raise MisuseError(f"option {name}: {in_spark(advice)}")
                    near = difflib.get_close_matches(small, kafka, 1)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    raise MisuseError(f"unknown option {name}{hint}")
            elif small not in lower:
                near = difflib.get_close_matches(small, lower, 1, 0.8)
                if near:
                    raise MisuseError(f"unknown option {name}; did you mean {lower[near[0]]}?")

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the value of an option as it was given, or the default."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, why: str) -> str:
        """Return the value of a required option. Raises MisuseError; `why` says what the value is."""
        value = self.text(name)
        if not value:
            raise MisuseError(f"option {name} is missing; set it to {why}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the value of an option that is true or false."""
        value = (self.text(name) or str(default)).strip().lower()
        if value not in ("true", "false"):
            raise MisuseError(f"option {name}={value!r}: it must be true or false")
        return value == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return the value of an option that is one of these words, in any case."""
        value = (self.text(name) or default).strip().lower()
        if value not in allowed:
            raise MisuseError(f"option {name}={self.text(name)!r}: it must be one of {', '.join(allowed)}")
        return value

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_LONG) -> int | None:
        """Return the value of an option that is a whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not _NUMBER.fullmatch(value.strip()) or not least <= int(value) <= most:
            limits = f"of at least {least}" if most == MAX_LONG else f"from {least} to {most}"
            raise MisuseError(f"option {name}={value!r}: it must be a whole number {limits}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration in ms. It is written as in Spark: `15m`, `30s`, `200ms`. Without a unit, it is in ms."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise MisuseError(f"option {name}={value!r}: it must be a duration such as 200ms, 30s, 15m, 2h or 1d")
        return int(match[1]) * UNITS_MS[match[2] or "ms"]

    def json(self, name: str) -> Any:
        """Return the decoded JSON value of an option, or None if the option is not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise MisuseError(f"option {name}={value!r}: it must be JSON ({error})") from None

    def bootstrap_ms(self) -> int:
        """Return the option bootstrapTimeoutMs, in ms."""
        return self.number("bootstrapTimeoutMs", DEFAULT_BOOTSTRAP_MS) or DEFAULT_BOOTSTRAP_MS

    def client(self) -> dict[str, Any]:
        """Return the arguments of the client, with its bootstrap servers."""
        servers = self.required(BOOTSTRAP, "the addresses of brokers, such as host:9092,host:9092")
        try:
            parse_bootstrap(servers)
        except ConfigError:
            raise MisuseError(f"option {BOOTSTRAP}={servers!r}: it must be host:port,host:port") from None
        arguments: dict[str, Any] = {"bootstrap_servers": servers}
        for name, option in KAFKA_OPTIONS.items():
            if not option.argument:
                continue
            value = self.number(name, least=0) if option.default.isdecimal() else self.text(name)
            if value is not None:
                arguments[option.argument] = value
        secured = {name.removeprefix("kafka."): value for name, value in self._given.items() if _is_secured(name)}
        if secured:
            _require_hidden_key(secured)
            try:
                arguments["security"] = read_security(secured)
            except ConfigError as error:
                raise MisuseError(f"option {in_spark(str(error))}") from None
        return arguments


def _require_hidden_key(secured: Mapping[str, str]) -> None:
    """Reject a private key that is not encrypted, because Spark would show it."""
    for name in INLINE_KEYS:
        if (value := secured.get(name)) is not None and "ENCRYPTED" not in value:
            raise MisuseError(
                f"option kafka.{name}: Spark shows this key in plans and in its event log; encrypt it and set "
                "kafka.ssl.key.password, or set kafka.ssl.keystore.location"
            )


def _is_secured(name: str) -> bool:
    return name.startswith("kafka.") and is_security(name.removeprefix("kafka."))


def warn_of_unused(given: Mapping[str, str], *users: str) -> None:
    """Log a warning, once per process, about options without effect on these users, such as "a source"."""
    small = {name.lower() for name in given}
    unused = [name for name, user in USED_BY.items() if name.lower() in small and user not in users]
    if unused:
        warn_once(f"options without effect on {users[0]}: {', '.join(unused)}")


@cache
def warn_once(what: str) -> None:
    """Log a warning, once per process."""
    log.warning("%s", what)


def reach(cluster: BlockingCluster, servers: str, timeout_ms: int) -> None:
    """Wait until a broker answers. Raises SinkError that names the option after `timeout_ms`, or if it rejects us."""
    try:
        cluster.reach(timeout_ms)
    except AuthenticationError as error:
        raise SinkError(f"option {BOOTSTRAP}={servers}: {in_spark(str(error))}") from error
    except ConnectionFailedError as error:
        raise SinkError(
            f"option {BOOTSTRAP}={servers}: {error.message} (bootstrapTimeoutMs = {timeout_ms}). Check the addresses, "
            "and that a broker runs"
        ) from error
