"""ACLs on three brokers: each broker follows all changes, and the brokers' own requests need CLUSTER_ACTION."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.permissions import ADMINISTRATOR_HOST, STANDARD_AUTHORIZER, Grant, exists, grant, revoke
from support.processes import wait_until
from support.servers import ReplicatedCluster
from support.wire import Wire, batch

TOPIC, CLUSTER = AclResource.TOPIC, AclResource.CLUSTER
BROKERS = Grant(AclOperation.CLUSTER_ACTION, CLUSTER)
"""What the brokers need, whose connections are anonymous, too."""


@pytest.fixture
def wires(tmp_path: Path) -> Iterator[list[Wire]]:
    """Connect the administrator to each of three brokers."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    cluster = ReplicatedCluster(tmp_path, settings=settings)
    try:
        with ExitStack() as stack:
            wires = [
                stack.enter_context(Wire(address, source=ADMINISTRATOR_HOST))
                for address in cluster.bootstrap.split(",")
            ]
            own = [Grant(AclOperation.ALL, TOPIC, "*", host=ADMINISTRATOR_HOST)]
            grant(wires[0], [*own, Grant(AclOperation.ALL, CLUSTER, host=ADMINISTRATOR_HOST)])
            yield wires
    finally:
        cluster.stop()


def test_each_broker_uses_all_acls(wires: list[Wire]) -> None:
    acl = Grant(AclOperation.READ, TOPIC, "t")
    grant(wires[0], [acl])
    wait_until(lambda: all(exists(wire, acl) for wire in wires), "all brokers have the ACL")
    revoke(wires[1], [acl])
    wait_until(lambda: not any(exists(wire, acl) for wire in wires), "no broker has the ACL")


def test_brokers_need_permission_to_replicate(wires: list[Wire]) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
    answer = wires[0].call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert not answer.topics[0].error_code, answer

    def in_sync() -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        return len(wires[0].call(request, 9).topics[0].partitions[0].isr_nodes)

    def produced() -> set[int]:
        return {wire.produce("t", batch([b"v"])).error_code for wire in wires}

    refused = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    wait_until(lambda: produced() & refused, "the leader waits in vain for its followers")
    grant(wires[0], [BROKERS])
    wait_until(lambda: in_sync() == 3, "the followers replicate")
    assert 0 in produced()
