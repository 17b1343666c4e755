"""The options of producer, consumer and admin: Kafka's names with `_` for `.`, checked before anything happens.

A mapping with the dotted names is accepted as well. Unknown names are errors that tell the nearest known one; options
that contradict each other are errors that name both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from oncelog.client.consumer.assignors import ASSIGNORS
from oncelog.client.durations import milliseconds
from oncelog.client.not_options import instead
from oncelog.errors import ConfigError
from oncelog.protocol.compression import Codec

MAX_INT = 2**31 - 1


class Option(NamedTuple):
    """Default and reader of one option; a reader turns what a user gave (a string, too) into the value, or raises."""

    default: Any
    read: Callable[[Any], Any]


def _integer(low: int, high: int = 2**63 - 1) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str | float) or int(value) != float(value):
            raise ValueError("a whole number is needed")
        if not low <= int(value) <= high:
            raise ValueError(f"it must be {low} to {high}")
        return int(value)

    return read


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("true or false is needed")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text is needed")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _choice(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return str(value)

    return read


def _choices(*choices: str) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        found = tuple(item.strip() for item in value.split(",")) if isinstance(value, str) else tuple(value)
        if not found or not set(found) <= set(choices):
            raise ValueError(f"it must be one or more of {', '.join(choices)}")
        return found

    return read


def _reset_policy(value: Any) -> str:
    if isinstance(value, str) and value.startswith("by_duration:"):
        milliseconds(value.removeprefix("by_duration:"))
        return value
    return _choice("earliest", "latest", "none", "by_duration:<ISO 8601 duration>")(value)


def _plaintext(value: Any) -> str:
    if value != "PLAINTEXT":
        raise ValueError(instead("security_"))
    return "PLAINTEXT"


def _possibly_empty_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is needed")
    return value


def _acks(value: Any) -> int:
    found = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(str(value))
    if found is None:
        raise ValueError("it must be all, 1 or 0")
    return found


def _codec(value: Any) -> Codec:
    name = "none" if value is None else str(value)
    if name.upper() not in Codec.__members__:
        raise ValueError(f"it must be one of {', '.join(codec.name.lower() for codec in Codec)}")
    return Codec[name.upper()]


def _level(low: int, high: int) -> Callable[[Any], int | None]:
    return lambda value: None if value is None else _integer(low, high)(value)


def _not_two_phase(value: Any) -> bool:
    if _boolean(value):
        raise ValueError(
            "two-phase commit (KIP-939) is served by no broker yet: prepare() and Transaction.resume() carry a "
            "transaction over the end of its process, for as long as transaction_timeout_ms"
        )
    return False


def _anything(value: Any) -> Any:
    return value


COMMON: dict[str, Option] = {
    "bootstrap_servers": Option(None, _anything),
    "client_id": Option("oncelog", _text),
    "request_timeout_ms": Option(30_000, _integer(1, MAX_INT)),
    "default_api_timeout_ms": Option(60_000, _integer(1, MAX_INT)),
    "socket_connection_setup_timeout_ms": Option(10_000, _integer(1, MAX_INT)),
    "retry_backoff_ms": Option(100, _integer(1, MAX_INT)),
    "retry_backoff_max_ms": Option(1_000, _integer(1, MAX_INT)),
    "metadata_max_age_ms": Option(300_000, _integer(0)),
    "security_protocol": Option("PLAINTEXT", _plaintext),
}
PRODUCER: dict[str, Option] = COMMON | {
    "acks": Option(-1, _acks),
    "allow_auto_create_topics": Option(True, _boolean),
    "batch_size": Option(16_384, _integer(0, MAX_INT)),
    "buffer_memory": Option(33_554_432, _integer(0)),
    "compression_gzip_level": Option(None, _level(-1, 9)),
    "compression_level": Option(None, _level(-131_072, 22)),
    "compression_lz4_level": Option(None, _level(1, 17)),
    "compression_type": Option(Codec.NONE, _codec),
    "compression_zstd_level": Option(None, _level(-131_072, 22)),
    "delivery_timeout_ms": Option(120_000, _integer(1, MAX_INT)),
    "enable_idempotence": Option(True, _boolean),
    "linger_ms": Option(5, _integer(0, MAX_INT)),
    "max_block_ms": Option(60_000, _integer(0)),
    "max_in_flight_requests_per_connection": Option(5, _integer(1, MAX_INT)),
    "max_request_size": Option(1_048_576, _integer(0, MAX_INT)),
    "metadata_max_idle_ms": Option(300_000, _integer(5_000)),
    "partitioner": Option("default", _anything),
    "partitioner_adaptive_partitioning_enable": Option(True, _boolean),
    "partitioner_availability_timeout_ms": Option(0, _integer(0)),
    "partitioner_ignore_keys": Option(False, _boolean),
    "retries": Option(MAX_INT, _integer(0, MAX_INT)),
    "transaction_timeout_ms": Option(60_000, _integer(1, MAX_INT)),
    "transaction_two_phase_commit_enable": Option(False, _not_two_phase),
    "transactional_id": Option(None, _optional_text),
}
CONSUMER: dict[str, Option] = COMMON | {
    "allow_auto_create_topics": Option(False, _boolean),
    "auto_commit_interval_ms": Option(5_000, _integer(0, MAX_INT)),
    "auto_offset_reset": Option("latest", _reset_policy),
    "check_crcs": Option(True, _boolean),
    "client_rack": Option("", _possibly_empty_text),
    # Kafka's default is True, which commits what may not be processed yet: here nothing is lost unasked.
    "enable_auto_commit": Option(False, _boolean),
    "exclude_internal_topics": Option(True, _boolean),
    "fetch_max_bytes": Option(52_428_800, _integer(0, MAX_INT)),
    "fetch_max_wait_ms": Option(500, _integer(0, MAX_INT)),
    "fetch_min_bytes": Option(1, _integer(0, MAX_INT)),
    "group_id": Option(None, _optional_text),
    "group_instance_id": Option(None, _optional_text),
    "group_protocol": Option("classic", _choice("classic", "consumer")),
    "group_remote_assignor": Option(None, _optional_text),
    "heartbeat_interval_ms": Option(3_000, _integer(1, MAX_INT)),
    "isolation_level": Option("read_uncommitted", _choice("read_uncommitted", "read_committed")),
    "max_partition_fetch_bytes": Option(1_048_576, _integer(0, MAX_INT)),
    "max_poll_interval_ms": Option(300_000, _integer(1, MAX_INT)),
    "max_poll_records": Option(500, _integer(1, MAX_INT)),
    # Java's default, and behind it what clients of Python have.
    "partition_assignment_strategy": Option(
        ("range", "cooperative-sticky", "roundrobin"), _choices(*sorted(ASSIGNORS))
    ),
    "session_timeout_ms": Option(45_000, _integer(1, MAX_INT)),
}
CLASSIC_ONLY = ("heartbeat_interval_ms", "partition_assignment_strategy", "session_timeout_ms")
"""What the broker decides where it divides the partitions (KIP-848)."""
ADMIN: dict[str, Option] = COMMON


def read_options(
    known: Mapping[str, Option], mapping: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """(every option with its value, those that the user set). `given` wins over `mapping`; ConfigError.

    Addresses that are None were not given: each client's constructor has a parameter for them.
    """
    options = {name: option.default for name, option in known.items()}
    explicit: dict[str, str] = {}
    for source in (mapping or {}, given):
        for spelled, value in source.items():
            name = str(spelled).replace(".", "_")
            if name == "bootstrap_servers" and value is None:
                continue
            if name not in known:
                if sentence := instead(name):
                    raise ConfigError(f"{spelled}: {sentence}")
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"unknown option {spelled!r}{hint}")
            try:
                options[name] = known[name].read(value)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{spelled} = {value!r}: {error}") from None
            explicit[name] = str(spelled)
    if not options["bootstrap_servers"]:
        raise ConfigError("bootstrap_servers is missing: HOST:PORT of one or more brokers")
    return options, frozenset(explicit)


def producer_options(
    mapping: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """A producer's options, checked against each other; ConfigError names both sides of a conflict.

    Idempotence is on unless an explicit setting rules it out and idempotence itself was left alone, as in Kafka; a
    transactional id needs it.
    """
    options, explicit = read_options(PRODUCER, mapping, given)
    conflicts = {
        "acks": options["acks"] != -1,
        "retries": options["retries"] == 0,
        "max_in_flight_requests_per_connection": options["max_in_flight_requests_per_connection"] > 5,
    }
    needs = {"acks": "all", "retries": "more than 0", "max_in_flight_requests_per_connection": "5 or less"}
    demanded = {
        "enable_idempotence": options["enable_idempotence"] and "enable_idempotence" in explicit,
        "transactional_id": options["transactional_id"] is not None,
    }
    for option, conflict in conflicts.items():
        for demand, active in demanded.items():
            if conflict and active:
                value = "all" if options[option] == -1 else options[option]
                raise ConfigError(f"{demand} needs {option} = {needs[option]}, but {option} = {value}")
    if options["transactional_id"] is not None and not options["enable_idempotence"]:
        raise ConfigError("transactional_id needs enable_idempotence = true, but enable_idempotence = false")
    if any(conflicts.values()):
        options["enable_idempotence"] = False
    least = options["linger_ms"] + options["request_timeout_ms"]
    if options["delivery_timeout_ms"] < least:
        if "delivery_timeout_ms" in explicit:
            raise ConfigError(
                f"delivery_timeout_ms = {options['delivery_timeout_ms']} must be at least "
                f"linger_ms + request_timeout_ms = {least}"
            )
        options["delivery_timeout_ms"] = least
    _choose_level(options, explicit)
    if options["partitioner_ignore_keys"] and options["partitioner"] not in ("default", "murmur2"):
        raise ConfigError(
            f"partitioner_ignore_keys needs partitioner = default, but partitioner = {options['partitioner']!r}"
        )
    return options


def _choose_level(options: dict[str, Any], explicit: frozenset[str]) -> None:
    """`compression_level` is the level of whichever codec is used; Kafka's options name the codec."""
    codec = options["compression_type"]
    named = f"compression_{codec.name.lower()}_level"
    if named not in explicit:
        if "compression_level" in explicit and named in PRODUCER:
            try:
                PRODUCER[named].read(options["compression_level"])
            except ValueError as error:
                raise ConfigError(
                    f"compression_level = {options['compression_level']} for compression_type = {codec.name.lower()}: "
                    f"{error}"
                ) from None
        return
    if "compression_level" in explicit and options["compression_level"] != options[named]:
        raise ConfigError(
            f"compression_level = {options['compression_level']} contradicts {named} = {options[named]}: give one"
        )
    options["compression_level"] = options[named]


