"""Which metadata of brokers are accepted: brokers with old metadata name former leaders."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from oncelog.client.discovery.topology import Topology
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.protocol.schema import NO_UUID

ID = uuid4()


def answer(leader: int, epoch: int, topic_id: UUID = ID, code: ErrorCode = ErrorCode.NONE) -> MetadataResponse:
    one = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    partitions = [] if code else [one]
    topic = MetadataResponseTopic(name="t", topic_id=topic_id, error_code=code, partitions=partitions)
    return MetadataResponse(topics=[topic])


@pytest.fixture(params=["known", "forgotten", "asked for with all others", "denied"])
def topology(request: pytest.FixtureRequest) -> Topology:
    """Return a topology that has seen broker 2 lead from epoch 5 on, whatever its current state."""
    made = Topology()
    made.update(answer(2, 5))
    if request.param == "forgotten":
        made.forget("t")
        made.forget("t")
    elif request.param == "denied":
        made.update(answer(-1, -1, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    if request.param == "asked for with all others":
        update = made.update
        made.update = lambda response: update(response, everything=True)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("topic_id", [ID, NO_UUID])
def test_leader_epochs_do_not_decrease(topology: Topology, topic_id: UUID) -> None:
    topology.update(answer(2, 5, topic_id))
    topology.update(answer(1, 4, topic_id))
    assert topology.leader("t", 0) == 2
    topology.forget("t")
    assert topology.leader("t", 0) == -1, "must be requested again"
    topology.update(answer(1, 4, topic_id))
    assert topology.leader("t", 0) == 2, "older than the known epoch"
    topology.forget("t")
    topology.update(answer(-1, 5, topic_id))
    assert topology.leader("t", 0) == -1, "as new as the known epoch"
    topology.update(answer(3, 6, topic_id))
    assert topology.leader("t", 0) == 3


def test_later_metadata_update_the_leader_of_a_forgotten_topic(topology: Topology) -> None:
    topology.update(answer(1, 4))
    assert topology.leader("t", 0) == 2
    assert topology.topics["t"].partitions[0].leader_epoch == 5


def test_recreated_topic_starts_with_epoch_0(topology: Topology) -> None:
    topology.update(answer(1, 0, uuid4()))
    assert topology.leader("t", 0) == 1
    assert topology.topics["t"].partitions[0].leader_epoch == 0


@pytest.mark.parametrize("listed", [False, True], ids=["error", "not listed"])
def test_deleted_topic_without_an_id_starts_with_any_epoch(listed: bool) -> None:
    topology = Topology()
    topology.update(answer(2, 5, NO_UUID))
    if listed:
        topology.update(MetadataResponse(topics=[]), everything=True)
    else:
        topology.update(answer(-1, -1, NO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    topology.update(answer(1, 0, NO_UUID))
    assert topology.leader("t", 0) == 1


def test_metadata_without_epochs_are_accepted() -> None:
    topology = Topology()
    topology.update(answer(2, 5))
    topology.forget("t")
    topology.update(answer(1, -1))
    assert topology.leader("t", 0) == 1
