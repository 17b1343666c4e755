"""The consumer protocol (KIP-848) while it is off: a clear error at once, and classic groups still work.

It is off with `group.coordinator.rebalance.protocols=classic`, and while the feature `group.version` has level 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from oncelog import Admin, errors
from oncelog import Consumer as OurConsumer
from oncelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from support.groups import stable
from support.servers import Server
from support.transactions import SAFE_DOWNGRADE, UPGRADE, features, level_of, update_features
from support.wire import Wire, code, until

CLASSIC_ONLY = {"group.coordinator.rebalance.protocols": "classic"}
GROUP_VERSION = "group.version"


@pytest.fixture(params=["setting", "feature"])
def classic(start_server: Callable[[dict[str, str]], Server], request: pytest.FixtureRequest) -> Server:
    if request.param == "setting":
        return start_server(CLASSIC_ONLY)
    server = start_server({})
    with Wire(server.bootstrap) as wire:
        set_group_version(wire, 0, SAFE_DOWNGRADE)
    return server


def set_group_version(wire: Wire, level: int, kind: int) -> None:
    """Change the level, and wait until clients see it."""
    assert not update_features(wire, (GROUP_VERSION, level, kind)).error_code
    until(lambda: level_of(features(wire), GROUP_VERSION), lambda found: found == level, f"{GROUP_VERSION} is {level}")


def beat(wire: Wire, group: str, version: int = 1) -> int:
    """Return the error of a first heartbeat."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[group],
        topic_partitions=[],
    )
    return int(wire.call(request, version).error_code)


@contextlib.contextmanager
def librdkafkas(server: Server, group: str, topic: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group, "group.protocol": "consumer"})
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def fatal(consumer: Consumer) -> KafkaError:
    """Return the error that ends the consumer's polls."""
    for _ in range(30):
        try:
            message = consumer.poll(1)
        except KafkaException as raised:
            error = raised.args[0]
        else:
            error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._FATAL:
            return error
    raise AssertionError("poll() raises no error in half a minute")


def test_consumer_protocol_is_rejected_at_once_and_classic_groups_still_work(classic: Server, name: str) -> None:
    with Wire(classic.bootstrap) as wire:
        wire.create_topic(name)
        served = wire.versions
        assert served[ConsumerGroupHeartbeatRequest.API_KEY] == served[ConsumerGroupDescribeRequest.API_KEY] == (0, 1)
        unsupported = code("UNSUPPORTED_VERSION")
        for version in (0, 1):
            assert beat(wire, name, version) == unsupported
            described = wire.call(ConsumerGroupDescribeRequest(group_ids=["a", name]), version)
            assert [(group.group_id, group.error_code) for group in described.groups] == [
                ("a", unsupported), (name, unsupported),
            ]  # fmt: skip
    with librdkafkas(classic, name, name) as consumer:
        assert "not supported" in str(fatal(consumer))
    with OurConsumer(classic.bootstrap, group_id=name, group_protocol="consumer") as ours:
        ours.subscribe([name])
        with pytest.raises(errors.UnsupportedError, match="use group_protocol = 'classic' with this broker"):
            ours.poll(30)
    (member,) = stable(classic.bootstrap, name)
    with Admin(classic.bootstrap) as admin:
        group = admin.describe_group(name)
        assert (group.state, len(group.members)) == ("Stable", 1)
    member.leave()


def test_group_version_turns_the_protocol_off_and_on(
    start_server: Callable[[dict[str, str]], Server], name: str
) -> None:
    with Wire(start_server({}).bootstrap) as wire:
        found = features(wire)
        supported = {each.name: (each.min_version, each.max_version) for each in found.supported_features}
        assert (supported[GROUP_VERSION], level_of(found, GROUP_VERSION)) == ((0, 1), 1)
        wire.create_topic(name)
        wire.find_coordinator(name, 0)
        until(lambda: beat(wire, name), lambda error: error == 0, "the member joins")
        for change in ((GROUP_VERSION, 0, UPGRADE), (GROUP_VERSION, 2, UPGRADE)):
            assert update_features(wire, change).error_code == code("INVALID_UPDATE_VERSION")
        set_group_version(wire, 0, SAFE_DOWNGRADE)
        assert beat(wire, name) == code("UNSUPPORTED_VERSION")
        set_group_version(wire, 1, UPGRADE)
        until(lambda: beat(wire, name), lambda error: error == 0, "the member joins again")
