"""DescribeQuorum: the controller of a cluster, in the form of Kafka's metadata quorum."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_quorum import DescribeQuorumRequest, RequestedPartition, RequestedTopic
from support.servers import OncelogCluster
from support.wire import Wire, code, until

METADATA = "__cluster_metadata"
VERSIONS = (0, 1, 2)


def asked(wire: Wire, *places: tuple[str, int], version: int = 2) -> Any:
    topics = [
        RequestedTopic(topic_name=name, partitions=[RequestedPartition(partition_index=index)])
        for name, index in places
    ]
    return wire.call(DescribeQuorumRequest(topics=topics), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_leader_is_a_voter_with_the_whole_log(wire: Wire, version: int) -> None:
    answer = asked(wire, (METADATA, 0), version=version)
    (topic,) = answer.topics
    (found,) = topic.partitions
    assert (answer.error_code, topic.topic_name, found.partition_index, found.error_code) == (0, METADATA, 0, 0)
    assert found.leader_epoch > 0
    assert found.high_watermark > 0
    voters = {voter.replica_id: voter for voter in found.current_voters}
    assert voters[found.leader_id].log_end_offset >= found.high_watermark
    if version == 2:
        assert found.leader_id in {node.node_id for node in answer.nodes}


def test_leader_is_a_running_broker_of_a_single_server(wire: Wire) -> None:
    leader = asked(wire, (METADATA, 0)).topics[0].partitions[0].leader_id
    assert [broker.broker_id for broker in wire.call(DescribeClusterRequest()).brokers] == [leader]


def test_changes_of_the_metadata_advance_the_high_watermark(wire: Wire, name: str) -> None:
    before = asked(wire, (METADATA, 0)).topics[0].partitions[0].high_watermark
    wire.create_topic(name)
    assert asked(wire, (METADATA, 0)).topics[0].partitions[0].high_watermark > before


@pytest.mark.parametrize("places", [((METADATA, 1),), (("orders", 0),), ((METADATA, 0), ("orders", 0))], ids=str)
def test_other_partitions_are_unknown(wire: Wire, places: tuple[tuple[str, int], ...]) -> None:
    answer = asked(wire, *places)
    assert answer.error_code == 0
    unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert [part.error_code for topic in answer.topics for part in topic.partitions] == [unknown] * len(places)


def test_brokers_agree_on_the_controller_and_on_its_successor(replicated_cluster: OncelogCluster) -> None:
    """The others are observers, because only the controller writes to the store."""

    def answers() -> list[Any]:
        found = []
        for address in replicated_cluster.bootstrap.split(","):
            with Wire(address) as wire:
                found.append(asked(wire, (METADATA, 0)).topics[0].partitions[0])
        return found

    def agreed() -> Any:
        def same(found: list[Any]) -> bool:
            return len({(each.leader_id, each.leader_epoch) for each in found}) == 1

        found = until(answers, same, "the brokers agree")[0]
        voters = [voter.replica_id for voter in found.current_voters]
        observers = {observer.replica_id: observer.log_end_offset for observer in found.observers}
        assert voters == [found.leader_id]
        assert set(observers.values()) == {-1}
        assert len(observers) == 2
        return found

    before = agreed()
    replicated_cluster.kill(before.leader_id)
    replicated_cluster.wait_ready()
    after = agreed()
    assert after.leader_epoch > before.leader_epoch
