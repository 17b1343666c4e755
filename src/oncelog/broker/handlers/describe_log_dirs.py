"""DescribeLogDirs: what lies in the broker's log directories, and which of them have failed (KIP-113, 827).

Source: Kafka's `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext
    from oncelog.broker.data_directory import DataDirectory

Wanted = set[tuple[str, int]] | None
"""(topic, partition); None for all."""


def handle(broker: Broker, request: DescribeLogDirsRequest, _ctx: RequestContext) -> Awaitable[DescribeLogDirsResponse]:
    """Each directory has its own error; sizes are bytes of segments, `offset_lag` is behind the high watermark."""
    wanted: Wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    return _describe(broker, wanted)


async def _describe(broker: Broker, wanted: Wanted) -> DescribeLogDirsResponse:
    results = [await _directory(broker, directory, wanted) for directory in broker.directories]
    return DescribeLogDirsResponse(results=results)


async def _directory(broker: Broker, directory: DataDirectory, wanted: Wanted) -> DescribeLogDirsResult:
    try:
        total, usable = await broker.offload(directory.disk.space, directory.path)
    except OSError:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.absolute_path)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for replica in _replicas(broker, directory, wanted):
        topics.setdefault(replica.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=replica.partition,
                partition_size=replica.log.size_bytes,
                offset_lag=max(replica.log.high_watermark - replica.log.log_end_offset, 0),
            )
        )
    return DescribeLogDirsResult(
        log_dir=directory.absolute_path,
        topics=[DescribeLogDirsTopic(name=name, partitions=found) for name, found in sorted(topics.items())],
        total_bytes=total,
        usable_bytes=usable,
    )


def _replicas(broker: Broker, directory: DataDirectory, wanted: Wanted) -> list[Replica]:
    """The partitions of a directory, opened where they were not."""
    found = []
    for topic in broker.metadata.topics():
        for index in range(topic.partition_count):
            if wanted is not None and (topic.name, index) not in wanted:
                continue
            try:
                replica = broker.partitions.get(topic.name, index)
            except ProtocolError as error:  # it cannot be opened, which takes its directory offline
                broker.log.error("%s", error)
                continue
            if replica is not None and broker.directories.find(topic.name, index) is directory:
                found.append(replica)
    return found
