"""The consumer protocol (KIP-848) on a broker without it: a clear error at once, and classic groups still work.

Apache Kafka answers so with `group.coordinator.rebalance.protocols=classic`; oncelog always.
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
from support.wire import Wire, code

CLASSIC_ONLY = {"group.coordinator.rebalance.protocols": "classic"}


@pytest.fixture
def classic(start_server: Callable[[dict[str, str]], Server]) -> Server:
    return start_server(CLASSIC_ONLY)


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
            beat = ConsumerGroupHeartbeatRequest(group_id=name, member_id="m", rebalance_timeout_ms=1_000)
            assert wire.call(beat, version).error_code == unsupported
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