def consumer_options(mapping: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer's options, checked against each other; ConfigError."""
    options, explicit = read_options(CONSUMER, mapping, given)
    if options["group_id"] is None:
        for name in ("group_instance_id", "enable_auto_commit"):
            if name in explicit and options[name]:
                raise ConfigError(f"{name} needs group_id, but group_id is not set")
        options["enable_auto_commit"] = False
    modern = options["group_protocol"] == "consumer"
    for name in CLASSIC_ONLY if modern else ("group_remote_assignor",):
        if name in explicit:
            needed = "classic" if modern else "consumer"
            raise ConfigError(
                f"{name} is for group_protocol = {needed}, "
                f"but group_protocol = {options['group_protocol']}"
                + ("; the broker's group settings say it" if modern else "")
            )
    if options["heartbeat_interval_ms"] >= options["session_timeout_ms"]:
        raise ConfigError(
            f"heartbeat_interval_ms = {options['heartbeat_interval_ms']} must be less than "
            f"session_timeout_ms = {options['session_timeout_ms']}"
        )
    return options


def cluster_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `ClusterClient` that follow from a client's options."""
    return {
        "client_id": options["client_id"],
        "request_timeout_ms": options["request_timeout_ms"],
        "api_timeout_ms": options["default_api_timeout_ms"],
        "connect_timeout_ms": options["socket_connection_setup_timeout_ms"],
        "retry_backoff_ms": options["retry_backoff_ms"],
        "retry_backoff_max_ms": options["retry_backoff_max_ms"],
        "metadata_max_age_ms": options["metadata_max_age_ms"],
    }
