"""Kill a broker with many or large logs, and use it while it recovers them."""

from __future__ import annotations

import time

from attack_resources import produce
from attack_target import AT_ONCE, KB, PATIENCE_S, Target, check, create, waves

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.wire import Session, Wire, batch

LOGS = 2000
PRODUCERS = 10
BATCHES = 10_000
RECOVERING = frozenset({ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_NOT_AVAILABLE})


def write_many_logs(target: Target) -> None:
    """Write to many logs, then kill the broker."""
    with target.wire() as wire:
        create(wire, ["many"], LOGS)
        for number in range(PRODUCERS):
            records = bytes(batch([b"x"], Session(10**6 + number, 0)))
            data = [PartitionProduceData(index=index, records=records) for index in range(LOGS)]
            topics = [TopicProduceData(name="many", partition_data=data)]
            answer = wire.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), 11)
            check(answer, "responses.partition_responses", LOGS)
    target.restart()


def read_many_logs(target: Target) -> None:
    """Query the end of all logs until all are recovered. Then write to them."""
    with target.wire() as wire:
        _until_recovered(wire, "many", LOGS, PRODUCERS)


def write_large_log(target: Target) -> None:
    """Write many batches to a log, then kill the broker."""
    with target.wire() as wire:
        wire.create_topic("large")
        request = produce("large", bytes(batch([bytes(10 * KB)])))
        for wave in waves(BATCHES, 50):
            for _ in wave:
                wire.send(request, 11)
            for _ in wave:
                check(wire.receive(request, 11), "responses.partition_responses", 1)
    target.restart()


def read_large_log(target: Target) -> None:
    """Query the end of the log until it is recovered. Then write to it."""
    with target.wire() as wire:
        _until_recovered(wire, "large", 1, BATCHES)


def _until_recovered(wire: Wire, topic: str, partitions: int, records: int) -> None:
    """Check that no log has lost records."""
    left = set(range(partitions))
    end = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < end, f"{len(left)} logs are not recovered"
        asked = sorted(left)[:AT_ONCE]
        wanted = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in asked]
        topics = [ListOffsetsTopic(name=topic, partitions=wanted)]
        answer = wire.call(ListOffsetsRequest(replica_id=-1, topics=topics), 7).topics[0].partitions
        assert RECOVERING.issuperset(found.error_code for found in answer)
        ready = [found for found in answer if not found.error_code]
        assert all(found.offset == records for found in ready)
        left -= {found.partition_index for found in ready}
    data = [PartitionProduceData(index=index, records=bytes(batch([b"x"]))) for index in range(partitions)]
    written = [TopicProduceData(name=topic, partition_data=data)]
    answer = wire.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=written), 11)
    check(answer, "responses.partition_responses", partitions)
