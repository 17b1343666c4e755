"""Read the options of the clients: Kafka's names with `_` for `.`, or a mapping with the dotted names.

`COMMON` has the options of all clients; `producer.options` and `consumer.options` add theirs. An unknown name is an
error that suggests the nearest known name. Options that contradict each other are an error that names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from oncelog.client.option_readers import Option, anything, integer, text
from oncelog.client.other_options import advice_for_unsupported, alias_of
from oncelog.client.security.options import SECURITY, security_of
from oncelog.errors import ConfigError
from oncelog.net.security import Security

MAX_INT = 2**31 - 1

SERIALIZATION = frozenset({"key_deserializer", "key_serializer", "value_deserializer", "value_serializer"})
_OTHER_CLIENT = "producers have key_serializer and value_serializer, consumers key_deserializer and value_deserializer"

COMMON: dict[str, Option] = {
    "bootstrap_servers": Option(
        None,
        anything,
        (
            "Brokers to connect to first, as `host:port,host:port` or a sequence of `host:port`. The first argument of "
            "the constructor."
        ),
    ),
    "client_id": Option(
        "oncelog", text, "Name of this client in requests. The broker shows it in group descriptions and logs."
    ),
    "request_timeout_ms": Option(
        30_000,
        integer(1, MAX_INT),
        "How long to wait for the response to one request before the client retries it or fails.",
    ),
    "default_api_timeout_ms": Option(
        60_000, integer(1, MAX_INT), "How long a call retries before it raises, unless the call has a `timeout`."
    ),
    "socket_connection_setup_timeout_ms": Option(
        10_000, integer(1, MAX_INT), "How long one attempt to connect to a broker may take."
    ),
    "retry_backoff_ms": Option(
        100, integer(1, MAX_INT), "Pause before the first retry of a request. It doubles with each retry."
    ),
    "retry_backoff_max_ms": Option(1_000, integer(1, MAX_INT), "Longest pause between two retries of a request."),
    "metadata_max_age_ms": Option(
        300_000, integer(0), "Refresh topics, partitions and leaders after this time, even without an error."
    ),
    "reconnect_backoff_ms": Option(
        50, integer(0), "Pause before the client connects to the same broker again. It doubles with each failure."
    ),
    "reconnect_backoff_max_ms": Option(
        1_000,
        integer(0),
        (
            "Longest pause between two attempts to connect to the same broker. If only `reconnect_backoff_ms` is set, "
            "that value."
        ),
    ),
    "connections_max_idle_ms": Option(
        540_000, integer(-1), "Close connections that were not used for this time; -1 keeps them open."
    ),
    **SECURITY,
}


def _callback(value: Any) -> Any:
    if value is not None and not callable(value):
        raise ValueError("it must be a function that takes the metrics")
    return value


STATISTICS: dict[str, Option] = {
    "on_statistics": Option(
        None,
        _callback,
        (
            "Function that gets the result of `metrics()` every `statistics_interval_ms`, in the client's thread. It "
            "must not block. `stats_cb` is the same option; the argument is not librdkafka's JSON."
        ),
    ),
    "statistics_interval_ms": Option(
        0, integer(0, MAX_INT), "Time between two calls of `on_statistics`; 0 if there is none."
    ),
}
"""Options that producers and consumers have, and Admin does not."""
WITH_STATISTICS = COMMON | STATISTICS


def check_statistics(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if only one of the options of STATISTICS is set."""
    interval, callback = options["statistics_interval_ms"], options["on_statistics"]
    if callback is not None and not interval:
        raise ConfigError("on_statistics needs statistics_interval_ms, but statistics_interval_ms = 0")
    if callback is None and interval:
        raise ConfigError(f"statistics_interval_ms = {interval} needs on_statistics, but on_statistics is not set")


def read_options(
    known: Mapping[str, Option], mapping: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return (every option with its value, the names that the user set). `given` overrides `mapping`.

    Raises ConfigError. An address of None counts as missing, because each constructor has a parameter for the
    addresses.
    """
    if mapping is not None and not isinstance(mapping, Mapping):
        raise ConfigError(
            f"config = {mapping!r}: it must be a mapping of options, as in {{'client.id': 'etl'}}, not "
            f"{type(mapping).__name__}; pass topics to send(), subscribe() or assign()"
        )
    options = {name: option.default for name, option in known.items()}
    explicit: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for source in (mapping or {}, given):
        for spelled, value in source.items():
            spelling = str(spelled).replace(".", "_")
            alias = alias_of(spelling)
            name = option_name(str(spelled))
            if name == "bootstrap_servers" and value is None:
                continue
            if name not in known:
                if sentence := advice_for_unsupported(name):
                    raise ConfigError(f"{spelled}: {sentence}")
                if name in SERIALIZATION:
                    raise ConfigError(f"{spelled}: {_OTHER_CLIENT}")
                if alias is not None:
                    raise ConfigError(
                        f"{spelled}: this client has no option {name}, which {alias.source} calls {spelled}"
                    )
                near = get_close_matches(name, known, n=1)
                near = [each.replace("_", ".") if "." in str(spelled) else each for each in near]
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"unknown option {spelled!r}{hint}")
            try:
                options[name] = known[name].read(value)
            except (ValueError, TypeError) as error:
                shown = "" if known[name].secret else f" = {value!r}"
                raise ConfigError(f"{spelled}{shown}: {error}") from None
            if spellings.setdefault(name, spelling) != spelling:
                raise ConfigError(f"{explicit[name]} and {spelled} are two names of one option; set one of them")
            explicit[name] = str(spelled)
    if "reconnect_backoff_ms" in explicit and "reconnect_backoff_max_ms" not in explicit:
        options["reconnect_backoff_max_ms"] = options["reconnect_backoff_ms"]  # as in Kafka's clients
    if isinstance(options["bootstrap_servers"], Mapping):
        raise ConfigError("pass a mapping of options by name: config={'bootstrap.servers': 'HOST:PORT', ...}")
    if not options["bootstrap_servers"]:
        raise ConfigError("bootstrap_servers is missing; give HOST:PORT of one or more brokers")
    return options, frozenset(explicit)


def read_security(given: Mapping[str, Any]) -> Security:
    """Return the TLS settings and the login of these options, whose names have dots or `_`. Raises ConfigError."""
    known = {**SECURITY, "bootstrap_servers": COMMON["bootstrap_servers"]}
    return security_of(read_options(known, None, {"bootstrap_servers": "any", **given})[0])


def option_name(spelled: str) -> str:
    """Return the name here of an option, which may have dots or be another client's name."""
    underscored = spelled.replace(".", "_")
    alias = alias_of(underscored)
    return underscored if alias is None else alias.name


def is_security(name: str) -> bool:
    """Return whether an option, with dots or `_`, belongs to TLS or the login."""
    return option_name(name) in SECURITY


def cluster_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `ClusterClient` for a client's options."""
    return {
        "client_id": options["client_id"],
        "request_timeout_ms": options["request_timeout_ms"],
        "api_timeout_ms": options["default_api_timeout_ms"],
        "connect_timeout_ms": options["socket_connection_setup_timeout_ms"],
        "retry_backoff_ms": options["retry_backoff_ms"],
        "retry_backoff_max_ms": options["retry_backoff_max_ms"],
        "metadata_max_age_ms": options["metadata_max_age_ms"],
        "reconnect_backoff_ms": options["reconnect_backoff_ms"],
        "reconnect_backoff_max_ms": options["reconnect_backoff_max_ms"],
        "connections_max_idle_ms": options["connections_max_idle_ms"],
        "security": security_of(options),
    }
