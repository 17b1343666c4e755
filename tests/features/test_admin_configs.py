"""Settings changed while the broker runs: IncrementalAlterConfigs and AlterConfigs (KIP-133, 226, 339)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.protocol.compression import Codec
from oncelog.protocol.messages import alter_configs as legacy
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.records import iter_batches
from support.servers import Server
from support.wire import Wire, batch, code, settled, until

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OF_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, OF_LOGGER = 1, 2, 3, 4, 5, 6
ME = "1"
"""The node id of both servers."""
MIB = 1 << 20

Op = tuple[str, int, str | None]


def resource(kind: int, name: str, *ops: Op) -> AlterConfigsResource:
    """One resource of a request."""
    configs = [AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in ops]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def alter_all(wire: Wire, *resources: AlterConfigsResource, validate_only: bool = False, version: int = 1) -> list[Any]:
    """The answers to one IncrementalAlterConfigs."""
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return list(wire.call(request, version).responses)


def alter(wire: Wire, kind: int, name: str, *ops: Op, validate_only: bool = False, version: int = 1) -> Any:
    """The answer for the only resource."""
    [answer] = alter_all(wire, resource(kind, name, *ops), validate_only=validate_only, version=version)
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


def set_topic(wire: Wire, topic: str, key: str, value: str) -> None:
    """Set one setting of a topic and wait until it is told."""
    answer = alter(wire, TOPIC, topic, (key, SET, value))
    assert not answer.error_code, answer
    until(lambda: shown(wire, TOPIC, topic)[key].value, lambda found: found == value, f"{key} is {value}")


def shown(wire: Wire, kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    """The settings of a resource as DescribeConfigs tells them."""
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    [answer] = wire.call(DescribeConfigsRequest(resources=[asked], include_synonyms=True)).results
    assert not answer.error_code, answer
    return {entry.name: entry for entry in answer.configs}


def value(wire: Wire, kind: int, name: str, key: str) -> tuple[str, int]:
    """Value and source of one setting."""
    entry = shown(wire, kind, name, [key])[key]
    return entry.value, entry.config_source


def becomes(wire: Wire, kind: int, name: str, key: str, wanted: tuple[str, int]) -> None:
    """Wait until a setting has that value from that source."""
    until(lambda: value(wire, kind, name, key), lambda found: found == wanted, f"{key} is {wanted}")


def put(wire: Wire, topic: str, records: bytes | bytearray) -> Any:
    """Produce, as soon as the partition is led."""
    answer = settled(lambda: wire.produce(topic, records))
    assert not answer.error_code, answer
    return answer


def refuses(wire: Wire, topic: str, records: bytes | bytearray, error: str) -> None:
    """Wait until the records are refused: Kafka's logs hear of a change a little later than its metadata."""
    until(lambda: wire.produce(topic, records).error_code, lambda found: found == code(error), f"refused with {error}")


def takes(wire: Wire, topic: str, records: bytes | bytearray) -> Any:
    """Wait until the records are taken."""
    return until(lambda: wire.produce(topic, records), lambda answer: not answer.error_code, "taken")


# -- IncrementalAlterConfigs of topics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_set_and_delete(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name, retention_ms="1000")
    answer = alter(wire, TOPIC, name, ("segment.ms", SET, "2000"), ("retention.ms", DELETE, None), version=version)
    assert (answer.error_code, answer.error_message) == (0, None) or answer.error_code == 0
    becomes(wire, TOPIC, name, "segment.ms", ("2000", OF_TOPIC))
    becomes(wire, TOPIC, name, "retention.ms", ("604800000", DEFAULT))


