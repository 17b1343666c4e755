"""Members of the consumer protocol (KIP-848) at the protocol level: one request at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from oncelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.wire import Wire, retried, until

REBALANCE_MS = 60_000
LEAVE = -1
LEAVE_STATIC = -2
GROUP_RESOURCE = 32

Owned = Mapping[UUID, Iterable[int]]
"""The partitions of a member, by the topics' ids."""


def listed(owned: Owned | None) -> list[TopicPartitions] | None:
    """Return partitions as requests list them."""
    if owned is None:
        return None
    return [TopicPartitions(topic_id=topic, partitions=sorted(some)) for topic, some in owned.items() if some]


def heartbeat(wire: Wire, group: str, version: int | None = None, **fields: Any) -> Any:
    """Send one ConsumerGroupHeartbeat. Return the response, even an error, unless it is temporary."""
    if "owned" in fields:
        fields["topic_partitions"] = listed(fields.pop("owned"))
    request = ConsumerGroupHeartbeatRequest(group_id=group, **fields)
    return retried(lambda: wire.call(request, version))


def refusal(wire: Wire, group: str, version: int | None = None, **fields: Any) -> tuple[int, str | None]:
    """Send one ConsumerGroupHeartbeat, and return the error with its message."""
    answer = heartbeat(wire, group, version, **fields)
    return answer.error_code, answer.error_message


class NewMember:
    """A member of the consumer protocol. It knows what a client would: its epoch and what it owns."""

    def __init__(self, wire: Wire, group: str, member_id: str = "m", **identity: Any) -> None:
        """`identity` has the fields `instance_id` and `rack_id`."""
        self.wire, self.group, self.member_id = wire, group, member_id
        self.identity = identity
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}

    def beat(self, **fields: Any) -> Any:
        """Send a heartbeat with the fields that a client sends if nothing has changed, and take over the answer."""
        given: dict[str, Any] = {"member_id": self.member_id, "member_epoch": self.epoch}
        if "instance_id" in self.identity:
            given["instance_id"] = self.identity["instance_id"]
        answer = heartbeat(self.wire, self.group, **{**given, **fields})
        if not answer.error_code:
            self.epoch = answer.member_epoch
            found = assigned(answer)
            if found is not None:
                self.owned = found
        return answer

    def join(self, *topics: str, **fields: Any) -> Any:
        """Join, or join again, with a subscription to these topics, and owning nothing."""
        self.owned = {}
        given = {"subscribed_topic_names": list(topics), "rebalance_timeout_ms": REBALANCE_MS, "owned": {}}
        return self.beat(**{"member_epoch": 0, **self.identity, **given, **fields})

    def report(self, **fields: Any) -> Any:
        """Send a heartbeat that says what the member owns."""
        return self.beat(**{"owned": self.owned, **fields})

    def leave(self, epoch: int = LEAVE, **fields: Any) -> Any:
        return self.beat(member_epoch=epoch, **fields)

    def until_owns(self, wanted: Owned) -> None:
        """Report what the member owns until it owns exactly this."""
        want = {topic: sorted(some) for topic, some in wanted.items()}

        def ask() -> dict[UUID, list[int]]:
            answer = self.report()
            assert not answer.error_code, answer
            return self.owned

        until(ask, lambda owned: owned == want, f"{self.member_id} owns {want}")

    def joined(self, *topics: str, owns: Owned, **fields: Any) -> NewMember:
        """Join and wait until the member owns exactly this."""
        answer = self.join(*topics, **fields)
        assert not answer.error_code, answer
        self.until_owns(owns)
        return self


def assigned(answer: Any) -> dict[UUID, list[int]] | None:
    """Return the assignment in a response by topic, None if it has none."""
    if answer.assignment is None:
        return None
    return {each.topic_id: sorted(each.partitions) for each in answer.assignment.topic_partitions}


def owned_together(*members: NewMember) -> dict[UUID, list[int]]:
    """Return what members own by topic. A partition with two owners is there twice."""
    found: dict[UUID, list[int]] = {}
    for member in members:
        for topic, some in member.owned.items():
            found[topic] = sorted([*found.get(topic, []), *some])
    return found


def settle(*members: NewMember) -> None:
    """Let members send heartbeats until the group is stable, and all have its epoch."""

    def ask() -> bool:
        for each in members:
            answer = each.report()
            assert not answer.error_code, answer
        found = describe_consumer(members[0].wire, members[0].group)
        return bool(found.group_state == "Stable" and {each.epoch for each in members} == {found.group_epoch})

    until(ask, bool, "the group is stable")


def seen_topic(wire: Wire, name: str, partitions: int = 1) -> UUID:
    """Create a topic, and wait until the coordinator of the group of the same name knows it."""
    topic = wire.create_topic(name, partitions)
    until_seen(wire, name, name, partitions)
    return topic


def until_seen(wire: Wire, group: str, topic: str, partitions: int) -> None:
    """Wait until the group's coordinator knows a topic and all its partitions."""
    wire.find_coordinator(group, 0)
    probe = NewMember(wire, f"{group}-probe-{topic}", "probe")
    probe.join(topic)
    until(
        lambda: (probe.report(), sum(map(len, probe.owned.values())))[1],
        lambda found: found == partitions,
        f"the coordinator knows {topic}",
    )
    probe.leave()


def describe_consumer(wire: Wire, group: str, version: int | None = None, **fields: Any) -> Any:
    """Describe one group of the consumer protocol."""
    request = ConsumerGroupDescribeRequest(group_ids=[group], **fields)
    return retried(lambda: wire.call(request, version).groups[0])


def delete_topic(wire: Wire, name: str) -> None:
    """Delete a topic."""
    answer = wire.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000))
    assert not answer.responses[0].error_code, answer


def add_partitions(wire: Wire, name: str, count: int) -> None:
    """Extend a topic to so many partitions."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=10_000
    )
    answer = wire.call(request)
    assert not answer.results[0].error_code, answer


def configure_group(wire: Wire, group: str, **configs: str) -> int:
    """Set configs of a group (`_` replaces `.`), and return the error code."""
    entries = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=entries)
    answer = wire.call(IncrementalAlterConfigsRequest(resources=[resource]))
    error: int = answer.responses[0].error_code
    return error
