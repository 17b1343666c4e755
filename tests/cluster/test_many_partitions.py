"""Topics of so many partitions that worker threads decode, encode and free the requests and responses."""

from __future__ import annotations

from pathlib import Path

from oncelog.broker.requests.large_messages import FEW_ITEMS
from oncelog.net.connection import ClientConnection, connect
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from support.broker_sets import NOW, Brokers, everywhere, run
from support.turns import until

PARTITIONS = FEW_ITEMS + 500


async def write_to_all(connection: ClientConnection) -> None:
    """Write one record to each partition with acks=all."""
    data = [
        PartitionProduceData(index=index, records=build_batch([Record(0, NOW, None, b"%d" % index)]))
        for index in range(PARTITIONS)
    ]
    topic = TopicProduceData(name="t", partition_data=data)
    answer = await connection.call(
        ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic]), 11, timeout_ms=120_000
    )
    codes = [part.error_code for part in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.NONE] * PARTITIONS


async def read_all(connection: ClientConnection, isolation_level: int) -> None:
    """Read the record of each partition in one Fetch."""
    named = [FetchPartition(partition=index, partition_max_bytes=10_000) for index in range(PARTITIONS)]
    request = FetchRequest(
        session_epoch=-1, isolation_level=isolation_level, topics=[FetchTopic(topic="t", partitions=named)]
    )
    parts = (await connection.call(request, 12, timeout_ms=60_000)).responses[0].partitions
    assert sorted(part.partition_index for part in parts) == list(range(PARTITIONS))
    assert all(part.error_code == ErrorCode.NONE and part.records for part in parts)


def test_followers_and_consumers_read_2500_partitions_of_one_leader(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        leader, follower = [await brokers.start(node_id, min_insync_replicas="2") for node_id in (1, 2)]
        await until(lambda: all(len(broker.metadata.image.brokers) == 2 for broker in (leader, follower)))
        await leader.topics.create("t", assignment=[(1, 2)] * PARTITIONS)
        await everywhere(brokers, "t")
        connection = await connect("127.0.0.1", leader.server.listeners["PLAINTEXT"].port)
        try:
            await write_to_all(connection)
            for isolation_level in (0, 1):
                await read_all(connection, isolation_level)
        finally:
            connection.close()

    run(Brokers(tmp_path), body)
