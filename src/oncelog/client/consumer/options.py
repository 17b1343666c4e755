"""The options of a consumer, and the conditions among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncelog.client.consumer.assignors import ASSIGNORS
from oncelog.client.option_readers import Option, boolean, integer, optional_text
from oncelog.client.options import MAX_INT, WITH_STATISTICS, check_statistics, read_options
from oncelog.client.records import milliseconds
from oncelog.client.serialization.functions import deserializer
from oncelog.errors import ConfigError


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


def _possibly_empty_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be a string")
    return value


CONSUMER: dict[str, Option] = WITH_STATISTICS | {
    "allow_auto_create_topics": Option(
        False, boolean, "Whether to create a subscribed topic that does not exist. The broker must also allow it."
    ),
    "auto_commit_interval_ms": Option(
        5_000, integer(0, MAX_INT), "Time between two commits if `enable_auto_commit` is true."
    ),
    "auto_offset_reset": Option(
        "latest",
        _reset_policy,
        (
            "Where to begin if the group has no offset, or the offset is not in the log: `earliest`, `latest`, "
            "`by_duration:` with an ISO 8601 duration, or `none` (raise an error)."
        ),
    ),
    "check_crcs": Option(True, boolean, "Whether the CRC of each fetched batch is checked."),
    "client_rack": Option(
        "", _possibly_empty_text, "Rack of this consumer. Brokers use it to choose a near replica for fetches."
    ),
    "enable_auto_commit": Option(
        False,
        boolean,
        (
            "Whether the consumer commits consumed offsets in the background. Kafka's default is true, which may "
            "commit records before they are processed."
        ),
    ),
    "exclude_internal_topics": Option(True, boolean, "Whether a subscribed pattern excludes internal topics."),
    "fetch_max_bytes": Option(
        52_428_800,
        integer(0, MAX_INT),
        "Largest response to a fetch, in bytes. A single larger batch is returned anyway.",
    ),
    "fetch_max_wait_ms": Option(
        500,
        integer(0, MAX_INT),
        "How long a broker waits until it has `fetch_min_bytes`. Less than `request_timeout_ms`.",
    ),
    "fetch_min_bytes": Option(1, integer(0, MAX_INT), "A broker answers a fetch when it has this many bytes."),
    "group_id": Option(None, optional_text, "Group of this consumer. `subscribe` and `commit` need it."),
    "group_instance_id": Option(
        None,
        optional_text,
        (
            "Name of a static member (KIP-345): the member keeps its partitions when its process restarts within the "
            "session timeout."
        ),
    ),
    "group_protocol": Option(
        "classic",
        _choice("classic", "consumer"),
        "`classic`, or `consumer` (KIP-848), with which the broker assigns the partitions.",
    ),
    "group_remote_assignor": Option(None, optional_text, "Assignor of the broker, with `group_protocol` = `consumer`."),
    "heartbeat_interval_ms": Option(
        3_000,
        integer(1, MAX_INT),
        "Time between heartbeats to the coordinator. Less than `session_timeout_ms`. Classic protocol only.",
    ),
    "isolation_level": Option(
        "read_uncommitted",
        _choice("read_uncommitted", "read_committed"),
        "`read_committed` returns no records of open and aborted transactions; `read_uncommitted` returns all.",
    ),
    "key_deserializer": Option(
        None, deserializer, "Function `(data, context) -> object` for keys. Ready ones are in `oncelog.serialization`."
    ),
    "max_partition_fetch_bytes": Option(
        1_048_576,
        integer(0, MAX_INT),
        "Maximum bytes of one partition in the response to a fetch. A single larger batch is returned anyway.",
    ),
    "max_poll_interval_ms": Option(
        300_000,
        integer(1, MAX_INT),
        "Longest time between two polls. After it, the consumer leaves the group, and others get its partitions.",
    ),
    "max_poll_records": Option(500, integer(1, MAX_INT), "Maximum number of records that one `poll` returns."),
    "partition_assignment_strategy": Option(
        ("range", "cooperative-sticky", "roundrobin"),
        _choices(*sorted(ASSIGNORS)),
        ("Assignors in the order of preference: range, roundrobin, sticky, cooperative-sticky. Classic protocol only."),
    ),
    "session_timeout_ms": Option(
        45_000,
        integer(1, MAX_INT),
        "The coordinator removes a member that sends no heartbeat for this time. Classic protocol only.",
    ),
    "value_deserializer": Option(None, deserializer, "The same for values."),
}
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

CLASSIC_ONLY = ("heartbeat_interval_ms", "partition_assignment_strategy", "session_timeout_ms")
"""Options for which the broker's settings apply with group_protocol = consumer (KIP-848)."""


def isolation_level(options: Mapping[str, Any]) -> int:
    """Return the isolation level as a number of Kafka's protocol."""
    return READ_COMMITTED if options["isolation_level"] == "read_committed" else READ_UNCOMMITTED


def consumer_options(mapping: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's options, checked against each other. Raises ConfigError."""
    options, explicit = read_options(CONSUMER, mapping, given)
    check_statistics(options)
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
                f"{name} needs group_protocol = {needed}, "
                f"but group_protocol = {options['group_protocol']}"
                + ("; omit it, because the broker's group settings apply" if modern else "")
            )
    if options["heartbeat_interval_ms"] >= options["session_timeout_ms"]:
        raise ConfigError(
            f"heartbeat_interval_ms = {options['heartbeat_interval_ms']} must be less than "
            f"session_timeout_ms = {options['session_timeout_ms']}"
        )
    limit = options["request_timeout_ms"]
    if "fetch_max_wait_ms" not in explicit:
        options["fetch_max_wait_ms"] = min(options["fetch_max_wait_ms"], limit // 2)
    elif options["fetch_max_wait_ms"] >= limit:
        raise ConfigError(
            f"fetch_max_wait_ms = {options['fetch_max_wait_ms']} must be less than request_timeout_ms = {limit}: "
            "otherwise a fetch that waits for records times out"
        )
    return options
