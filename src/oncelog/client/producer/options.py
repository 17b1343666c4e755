"""A producer's options, and what they demand of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncelog.client.options import COMMON, MAX_INT, Option, anything, boolean, integer, optional_text, read_options
from oncelog.errors import ConfigError
from oncelog.protocol.compression import Codec


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
    return lambda value: None if value is None else integer(low, high)(value)


def _not_two_phase(value: Any) -> bool:
    if boolean(value):
        raise ValueError(
            "two-phase commit (KIP-939) is served by no broker yet: prepare() and Transaction.resume() carry a "
            "transaction over the end of its process, for as long as transaction_timeout_ms"
        )
    return False


PRODUCER: dict[str, Option] = COMMON | {
    "acks": Option(-1, _acks),
    "allow_auto_create_topics": Option(True, boolean),
    "batch_size": Option(16_384, integer(0, MAX_INT)),
    "buffer_memory": Option(33_554_432, integer(0)),
    "compression_gzip_level": Option(None, _level(-1, 9)),
    "compression_level": Option(None, _level(-131_072, 22)),
    "compression_lz4_level": Option(None, _level(1, 17)),
    "compression_type": Option(Codec.NONE, _codec),
    "compression_zstd_level": Option(None, _level(-131_072, 22)),
    "delivery_timeout_ms": Option(120_000, integer(1, MAX_INT)),
    "enable_idempotence": Option(True, boolean),
    "linger_ms": Option(5, integer(0, MAX_INT)),
    "max_block_ms": Option(60_000, integer(0)),
    "max_in_flight_requests_per_connection": Option(5, integer(1, MAX_INT)),
    "max_request_size": Option(1_048_576, integer(0, MAX_INT)),
    "metadata_max_idle_ms": Option(300_000, integer(5_000)),
    "partitioner": Option("default", anything),
    "partitioner_adaptive_partitioning_enable": Option(True, boolean),
    "partitioner_availability_timeout_ms": Option(0, integer(0)),
    "partitioner_ignore_keys": Option(False, boolean),
    "retries": Option(MAX_INT, integer(0, MAX_INT)),
    "transaction_timeout_ms": Option(60_000, integer(1, MAX_INT)),
    "transaction_two_phase_commit_enable": Option(False, _not_two_phase),
    "transactional_id": Option(None, optional_text),
}


def producer_options(mapping: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
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
