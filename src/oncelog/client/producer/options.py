"""The options of a producer, and the conditions among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncelog.client.option_readers import Option, boolean, integer, optional_text
from oncelog.client.options import MAX_INT, WITH_STATISTICS, check_statistics, read_options
from oncelog.client.serialization.functions import serializer
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


def _partitioner(value: Any) -> Any:
    if value in ("consistent", "fnv1a", "fnv1a_random", "murmur2_random", "random"):
        if value == "murmur2_random":  # librdkafka's name of the default of Java's client
            return "default"
        raise ValueError(
            "it is librdkafka's, and sends keys to other partitions than Java's client; use default, "
            "consistent_random (librdkafka's default), or a callable (topic, key, value, partitions) -> partition"
        )
    return value


def _level(low: int, high: int) -> Callable[[Any], int | None]:
    return lambda value: None if value is None else integer(low, high)(value)


PRODUCER: dict[str, Option] = WITH_STATISTICS | {
    "acks": Option(
        -1,
        _acks,
        (
            "Replicas that must have a record before the broker acknowledges it: `all`, 1 (the leader) or 0 (no "
            "response). Idempotence needs `all`."
        ),
    ),
    "allow_auto_create_topics": Option(
        True, boolean, "Whether to create a topic that does not exist. The broker must also allow it."
    ),
    "batch_size": Option(16_384, integer(0, MAX_INT), "Send a batch of one partition when it has this many bytes."),
    "buffer_memory": Option(
        33_554_432,
        integer(0),
        "Bytes of records that are not acknowledged yet. If the buffer is full, `send` waits up to `max_block_ms`.",
    ),
    "compression_gzip_level": Option(
        None, _level(-1, 9), "Level if `compression_type` is gzip: -1 to 9; -1 is zlib's default."
    ),
    "compression_level": Option(None, _level(-131_072, 22), "Level of the codec that `compression_type` names."),
    "compression_lz4_level": Option(None, _level(1, 17), "Level if `compression_type` is lz4: 1 to 17."),
    "compression_type": Option(Codec.NONE, _codec, "Codec of batches: none, gzip, snappy, lz4 or zstd."),
    "compression_zstd_level": Option(None, _level(-131_072, 22), "Level if `compression_type` is zstd: -131072 to 22."),
    "delivery_timeout_ms": Option(
        120_000,
        integer(1, MAX_INT),
        (
            "How long after `send` a record is retried before its future fails. At least `linger_ms` + "
            "`request_timeout_ms`."
        ),
    ),
    "enable_idempotence": Option(True, boolean, "Whether retries can neither duplicate nor reorder records."),
    "keep_prepared_transaction": Option(
        False,
        boolean,
        (
            "oncelog only: whether a new producer keeps the open transaction of the former producer, for "
            "`complete_transaction`, instead of aborting it (KIP-939)."
        ),
    ),
    "key_serializer": Option(
        None, serializer, "Function `(data, context) -> bytes` for keys. Ready ones are in `oncelog.serialization`."
    ),
    "linger_ms": Option(5, integer(0, MAX_INT), "How long a batch waits for more records before it is sent."),
    "max_block_ms": Option(
        60_000,
        integer(0),
        (
            "How long `send` may wait for memory and for the partitions of a topic, and how long the calls that begin, "
            "commit and abort a transaction may wait."
        ),
    ),
    "max_in_flight_requests_per_connection": Option(
        5,
        integer(1, MAX_INT),
        "Maximum number of Produce requests in flight per connection. Idempotence needs 5 or less.",
    ),
    "max_request_size": Option(
        1_048_576, integer(0, MAX_INT), "Largest request, and therefore largest record, in bytes."
    ),
    "metadata_max_idle_ms": Option(
        300_000, integer(5_000), "Forget the partitions of a topic that got no record for this time."
    ),
    "partitioner": Option(
        "default",
        _partitioner,
        (
            "How to choose the partition if `send` names none. `default` (or `murmur2`): by the key's hash, as Java's "
            "client does, or in batches if there is no key. `consistent_random`: by CRC-32 of the key, as librdkafka's "
            "default does. `round_robin`, or a callable (topic, key, value, partitions) -> partition."
        ),
    ),
    "partitioner_adaptive_partitioning_enable": Option(
        True, boolean, "Whether records without a key go more often to partitions with short queues."
    ),
    "partitioner_availability_timeout_ms": Option(
        0,
        integer(0),
        "Records without a key skip a broker that has accepted no batch for this time; 0 turns this off.",
    ),
    "partitioner_ignore_keys": Option(False, boolean, "Whether the default partitioner ignores the keys of records."),
    "retries": Option(
        MAX_INT,
        integer(0, MAX_INT),
        "How often a batch is sent again after an error. `delivery_timeout_ms` usually ends the retries first.",
    ),
    "transaction_timeout_ms": Option(
        60_000,
        integer(1, MAX_INT),
        (
            "The coordinator aborts a transaction that is open for longer. The broker's `transaction.max.timeout.ms` "
            "is the limit."
        ),
    ),
    "transaction_two_phase_commit_enable": Option(
        False,
        boolean,
        (
            "Whether transactions have no timeout, so that another system may decide later (KIP-939). Needs "
            "`transaction.two.phase.commit.enable` in the brokers. Apache Kafka 4.3 does not serve KIP-939."
        ),
    ),
    "transactional_id": Option(
        None,
        optional_text,
        (
            "Name of this producer across restarts. It enables transactions, and fences the previous producer with the "
            "same name."
        ),
    ),
    "value_serializer": Option(None, serializer, "The same for values."),
}


def producer_options(mapping: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a producer's options, checked against each other. Raises ConfigError that names both sides of a conflict.

    As in Kafka, idempotence is on by default. acks=1 or retries=0 turns it off. It is an error if enable_idempotence or
    transactional_id is set as well. As in Kafka since 4.0, too many requests in flight are an error in any case, unless
    enable_idempotence is false.
    """
    options, explicit = read_options(PRODUCER, mapping, given)
    check_statistics(options)
    conflicts = {
        "acks": options["acks"] != -1,
        "retries": options["retries"] == 0,
        "max_in_flight_requests_per_connection": options["max_in_flight_requests_per_connection"] > 5,
    }
    needs = {"acks": "all", "retries": "more than 0", "max_in_flight_requests_per_connection": "5 or less"}
    on = options["enable_idempotence"]
    demanded = {
        "enable_idempotence": on and "enable_idempotence" in explicit,
        "transactional_id": options["transactional_id"] is not None,
    }
    for option, conflict in conflicts.items():
        for demand, active in demanded.items():
            if conflict and active:
                value = "all" if options[option] == -1 else options[option]
                raise ConfigError(f"{demand} needs {option} = {needs[option]}, but {option} = {value}")
    if options["transactional_id"] is not None and not options["enable_idempotence"]:
        raise ConfigError("transactional_id needs enable_idempotence = true, but enable_idempotence = false")
    if on and conflicts["max_in_flight_requests_per_connection"]:
        raise ConfigError(
            "enable_idempotence needs max_in_flight_requests_per_connection = 5 or less, but "
            f"max_in_flight_requests_per_connection = {options['max_in_flight_requests_per_connection']}; "
            "enable_idempotence is true by default, and without it, retries may duplicate and reorder records"
        )
    if any(conflicts.values()):
        options["enable_idempotence"] = False
    for option in ("transaction_two_phase_commit_enable", "keep_prepared_transaction"):
        if options[option] and options["transactional_id"] is None:
            raise ConfigError(f"{option} needs transactional_id, which is not set")
    if options["transaction_two_phase_commit_enable"] and "transaction_timeout_ms" in explicit:
        raise ConfigError(
            "transaction_two_phase_commit_enable = true excludes transaction_timeout_ms, because its transactions have "
            "no timeout; omit transaction_timeout_ms"
        )
    least = options["linger_ms"] + options["request_timeout_ms"]
    if options["delivery_timeout_ms"] < least:
        if "delivery_timeout_ms" in explicit:
            raise ConfigError(
                f"delivery_timeout_ms = {options['delivery_timeout_ms']} must be at least "
                f"linger_ms + request_timeout_ms = {least}; raise it, or lower request_timeout_ms"
            )
        options["delivery_timeout_ms"] = least
    _choose_level(options, explicit)
    if options["partitioner_ignore_keys"] and options["partitioner"] not in ("default", "murmur2"):
        raise ConfigError(
            f"partitioner_ignore_keys needs partitioner = default, but partitioner = {options['partitioner']!r}"
        )
    return options


def _choose_level(options: dict[str, Any], explicit: frozenset[str]) -> None:
    """Set `compression_level`, which applies to any codec, from Kafka's option for the codec in use."""
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
            f"compression_level = {options['compression_level']} contradicts {named} = {options[named]}; give only one"
        )
    options["compression_level"] = options[named]
