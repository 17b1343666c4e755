"""R8: `__consumer_offsets`: its partitions, its records byte for byte, and access to it."""

from __future__ import annotations

import struct
import time
from uuid import UUID

import pytest

from oncelog import Admin, Consumer
from oncelog.client.admin.groups import EARLIEST, Target
from oncelog.coordinator.partitioning import java_string_hash, partition_for
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.records import Record, decode_records, iter_batches
from support.groups import Member, commit, delete_groups, finish, simple_commit, stable, subscription
from support.servers import Server
from support.wire import Wire, batch, retried, until

TOPIC = "__consumer_offsets"
PARTITIONS = 50


def text(value: str | None) -> bytes:
    """Return a string in the non-flexible format."""
    return b"\xff\xff" if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def compact(value: str) -> bytes:
    """Return a short string in the flexible format."""
    return bytes([len(value.encode()) + 1]) + value.encode()


def data(value: bytes) -> bytes:
    """Return bytes in the non-flexible format."""
    return struct.pack(">i", len(value)) + value


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return b"\0\1" + text(group) + text(topic) + struct.pack(">i", partition)


def topic_info(wire: Wire) -> tuple[UUID, int, bool]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    found = retried(lambda: wire.call(request, 12).topics[0])
    return found.topic_id, len(found.partitions), found.is_internal


def records(wire: Wire, partition: int) -> list[Record]:
    """Return all records except markers of a partition of `__consumer_offsets`."""
    topic_id, _, _ = topic_info(wire)
    offset, found = 0, []
    while True:
        answer = wire.fetch(topic_id, partition, offset)
        assert not answer.error_code, answer
        start = offset
        for header, view in iter_batches(answer.records or b""):
            if not header.is_control:
                found += [record for record in decode_records(view) if record.offset >= start]
            offset = header.next_offset
        if offset == start:
            return found


def of_group(wire: Wire, group: str) -> list[Record]:
    return [
        record for record in records(wire, partition_for(group, PARTITIONS)) if group.encode() in (record.key or b"")
    ]


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("console-consumer-77682", 41),
        ("polygenelubricants", 0),  # Java's hash is the least int, which has no positive counterpart
        ("", 0),
        ("a", 47),
        ("grüße-\U0001f600", None),
    ],
)
def test_partition_of_a_group_follows_javas_hash(wire: Wire, name: str, group: str, partition: int | None) -> None:
    wire.create_topic(name)
    simple_commit(wire, group, name, {0: 1})
    home = partition_for(group, PARTITIONS)
    assert home == (abs(java_string_hash(group)) % PARTITIONS if partition is None else partition)
    assert offset_key(group, name, 0) in [record.key for record in records(wire, home)]


def test_offsets_topic_is_internal_compacted_and_has_fifty_partitions(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    assert topic_info(wire)[1:] == (PARTITIONS, True)
    asked = DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=None)
    (found,) = wire.call(DescribeConfigsRequest(resources=[asked])).results
    settings = {each.name: each.value for each in found.configs}
    assert {key: settings[key] for key in ("cleanup.policy", "compression.type", "segment.bytes")} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(100 << 20),
    }


