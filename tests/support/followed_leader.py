"""A leader without a broker, and a replica of a real broker that follows it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from oncelog.broker.broker import Broker
from oncelog.broker.peers import Failure
from oncelog.cluster.brokers import BrokerInfo, broker_path, encode_broker, epoch_path
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import Create, Set
from oncelog.cluster.topic_nodes import write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.log.steps import BATCHES_A_STEP
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW
from support.logs import append_as_follower

ID, OTHER = UUID(int=5), UUID(int=6)
LEADER = 2
BATCHES = 5 * BATCHES_A_STEP


class Leader:
    """Answer the Fetches of a follower with the same records each time, if there are any."""

    def __init__(self, records: bytes = b"") -> None:
        self.records = records
        self.high_watermark = 0
        self.fetches = 0
        self.error = ErrorCode.NONE

    async def request(self, broker: int, _purpose: Any, request: Any, *_: Any) -> Any:
        await asyncio.sleep(0.01)
        if not isinstance(request, FetchRequest) or broker != LEADER:
            return Failure("no such broker")
        self.fetches += 1
        records, self.records = self.records, b""
        data = PartitionData(partition_index=0, high_watermark=self.high_watermark, records=records)
        data.error_code = self.error
        return FetchResponse(session_id=0, responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])])


def batches(start: int = 0, count: int = BATCHES) -> bytes:
    """Return batches of one record each. Producer 7 has sent all of them."""
    return b"".join(
        bytes(
            build_batch(
                [Record(0, NOW, None, b"x")],
                base_offset=offset,
                leader_epoch=0,
                producer_id=7,
                producer_epoch=0,
                base_sequence=offset,
            )
        )
        for offset in range(start, start + count)
    )


async def follower(
    broker: Broker, leader: Leader, topic: str = "t", topic_id: UUID = ID, request: Any = None
) -> Replica:
    """Return a replica that follows broker 2."""
    broker.peers.request = request or leader.request  # type: ignore[method-assign,assignment]
    info = TopicInfo(
        topic, topic_id, (PartitionInfo((1, 2), PartitionState(LEADER, 0, (1, 2), leader_broker_epoch=0)),)
    )
    operations = [Create(epoch_path(LEADER)), Create(broker_path(LEADER), encode_broker(BrokerInfo(0)))]
    async with broker.loader.changing() as changes:
        if LEADER not in broker.metadata.image.brokers:  # otherwise, the controller elects broker 1
            changes.write(operations, broker_path(LEADER))
        write_topic(changes, info)
    await broker.partitions.open_in_turns(topic, 0)
    replica = broker.partitions.opened_replica(topic, 0)
    assert replica is not None
    assert replica.leader == LEADER
    return replica


async def elect(broker: Broker, leader: int, topic: str = "t") -> None:
    path = state_path(topic, 0)
    old = decode_state(broker.store.get(path))
    state = replace(old, leader=leader, leader_epoch=old.leader_epoch + 1, leader_broker_epoch=broker.membership.epoch)
    async with broker.loader.changing() as changes:
        changes.write([Set(path, encode_state(state), old.version)], path)


async def filled(broker: Broker, leader: Leader, topic: str = "t") -> Replica:
    """Return a replica that has followed the leader up to the end of some batches."""
    replica = await follower(broker, leader, topic)
    append(replica, batches())
    return replica


def append(replica: Replica, records: bytes) -> None:
    append_as_follower(replica.log, records, leader_epoch=0, now_ms=NOW)
    replica.appended()


async def ended(replica: Replica) -> None:
    async with asyncio.timeout(60):
        while replica.truncating:
            await asyncio.sleep(0.01)
