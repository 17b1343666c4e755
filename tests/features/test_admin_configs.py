"""Settings changed at run time: IncrementalAlterConfigs and AlterConfigs (KIP-133, 226, 339)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from oncelog.protocol.compression import Codec
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.records import iter_batches
from support.configs import (
    APPEND,
    BROKER,
    DEFAULT,
    DELETE,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    LOGGER,
    ME,
    MIB,
    OF_TOPIC,
    SET,
    SUBTRACT,
    TOPIC,
    Op,
    alter,
    alter_all,
    put,
    replace,
    resource,
    set_topic,
    value,
    wait_until_accepted,
    wait_until_rejected,
    wait_until_value,
)
from support.servers import Server
from support.wire import Wire, batch, code, retried, until

# -- IncrementalAlterConfigs of topics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_set_and_delete(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name, retention_ms="1000")
    answer = alter(wire, TOPIC, name, ("segment.ms", SET, "2000"), ("retention.ms", DELETE, None), version=version)
    assert (answer.error_code, answer.error_message) == (0, None) or answer.error_code == 0
    wait_until_value(wire, TOPIC, name, "segment.ms", ("2000", OF_TOPIC))
    wait_until_value(wire, TOPIC, name, "retention.ms", ("604800000", DEFAULT))


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
        wait_until_value(wire, TOPIC, name, key, wanted)
    assert not alter(wire, TOPIC, name, (key, DELETE, None)).error_code
    wait_until_value(wire, TOPIC, name, key, ("delete", DEFAULT))
    assert not alter(wire, TOPIC, name, (key, SUBTRACT, "delete")).error_code
    wait_until_value(wire, TOPIC, name, key, ("", OF_TOPIC))


@pytest.mark.parametrize("op", [APPEND, SUBTRACT])
@pytest.mark.parametrize("key", ["retention.ms", "no.such.setting"])
def test_only_lists_can_be_appended_to(wire: Wire, name: str, op: int, key: str) -> None:
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
def test_invalid_value_is_named_with_its_key_and_bound(wire: Wire, name: str, key: str, text: str, bound: str) -> None:
    wire.create_topic(name)
    answer = alter(wire, TOPIC, name, (key, SET, text), ("retention.bytes", SET, "5"))
    assert answer.error_code == code("INVALID_CONFIG")
    for part in (key, text, bound):
        assert part in answer.error_message
    assert value(wire, TOPIC, name, "retention.bytes") == ("-1", DEFAULT)


def test_settings_must_be_consistent(wire: Wire, name: str) -> None:
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
def test_malformed_requests(wire: Wire, name: str, ops: list[Op], error: str) -> None:
    wire.create_topic(name)
    assert alter(wire, TOPIC, name, *ops).error_code == code(error)
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_unknown_operation(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: KRaft's controller hits a null pointer and answers UNKNOWN_SERVER_ERROR."""
    wire.create_topic(name)
    answer = alter(wire, TOPIC, name, ("retention.ms", 9, "1"))
    error = "UNKNOWN_SERVER_ERROR" if server.name == "apache-kafka" else "INVALID_REQUEST"
    assert answer.error_code == code(error)


def test_unknown_resources(wire: Wire, name: str) -> None:
    op = ("retention.ms", SET, "1")
    assert alter(wire, TOPIC, name, op).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert alter(wire, TOPIC, name, ("retention.ms", SET, "x")).error_code == code("INVALID_CONFIG")
    assert alter(wire, TOPIC, "", op).error_code == code("INVALID_REQUEST")
    assert alter(wire, TOPIC, "a/b", op).error_code == code("INVALID_TOPIC_EXCEPTION")
    assert alter(wire, BROKER, "17", ("log.retention.ms", SET, "1")).error_code == code("INVALID_REQUEST")
    assert alter(wire, BROKER, "x", ("log.retention.ms", SET, "1")).error_code == code("INVALID_REQUEST")
    assert alter(wire, 3, name, op).error_code == code("INVALID_REQUEST")


