"""Quotas on three brokers: each broker follows all changes, and replication and markers have no quota."""

from __future__ import annotations

from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.processes import wait_until
from support.quotas import KEYS, Entity, altered, described
from support.wire import Wire, batch

EVERYONE: Entity = (("user", None),)
"""The brokers' connections are anonymous, too."""
TESTER: Entity = (("user", None), ("client-id", "wire"))


def have(wires: list[Wire], quotas: dict[Entity, dict[str, float]]) -> bool:
    wanted = {tuple(sorted(entity, key=str)): values for entity, values in quotas.items()}
    return all(described(wire) == wanted for wire in wires)


def test_each_broker_uses_all_quotas(wires: list[Wire]) -> None:
    assert altered(wires[0], EVERYONE, request_percentage=0.001).error_code == 0
    wait_until(lambda: have(wires, {EVERYONE: {"request_percentage": 0.001}}), "all brokers have the quota")
    request = MetadataRequest(topics=[])
    assert all(wire.call(request, 8).throttle_time_ms > 0 for wire in wires)
    assert altered(wires[1], EVERYONE, request_percentage=None).error_code == 0
    wait_until(lambda: have(wires, {}), "no broker has the quota")
    assert not any(wire.call(request, 8).throttle_time_ms for wire in wires)


def test_brokers_have_no_quota(wires: list[Wire]) -> None:
    ample, scarce = dict.fromkeys(KEYS, 1e9), dict.fromkeys(KEYS, 1.0)
    scarce["request_percentage"] = 0.001
    assert altered(wires[0], TESTER, **ample).error_code == 0
    assert altered(wires[0], EVERYONE, **scarce).error_code == 0
    wait_until(lambda: have(wires, {TESTER: ample, EVERYONE: scarce}), "all brokers have the quotas")
    topic = CreatableTopic(name="t", num_partitions=3, replication_factor=3)
    assert not wires[0].call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics[0].error_code
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])

    def in_sync() -> list[int]:
        return [len(each.isr_nodes) for each in wires[0].call(request, 9).topics[0].partitions]

    wait_until(lambda: in_sync() == [3, 3, 3], "all replicas are in sync")
    leaders = {each.partition_index: each.leader_id for each in wires[0].call(request, 9).topics[0].partitions}
    for partition, leader in leaders.items():
        for _ in range(20):
            data = PartitionProduceData(index=partition, records=bytes(batch([b"x" * 100_000])))
            produced = TopicProduceData(name="t", partition_data=[data])
            answer = wires[leader - 1].call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[produced]), 11)
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert answer.throttle_time_ms == 0
    assert in_sync() == [3, 3, 3]