def test_append_and_subtract_lists(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    key = "cleanup.policy"
    for op, text, wanted in (
        (APPEND, "compact", ("delete,compact", OF_TOPIC)),
        (APPEND, "compact,delete", ("delete,compact", OF_TOPIC)),
        (SUBTRACT, "delete", ("compact", OF_TOPIC)),
        (SUBTRACT, "delete", ("compact", OF_TOPIC)),
    ):
        assert not alter(wire, TOPIC, name, (key, op, text)).error_code
        becomes(wire, TOPIC, name, key, wanted)
    assert not alter(wire, TOPIC, name, (key, DELETE, None)).error_code
    becomes(wire, TOPIC, name, key, ("delete", DEFAULT))
    assert not alter(wire, TOPIC, name, (key, SUBTRACT, "delete")).error_code
    becomes(wire, TOPIC, name, key, ("", OF_TOPIC))


@pytest.mark.parametrize("op", [APPEND, SUBTRACT])
@pytest.mark.parametrize("key", ["retention.ms", "no.such.setting"])
def test_only_lists_are_appended_to(wire: Wire, name: str, op: int, key: str) -> None:
    wire.create_topic(name)
    answer = alter(wire, TOPIC, name, (key, op, "1"))
    assert answer.error_code == code("INVALID_CONFIG")
    assert "because its type is not LIST" in answer.error_message
    assert key in answer.error_message


@pytest.mark.parametrize(
    ("key", "text", "bound"),
    [
        ("segment.bytes", "1048575", "1048576"),
        ("segment.ms", "0", "1"),
        ("segment.jitter.ms", "-1", "0"),
        ("segment.index.bytes", "3", "4"),
        ("index.interval.bytes", "-1", "0"),
        ("flush.messages", "0", "1"),
        ("flush.ms", "-1", "0"),
        ("retention.ms", "-2", "-1"),
        ("max.message.bytes", "-1", "0"),
        ("delete.retention.ms", "-1", "0"),
        ("min.compaction.lag.ms", "-1", "0"),
        ("max.compaction.lag.ms", "0", "1"),
        ("file.delete.delay.ms", "-1", "0"),
        ("min.cleanable.dirty.ratio", "1.1", "1"),
        ("min.cleanable.dirty.ratio", "-0.1", "0"),
        ("min.insync.replicas", "0", "1"),
        ("message.timestamp.before.max.ms", "-1", "0"),
        ("message.timestamp.after.max.ms", "-1", "0"),
        ("compression.gzip.level", "0", "1"),
        ("compression.gzip.level", "10", "9"),
        ("compression.lz4.level", "18", "17"),
        ("compression.zstd.level", "23", "22"),
        ("compression.type", "brotli", "zstd"),
        ("message.timestamp.type", "Yesterday", "LogAppendTime"),
        ("cleanup.policy", "shred", "compact"),
        ("retention.ms", "week", ""),
        ("segment.bytes", "2147483648", ""),
        ("preallocate", "yes", "true"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_bound(wire: Wire, name: str, key: str, text: str, bound: str) -> None:
    wire.create_topic(name)
    answer = alter(wire, TOPIC, name, (key, SET, text), ("retention.bytes", SET, "5"))
    assert answer.error_code == code("INVALID_CONFIG")
    for part in (key, text, bound):
        assert part in answer.error_message
    assert value(wire, TOPIC, name, "retention.bytes") == ("-1", DEFAULT)


def test_settings_must_fit_each_other(wire: Wire, name: str) -> None:
    wire.create_topic(name, max_compaction_lag_ms="5")
    answer = alter(wire, TOPIC, name, ("min.compaction.lag.ms", SET, "6"))
    assert answer.error_code == code("INVALID_CONFIG")
    assert "min.compaction.lag.ms (6)" in answer.error_message
    assert "max.compaction.lag.ms (5)" in answer.error_message
    both = ("min.compaction.lag.ms", SET, "6"), ("max.compaction.lag.ms", SET, "6")
    assert not alter(wire, TOPIC, name, *both).error_code


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "1")], "INVALID_REQUEST"),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], "INVALID_REQUEST"),
        ([("retention.ms", SET, None)], "INVALID_REQUEST"),
        ([("cleanup.policy", APPEND, None)], "INVALID_REQUEST"),
        ([("no.such.setting", SET, "1")], "INVALID_CONFIG"),
        ([("log.retention.ms", SET, "1")], "INVALID_CONFIG"),
        ([("no.such.setting", DELETE, None)], "NONE"),
        ([], "NONE"),
    ],
)
def test_requests_that_are_malformed(wire: Wire, name: str, ops: list[Op], error: str) -> None:
    wire.create_topic(name)
    assert alter(wire, TOPIC, name, *ops).error_code == code(error)
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_an_unknown_operation(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: KRaft's controller runs into a null and answers UNKNOWN_SERVER_ERROR."""
    wire.create_topic(name)
    answer = alter(wire, TOPIC, name, ("retention.ms", 9, "1"))
    error = "UNKNOWN_SERVER_ERROR" if server.name == "apache-kafka" else "INVALID_REQUEST"
    assert answer.error_code == code(error)


def test_resources_that_are_not_there(wire: Wire, name: str) -> None:
    op = ("retention.ms", SET, "1")
    assert alter(wire, TOPIC, name, op).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert alter(wire, TOPIC, name, ("retention.ms", SET, "x")).error_code == code("INVALID_CONFIG")
    assert alter(wire, TOPIC, "", op).error_code == code("INVALID_REQUEST")
    assert alter(wire, TOPIC, "a/b", op).error_code == code("INVALID_TOPIC_EXCEPTION")
    assert alter(wire, BROKER, "17", ("log.retention.ms", SET, "1")).error_code == code("INVALID_REQUEST")
    assert alter(wire, BROKER, "x", ("log.retention.ms", SET, "1")).error_code == code("INVALID_REQUEST")
    assert alter(wire, 3, name, op).error_code == code("INVALID_REQUEST")


def test_a_resource_that_comes_twice(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.create_topic(f"{name}-b")
    op = ("retention.ms", SET, "1")
    answers = alter_all(
        wire, resource(TOPIC, name, op), resource(TOPIC, f"{name}-b", op), resource(TOPIC, name, op), version=1
    )
    refused = code("INVALID_REQUEST")
    assert [(each.resource_name, each.error_code) for each in answers] == [
        (name, refused),
        (f"{name}-b", 0),
        (name, refused),
    ]
    becomes(wire, TOPIC, f"{name}-b", "retention.ms", ("1", OF_TOPIC))
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_validate_only_changes_nothing(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    assert not alter(wire, TOPIC, name, ("retention.ms", SET, "1"), validate_only=True).error_code
    answer = alter(wire, TOPIC, name, ("retention.ms", SET, "-7"), validate_only=True)
    assert answer.error_code == code("INVALID_CONFIG")
    answer = alter(wire, TOPIC, f"{name}-x", ("retention.ms", SET, "1"), validate_only=True)
    assert answer.error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_values_are_told_in_their_plain_form(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    ops = ("retention.ms", SET, " 0077 "), ("preallocate", SET, "TRUE"), ("cleanup.policy", SET, "compact , delete")
    assert not alter(wire, TOPIC, name, *ops).error_code
    becomes(wire, TOPIC, name, "retention.ms", ("77", OF_TOPIC))
    assert value(wire, TOPIC, name, "preallocate") == ("true", OF_TOPIC)
    assert value(wire, TOPIC, name, "cleanup.policy") == ("compact,delete", OF_TOPIC)


# -- AlterConfigs ------------------------------------------------------------------------------------------------------


def replace(wire: Wire, kind: int, name: str, configs: dict[str, str | None], **options: Any) -> Any:
    """The answer to AlterConfigs with one resource."""
    entries = [legacy.AlterableConfig(name=key, value=text) for key, text in configs.items()]
    asked = legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)
    version = options.pop("version", 2)
    [answer] = wire.call(legacy.AlterConfigsRequest(resources=[asked], **options), version).responses
    return answer


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_replaces_all(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name, retention_ms="1000", segment_ms="2000")
    assert not replace(wire, TOPIC, name, {"segment.ms": "3000", "flush.ms": "9"}, version=version).error_code
    becomes(wire, TOPIC, name, "segment.ms", ("3000", OF_TOPIC))
    assert value(wire, TOPIC, name, "flush.ms") == ("9", OF_TOPIC)
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_alter_configs_is_checked(wire: Wire, name: str) -> None:
    wire.create_topic(name, retention_ms="1000")
    assert replace(wire, TOPIC, name, {"flush.ms": "-9"}).error_code == code("INVALID_CONFIG")
    assert replace(wire, TOPIC, name, {"flush.ms": None}).error_code == code("INVALID_REQUEST")
    assert replace(wire, TOPIC, name, {"no.such": "1"}).error_code == code("INVALID_CONFIG")
    assert replace(wire, TOPIC, f"{name}-x", {}).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert replace(wire, LOGGER, ME, {"root": "INFO"}).error_code == code("INVALID_REQUEST")
    assert not replace(wire, TOPIC, name, {}, validate_only=True).error_code
    assert value(wire, TOPIC, name, "retention.ms") == ("1000", OF_TOPIC)


# -- the change acts at once -------------------------------------------------------------------------------------------


def test_max_message_bytes_acts_at_once(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    big = batch([b"x" * 5000])
    put(wire, name, big)
    set_topic(wire, name, "max.message.bytes", "4000")
    refuses(wire, name, big, "MESSAGE_TOO_LARGE")
    set_topic(wire, name, "max.message.bytes", "6000")
    takes(wire, name, big)


def test_min_insync_replicas_of_one_replica(wire: Wire, name: str) -> None:
    """Bounded by the number of replicas (`Partition.effectiveMinIsr`): with one there is nothing to lack."""
    wire.create_topic(name)
    set_topic(wire, name, "min.insync.replicas", "2")
    put(wire, name, batch([b"x"]))


def test_timestamp_type_acts_at_once(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    old = int(time.time() * 1000) - 60_000
    assert put(wire, name, batch([b"x"], timestamp=old)).log_append_time_ms == -1
    for kind in ("LogAppendTime", "CreateTime"):
        set_topic(wire, name, "message.timestamp.type", kind)
        until(
            lambda: put(wire, name, batch([b"x"], timestamp=old)).log_append_time_ms,
            lambda found, kind=kind: found > old if kind == "LogAppendTime" else found == -1,
            f"stamped as {kind}",
        )


@pytest.mark.parametrize(("key", "shift"), [("before", -60_000), ("after", 60_000)])
def test_timestamp_limits_act_at_once(wire: Wire, name: str, key: str, shift: int) -> None:
    wire.create_topic(name)
    records = batch([b"x"], timestamp=int(time.time() * 1000) + shift)
    put(wire, name, records)
    set_topic(wire, name, f"message.timestamp.{key}.max.ms", "1000")
    refuses(wire, name, records, "INVALID_TIMESTAMP")


def test_compression_type_and_level_act_at_once(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    values = [b"%d of many that are much alike" % number for number in range(500)]

    def stored() -> tuple[Codec, int]:
        offset = put(wire, name, batch(values)).base_offset
        [(header, _)] = iter_batches(wire.fetch(topic_id, offset=offset).records)
        return header.codec, header.size

    assert stored()[0] == Codec.NONE
    set_topic(wire, name, "compression.gzip.level", "1")
    set_topic(wire, name, "compression.type", "gzip")
    _, quick = until(stored, lambda found: found[0] == Codec.GZIP, "stored with gzip")
    set_topic(wire, name, "compression.gzip.level", "9")
    until(stored, lambda found: found[1] < quick, "smaller at level 9")
    set_topic(wire, name, "compression.type", "producer")
    until(stored, lambda found: found[0] == Codec.NONE, "stored as it came")


def segments(server: Server, name: str) -> int:
    """How many segments lie in the partition's folder."""
    return len(list(server.partition_dir(name).glob("*.log")))


def test_segment_bytes_acts_at_once(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    data = batch([b"x" * 600_000])
    for _ in range(3):
        put(wire, name, data)
    assert segments(server, name) == 1
    set_topic(wire, name, "segment.bytes", str(MIB))
    until(lambda: (put(wire, name, data), segments(server, name))[1], lambda found: found == 2, "a second segment")
    put(wire, name, data)
    assert segments(server, name) == 3


def test_segment_ms_acts_at_once(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    now = int(time.time() * 1000)
    for step in range(3):
        put(wire, name, batch([b"x"], timestamp=now + step * 1000))
    assert segments(server, name) == 1
    set_topic(wire, name, "segment.ms", "500")
    last = batch([b"x"], timestamp=now + 3000)
    until(lambda: (put(wire, name, last), segments(server, name))[1], lambda found: found == 2, "a second segment")
    put(wire, name, batch([b"x"], timestamp=now + 4000))
    assert segments(server, name) == 3


def test_segment_jitter_is_taken_off(wire: Wire, server: Server, name: str) -> None:
    """At most segment.ms: with as much jitter as that, some of these segments are rolled before their time."""
    wire.create_topic(name, segment_ms="1000000", segment_jitter_ms="1000000")
    now = int(time.time() * 1000) - 20_000_000
    for step in range(20):
        put(wire, name, batch([b"x"], timestamp=now + step * 900_000))
    assert segments(server, name) > 11, "without jitter, each holds two"


def test_cleanup_policy_acts_at_once(wire: Wire, name: str) -> None:
    """Records of a compacted topic have keys."""
    wire.create_topic(name)
    put(wire, name, batch([b"x"]))
    set_topic(wire, name, "cleanup.policy", "compact")
    refuses(wire, name, batch([b"x"]), "INVALID_RECORD")
    set_topic(wire, name, "cleanup.policy", "delete")
    takes(wire, name, batch([b"x"]))


RETENTION = {"log.retention.check.interval.ms": "50", "log.initial.task.delay.ms": "50"}


def test_retention_acts_at_once_and_settings_outlive_the_broker(start_server: Callable[..., Server], name: str) -> None:
    server = start_server(RETENTION)
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name, retention_ms="-1")
        old = int(time.time() * 1000) - 3_600_000
        put(wire, name, batch([b"x"], timestamp=old))
        wire.create_topic(f"{name}-b", retention_ms="-1", segment_bytes=str(MIB))
        for _ in range(3):
            put(wire, f"{name}-b", batch([b"x" * 600_000]))
        assert wire.offset(name, -2) == wire.offset(f"{name}-b", -2) == 0
        set_topic(wire, name, "retention.ms", "1000")
        set_topic(wire, f"{name}-b", "retention.bytes", "700000")
        until(lambda: wire.offset(name, -2), lambda start: start == 1, "the old record is gone")
        until(lambda: wire.offset(f"{name}-b", -2), lambda start: start >= 1, "what does not fit is gone")
        assert not alter(wire, BROKER, ME, ("message.max.bytes", SET, "4000")).error_code
        assert not alter(wire, BROKER, "", ("log.segment.bytes", SET, str(2 * MIB))).error_code
        becomes(wire, BROKER, ME, "log.segment.bytes", (str(2 * MIB), DYNAMIC_DEFAULT))
    server.kill()
    server.wait_ready()
    with Wire(server.bootstrap) as wire:
        becomes(wire, TOPIC, name, "retention.ms", ("1000", OF_TOPIC))
        becomes(wire, TOPIC, f"{name}-b", "retention.bytes", ("700000", OF_TOPIC))
        becomes(wire, TOPIC, name, "max.message.bytes", ("4000", DYNAMIC_BROKER))
        becomes(wire, TOPIC, name, "segment.bytes", (str(2 * MIB), DYNAMIC_DEFAULT))
        refuses(wire, name, batch([b"x" * 5000]), "MESSAGE_TOO_LARGE")


# -- brokers -----------------------------------------------------------------------------------------------------------


KEPT = {"min.insync.replicas"}
"""What Kafka itself has set for all brokers: with eligible leader replicas (KIP-966) it cannot be unset."""


@pytest.fixture
def clean(wire: Wire) -> Iterator[Wire]:
    """A connection; what a test sets of brokers is unset after it."""
    yield wire
    for broker in (ME, ""):
        names = [
            key
            for key, entry in shown(wire, BROKER, broker).items()
            if entry.config_source == (DYNAMIC_BROKER if broker else DYNAMIC_DEFAULT) and key not in KEPT
        ]
        if names:
            assert not alter(wire, BROKER, broker, *((key, DELETE, None) for key in names)).error_code
    until(
        lambda: {entry.config_source for key, entry in shown(wire, BROKER, ME).items() if key not in KEPT},
        lambda found: not found & {DYNAMIC_BROKER, DYNAMIC_DEFAULT},
        "the broker's settings are as before",
    )


def test_layers_of_a_brokers_setting(clean: Wire, name: str) -> None:
    """This broker's own, then that of all, then what it was started with; a topic's own above all of them."""
    wire, key = clean, "message.max.bytes"
    wire.create_topic(name)
    assert value(wire, TOPIC, name, "max.message.bytes") == ("1048588", DEFAULT)
    assert not alter(wire, BROKER, "", (key, SET, "7000")).error_code
    becomes(wire, BROKER, ME, key, ("7000", DYNAMIC_DEFAULT))
    assert not alter(wire, BROKER, ME, (key, SET, "4000")).error_code
    becomes(wire, BROKER, ME, key, ("4000", DYNAMIC_BROKER))
    entry = shown(wire, TOPIC, name)["max.message.bytes"]
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        (key, "4000", DYNAMIC_BROKER),
        (key, "7000", DYNAMIC_DEFAULT),
        (key, "1048588", DEFAULT),
    ]
    assert not entry.read_only
    refuses(wire, name, batch([b"x" * 5000]), "MESSAGE_TOO_LARGE")
    assert set(shown(wire, BROKER, "")) - KEPT == {key}
    assert not alter(wire, BROKER, ME, (key, DELETE, None)).error_code
    becomes(wire, TOPIC, name, "max.message.bytes", ("7000", DYNAMIC_DEFAULT))
    takes(wire, name, batch([b"x" * 5000]))
    set_topic(wire, name, "max.message.bytes", "3000")
    refuses(wire, name, batch([b"x" * 5000]), "MESSAGE_TOO_LARGE")


FLOATS = ["log.cleaner.io.max.bytes.per.second"]
DYNAMIC = {
    "log.retention.ms": "5",
    "log.retention.bytes": "5",
    "log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "5",
    "log.cleaner.io.max.bytes.per.second": "5000000.0",
    "log.flush.interval.messages": "5",
    "log.cleanup.policy": "compact",
    "max.connections": "1000",
    "producer.id.expiration.ms": "5000",
    "transaction.partition.verification.enable": "true",
    "unclean.leader.election.enable": "true",
}


@pytest.mark.parametrize("broker", [ME, ""])
def test_what_changes_while_a_broker_runs(clean: Wire, broker: str) -> None:
    answer = alter(clean, BROKER, broker, *((key, SET, text) for key, text in DYNAMIC.items()))
    assert not answer.error_code, answer
    source = DYNAMIC_BROKER if broker else DYNAMIC_DEFAULT
    described = until(
        lambda: shown(clean, BROKER, ME),
        lambda found: {found[key].config_source for key in DYNAMIC} == {source},
        "all are changed",
    )
    assert {key: described[key].value for key in DYNAMIC} == DYNAMIC | {key: described[key].value for key in FLOATS}
    assert {float(described[key].value) for key in FLOATS} == {5_000_000.0}
    assert not any(described[key].read_only for key in DYNAMIC)
    assert described["log.dirs"].read_only
    assert described["num.partitions"].read_only


@pytest.mark.parametrize("broker", [ME, ""])
@pytest.mark.parametrize("key", ["num.partitions", "auto.create.topics.enable", "log.dirs", "log.retention.hours"])
def test_what_is_fixed_at_the_start(wire: Wire, key: str, broker: str) -> None:
    answer = alter(wire, BROKER, broker, (key, SET, "1"))
    assert answer.error_code == code("INVALID_REQUEST")
    assert "Cannot update these configs dynamically" in answer.error_message
    assert key in answer.error_message


def test_a_brokers_values_are_checked(wire: Wire) -> None:
    answer = alter(wire, BROKER, ME, ("log.segment.bytes", SET, "100"))
    assert answer.error_code == code("INVALID_REQUEST")
    for part in ("log.segment.bytes", "100", "1048576"):
        assert part in answer.error_message
    assert alter(wire, BROKER, ME, ("log.retention.ms", APPEND, "1")).error_code == code("INVALID_CONFIG")
    assert alter(wire, BROKER, ME, ("log.retention.ms", SET, None)).error_code == code("INVALID_REQUEST")
    assert not alter(wire, BROKER, ME, ("log.retention.ms", SET, "9"), validate_only=True).error_code
    assert value(wire, BROKER, ME, "log.segment.bytes")[1] != DYNAMIC_BROKER


def test_a_setting_that_nobody_knows(clean: Wire, server: Server) -> None:
    """DIFFERS: Kafka keeps it for plugins, which oncelog has not: there it is a mistake."""
    answer = alter(clean, BROKER, ME, ("log.retention.mss", SET, "1"))
    assert answer.error_code == (0 if server.name == "apache-kafka" else code("INVALID_REQUEST"))
    if server.name == "apache-kafka":
        assert not alter(clean, BROKER, ME, ("log.retention.mss", DELETE, None)).error_code


def test_legacy_alter_configs_of_a_broker(clean: Wire) -> None:
    assert not replace(clean, BROKER, ME, {"log.retention.bytes": "77"}).error_code
    becomes(clean, BROKER, ME, "log.retention.bytes", ("77", DYNAMIC_BROKER))
    assert not replace(clean, BROKER, ME, {"log.flush.interval.messages": "88"}).error_code
    becomes(clean, BROKER, ME, "log.flush.interval.messages", ("88", DYNAMIC_BROKER))
    assert value(clean, BROKER, ME, "log.retention.bytes") == ("-1", DEFAULT)
    assert replace(clean, BROKER, ME, {"num.partitions": "2"}).error_code == code("INVALID_REQUEST")


def test_max_connections_acts_at_once(clean: Wire, server: Server) -> None:
    """DIFFERS: Kafka lets one connection more wait unaccepted, ours is closed at once; neither is served."""
    assert not alter(clean, BROKER, ME, ("max.connections", SET, "1")).error_code
    becomes(clean, BROKER, ME, "max.connections", ("1", DYNAMIC_BROKER))
    host, port = server.bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=0.2) as refused:
        if server.name == "oncelog":
            refused.settimeout(30)
            assert refused.recv(1) == b""
        else:
            with pytest.raises(TimeoutError):
                refused.recv(1)
    assert not alter(clean, BROKER, ME, ("max.connections", DELETE, None)).error_code
    becomes(clean, BROKER, ME, "max.connections", (str(2**31 - 1), DEFAULT))
    with Wire(server.bootstrap):
        pass


# -- loggers, groups, client metrics -----------------------------------------------------------------------------------


def test_levels_of_loggers(wire: Wire, server: Server) -> None:
    before = shown(wire, LOGGER, ME)
    assert before["root"].value in {"INFO", "WARN", "ERROR"}
    logger = next(each for each in sorted(before) if each != "root" and before[each].value == before["root"].value)
    assert not alter(wire, LOGGER, ME, (logger, SET, "DEBUG")).error_code
    assert value(wire, LOGGER, ME, logger) == ("DEBUG", OF_LOGGER)
    assert not alter(wire, LOGGER, ME, (logger, SET, "ERROR"), validate_only=True).error_code
    assert value(wire, LOGGER, ME, logger) == ("DEBUG", OF_LOGGER)
    assert not alter(wire, LOGGER, ME, (logger, DELETE, None)).error_code
    assert value(wire, LOGGER, ME, logger) == (before["root"].value, OF_LOGGER)


@pytest.mark.parametrize(
    ("broker", "op", "error"),
    [
        (ME, ("root", SET, "LOUD"), "INVALID_CONFIG"),
        (ME, ("no.such.logger", SET, "INFO"), "INVALID_CONFIG"),
        (ME, ("no.such.logger", DELETE, None), "INVALID_CONFIG"),
        (ME, ("root", DELETE, None), "INVALID_REQUEST"),
        (ME, ("root", APPEND, "INFO"), "INVALID_REQUEST"),
        (ME, ("root", SUBTRACT, "INFO"), "INVALID_REQUEST"),
        ("17", ("root", SET, "INFO"), "INVALID_REQUEST"),
        ("", ("root", SET, "INFO"), "INVALID_REQUEST"),
        ("x", ("root", SET, "INFO"), "INVALID_REQUEST"),
    ],
)
def test_levels_that_are_refused(wire: Wire, broker: str, op: Op, error: str) -> None:
    assert alter(wire, LOGGER, broker, op).error_code == code(error)


@pytest.mark.parametrize(
    ("kind", "op"),
    [(CLIENT_METRICS, ("interval.ms", SET, "1000")), (GROUP, ("consumer.session.timeout.ms", SET, "45000"))],
)
def test_resources_that_oncelog_has_not(wire: Wire, server: Server, name: str, kind: int, op: Op) -> None:
    """DIFFERS: they belong to protocols (KIP-714, 848, 932, 1071) that are refused clearly."""
    kafka = server.name == "apache-kafka"
    answer = alter(wire, kind, name, op)
    assert answer.error_code == (0 if kafka else code("INVALID_REQUEST"))
    assert kafka or "oncelog" in answer.error_message
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    [described] = wire.call(DescribeConfigsRequest(resources=[asked])).results
    assert described.error_code == (0 if kafka else code("INVALID_REQUEST"))