def test_resource_named_twice(wire: Wire, name: str) -> None:
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
    wait_until_value(wire, TOPIC, f"{name}-b", "retention.ms", ("1", OF_TOPIC))
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_validate_only_changes_nothing(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    assert not alter(wire, TOPIC, name, ("retention.ms", SET, "1"), validate_only=True).error_code
    answer = alter(wire, TOPIC, name, ("retention.ms", SET, "-7"), validate_only=True)
    assert answer.error_code == code("INVALID_CONFIG")
    answer = alter(wire, TOPIC, f"{name}-x", ("retention.ms", SET, "1"), validate_only=True)
    assert answer.error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert value(wire, TOPIC, name, "retention.ms") == ("604800000", DEFAULT)


def test_values_are_returned_normalized(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    ops = ("retention.ms", SET, " 0077 "), ("preallocate", SET, "TRUE"), ("cleanup.policy", SET, "compact , delete")
    assert not alter(wire, TOPIC, name, *ops).error_code
    wait_until_value(wire, TOPIC, name, "retention.ms", ("77", OF_TOPIC))
    assert value(wire, TOPIC, name, "preallocate") == ("true", OF_TOPIC)
    assert value(wire, TOPIC, name, "cleanup.policy") == ("compact,delete", OF_TOPIC)


# -- AlterConfigs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_replaces_all(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name, retention_ms="1000", segment_ms="2000")
    assert not replace(wire, TOPIC, name, {"segment.ms": "3000", "flush.ms": "9"}, version=version).error_code
    wait_until_value(wire, TOPIC, name, "segment.ms", ("3000", OF_TOPIC))
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


# -- the change takes effect at once -----------------------------------------------------------------------------------


def test_max_message_bytes_takes_effect_at_once(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    big = batch([b"x" * 5000])
    put(wire, name, big)
    set_topic(wire, name, "max.message.bytes", "4000")
    wait_until_rejected(wire, name, big, "MESSAGE_TOO_LARGE")
    set_topic(wire, name, "max.message.bytes", "6000")
    wait_until_accepted(wire, name, big)


def test_min_insync_replicas_with_one_replica(wire: Wire, name: str) -> None:
    """Bounded by the number of replicas (`Partition.effectiveMinIsr`): a partition with one replica is never below
    it.
    """
    wire.create_topic(name)
    set_topic(wire, name, "min.insync.replicas", "2")
    put(wire, name, batch([b"x"]))


def test_timestamp_type_takes_effect_at_once(wire: Wire, name: str) -> None:
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
def test_timestamp_limits_take_effect_at_once(wire: Wire, name: str, key: str, shift: int) -> None:
    wire.create_topic(name)
    records = batch([b"x"], timestamp=int(time.time() * 1000) + shift)
    put(wire, name, records)
    set_topic(wire, name, f"message.timestamp.{key}.max.ms", "1000")
    wait_until_rejected(wire, name, records, "INVALID_TIMESTAMP")


def test_resource_is_described_once(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    resource = DescribeConfigsResource(resource_type=2, resource_name=name)
    results = wire.call(DescribeConfigsRequest(resources=[resource] * 3)).results
    # DIFFERS[a resource that is named twice]: Kafka describes it once for each time that it is named
    assert len(results) == (1 if server.name == "oncelog" else 3)


def test_batch_that_exceeds_the_limit_when_recompressed_is_rejected(wire: Wire, name: str) -> None:
    wire.create_topic(name, compression_type="uncompressed")
    records = batch([bytes(10_000_000)], codec=Codec.ZSTD)
    assert len(records) < 1000
    assert retried(lambda: wire.produce(name, records)).error_code == code("MESSAGE_TOO_LARGE")
    assert wire.offset(name) == 0


def test_compression_type_and_level_take_effect_at_once(wire: Wire, name: str) -> None:
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
    until(stored, lambda found: found[0] == Codec.NONE, "stored unchanged")


def segments(server: Server, name: str) -> int:
    """Return the number of segments in the partition's folder."""
    return len(list(server.partition_dir(name).glob("*.log")))


def test_segment_bytes_takes_effect_at_once(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    data = batch([b"x" * 600_000])
    for _ in range(3):
        put(wire, name, data)
    assert segments(server, name) == 1
    set_topic(wire, name, "segment.bytes", str(MIB))
    until(
        lambda: (put(wire, name, data), segments(server, name))[1], lambda found: found == 2, "a second segment exists"
    )
    put(wire, name, data)
    assert segments(server, name) == 3


def test_segment_ms_takes_effect_at_once(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    now = int(time.time() * 1000)
    for step in range(3):
        put(wire, name, batch([b"x"], timestamp=now + step * 1000))
    assert segments(server, name) == 1
    set_topic(wire, name, "segment.ms", "500")
    last = batch([b"x"], timestamp=now + 3000)
    until(
        lambda: (put(wire, name, last), segments(server, name))[1], lambda found: found == 2, "a second segment exists"
    )
    put(wire, name, batch([b"x"], timestamp=now + 4000))
    assert segments(server, name) == 3


def test_segment_jitter_is_subtracted(wire: Wire, server: Server, name: str) -> None:
    """The jitter is at most segment.ms. With the largest jitter, some of these segments roll early."""
    wire.create_topic(name, segment_ms="1000000", segment_jitter_ms="1000000")
    now = int(time.time() * 1000) - 20_000_000
    for step in range(20):
        put(wire, name, batch([b"x"], timestamp=now + step * 900_000))
    assert segments(server, name) > 11, "without jitter, each partition has two segments"


def test_segments_of_different_partitions_roll_at_different_times(wire: Wire, server: Server, name: str) -> None:
    """This is the purpose of jitter: at half of segment.ms, about half of these segments have rolled."""
    wire.create_topic(name, 24, segment_ms="1000000", segment_jitter_ms="1000000")
    now = int(time.time() * 1000) - 20_000_000
    for step in range(2):
        for partition in range(24):
            answer = wire.produce(name, batch([b"x"], timestamp=now + step * 500_000), partition=partition)
            assert not answer.error_code, answer
    ends = {len(list(server.partition_dir(name, partition).glob("*.log"))) for partition in range(24)}
    assert ends == {1, 2}


def test_cleanup_policy_takes_effect_at_once(wire: Wire, name: str) -> None:
    """Records of a compacted topic need keys."""
    wire.create_topic(name)
    put(wire, name, batch([b"x"]))
    set_topic(wire, name, "cleanup.policy", "compact")
    wait_until_rejected(wire, name, batch([b"x"]), "INVALID_RECORD")
    set_topic(wire, name, "cleanup.policy", "delete")
    wait_until_accepted(wire, name, batch([b"x"]))


RETENTION = {"log.retention.check.interval.ms": "50", "log.initial.task.delay.ms": "50"}


def test_retention_takes_effect_at_once_and_settings_survive_a_restart(
    start_server: Callable[..., Server], name: str
) -> None:
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
        until(lambda: wire.offset(name, -2), lambda start: start == 1, "the old record is deleted")
        until(lambda: wire.offset(f"{name}-b", -2), lambda start: start >= 1, "the excess segments are deleted")
        assert not alter(wire, BROKER, ME, ("message.max.bytes", SET, "4000")).error_code
        assert not alter(wire, BROKER, "", ("log.segment.bytes", SET, str(2 * MIB))).error_code
        wait_until_value(wire, BROKER, ME, "log.segment.bytes", (str(2 * MIB), DYNAMIC_DEFAULT))
    server.kill()
    server.wait_ready()
    with Wire(server.bootstrap) as wire:
        wait_until_value(wire, TOPIC, name, "retention.ms", ("1000", OF_TOPIC))
        wait_until_value(wire, TOPIC, f"{name}-b", "retention.bytes", ("700000", OF_TOPIC))
        wait_until_value(wire, TOPIC, name, "max.message.bytes", ("4000", DYNAMIC_BROKER))
        wait_until_value(wire, TOPIC, name, "segment.bytes", (str(2 * MIB), DYNAMIC_DEFAULT))
        wait_until_rejected(wire, name, batch([b"x" * 5000]), "MESSAGE_TOO_LARGE")
