"""DescribeLogDirs: what lies in the broker's log directories, and which of them have failed (KIP-113, 827).

Source: Kafka's `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

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

Partitions = dict[str, list[DescribeLogDirsPartition]]
"""By topic."""


def handle(broker: Broker, request: DescribeLogDirsRequest, _ctx: RequestContext) -> Awaitable[DescribeLogDirsResponse]:
    """Each directory has its own error; sizes are bytes of segments, `offset_lag` is behind the high watermark."""
    return _describe(broker, _wanted(broker, request))


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> Iterable[tuple[str, int]]:
    if request.topics is None:
        return [(topic.name, index) for topic in broker.metadata.topics() for index in range(topic.partition_count)]
    return dict.fromkeys((topic.topic, partition) for topic in request.topics for partition in topic.partitions)


async def _describe(broker: Broker, wanted: Iterable[tuple[str, int]]) -> DescribeLogDirsResponse:
    found = await _by_directory(broker, wanted)
    results = [await _directory(broker, each, found.get(each, {})) for each in broker.directories]
    return DescribeLogDirsResponse(results=results)


async def _directory(broker: Broker, directory: DataDirectory, found: Partitions) -> DescribeLogDirsResult:
    try:
        total, usable = await broker.offload(directory.disk.space, directory.path)
    except OSError:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.absolute_path)
    return DescribeLogDirsResult(
        log_dir=directory.absolute_path,
        topics=[DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in sorted(found.items())],
        total_bytes=total,
        usable_bytes=usable,
    )


async def _by_directory(broker: Broker, wanted: Iterable[tuple[str, int]]) -> dict[DataDirectory, Partitions]:
    """What lies where. A log is opened if it was not; between any two the other requests have their turn."""
    found: dict[DataDirectory, Partitions] = {}
    for topic, index in wanted:
        try:
            await broker.partitions.open_in_turns(topic, index)
            replica = broker.partitions.get(topic, index)
        except ProtocolError as error:  # it cannot be opened, which takes its directory offline
            broker.log.error("%s", error)
            continue
        home = broker.directories.find(topic, index)
        if replica is not None and home is not None:
            partition = DescribeLogDirsPartition(
                partition_index=index,
                partition_size=replica.log.size_bytes,
                offset_lag=max(replica.log.high_watermark - replica.log.log_end_offset, 0),
            )
            found.setdefault(home, {}).setdefault(topic, []).append(partition)
        await asyncio.sleep(0)
    return found