def test_offset_is_written_as_kafka_writes_it(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    before = int(time.time() * 1000)
    simple_commit(wire, name, name, {0: 12}, metadata="note")
    assert commit(wire, name, {1: 13}, group_id=name, version=2, retention_time_ms=3_600_000) == [0]
    first, second = of_group(wire, name)
    assert (first.key, second.key) == (offset_key(name, name, 0), offset_key(name, name, 1))
    assert first.value is not None
    assert second.value is not None
    # Version 4: offset, leader epoch, metadata, time of the commit, and the topic's id as tagged field 0.
    at = struct.unpack_from(">q", first.value, 2 + 8 + 4 + 5)[0]
    assert before <= at <= time.time() * 1000
    assert first.value == (
        struct.pack(">hqi", 4, 12, -1) + compact("note") + struct.pack(">q", at) + b"\1\0\x10" + topic_id.bytes
    )
    # Version 1 if the client gives a retention time: only this version has the time of expiry.
    at = struct.unpack_from(">q", second.value, 2 + 8 + 2)[0]
    assert second.value == struct.pack(">hq", 1, 13) + text("") + struct.pack(">qq", at, at + 3_600_000)


def test_generation_is_written_as_kafka_writes_it(wire: Wire, server: Server, name: str) -> None:
    (member,) = stable(server.bootstrap, name, group_instance_id="one", rebalance_timeout_ms=20_000)
    found = of_group(wire, name)
    assert {record.key for record in found} == {b"\0\2" + text(name)}
    value = found[-1].value
    assert value is not None
    # Version 3, although 4 exists: protocol type, generation, protocol, leader, time of the state, members.
    head = b"\0\3" + text("consumer") + struct.pack(">i", 1) + text("range") + text(member.member_id)
    assert value[: len(head)] == head
    assert value[len(head) + 8 :] == (
        struct.pack(">i", 1)
        + text(member.member_id)
        + text("one")
        + text("member")
        + text("/127.0.0.1")
        + struct.pack(">ii", 20_000, 30_000)
        + data(subscription("t"))
        + data(member.member_id.encode())
    )


def test_deletions_write_tombstones(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    simple_commit(wire, name, name, {0: 1})
    assert delete_groups(wire, name) == {name: 0}
    assert [(record.key, record.value) for record in of_group(wire, name)[-2:]] == [
        (offset_key(name, name, 0), None),
        (b"\0\2" + text(name), None),
    ]


def test_generation_is_one_record_and_members_have_none(wire: Wire, server: Server, name: str) -> None:
    """An unfinished rebalance, a heartbeat and an unchanged member that rejoins write nothing."""
    leader, follower = stable(server.bootstrap, name, 2)
    count = len(of_group(wire, name))
    assert leader.heartbeat() == 0
    assert not follower.join().error_code
    assert len(of_group(wire, name)) == count
    both: list[Member] = [leader, follower]
    for each in both:
        each.ask_to_join(protocols={"range": subscription("other")})
    for each in both:
        assert not each.take().error_code
    assert len(of_group(wire, name)) == count
    finish(sorted(both, key=lambda each: not each.leads))
    assert len(of_group(wire, name)) == count + 1


@pytest.mark.parametrize("excluded", [True, False])
def test_pattern_matches_internal_topics_only_on_request(wire: Wire, server: Server, name: str, excluded: bool) -> None:
    """`exclude.internal.topics` of our consumer applies to patterns. Any consumer may read the topic by its name."""
    wire.create_topic(name)
    wire.produce(name, batch([b"x"]))
    wire.find_coordinator(name, 0)
    with Consumer(server.bootstrap, group_id=name, config={"exclude.internal.topics": excluded}) as consumer:
        consumer.subscribe(f"^({name}|{TOPIC})$")

        def assigned() -> set[str]:
            consumer.poll(0.1)
            return {topic for topic, _ in consumer.assignment()}

        until(assigned, lambda found: found == ({name} if excluded else {name, TOPIC}), "the assignment")


def test_admin_describes_members_with_unreadable_assignments(server: Server, name: str) -> None:
    (member,) = stable(server.bootstrap, name)
    with Admin(server.bootstrap) as admin:
        (shown,) = admin.describe_group(name).members
    assert (shown.member_id, shown.assignment) == (member.member_id, None)


def test_admin_moves_and_deletes_groups(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    wire.produce(name, batch([b"x"] * 5))
    simple_commit(wire, name, name, {0: 2})
    with Admin(server.bootstrap) as admin:
        assert admin.seek_group(name, Target(shift=2), dry_run=True) == [(name, 0, 2, 4)]
        assert admin.committed(name) == {(name, 0): 2}
        admin.seek_group(name, EARLIEST)
        assert admin.committed(name) == {(name, 0): 0}
        admin.delete_offsets(name, [(name, 0)])
        assert admin.committed(name) == {}
        admin.delete_groups(name)
        assert admin.describe_group(name).state == "Dead"
