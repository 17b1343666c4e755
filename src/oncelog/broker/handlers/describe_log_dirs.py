"""DescribeLogDirs: what lies in the broker's log directories, and which of them have failed (KIP-113, 827).

Source: Kafka's `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.turns import counted
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
    from oncelog.broker.requests.context import RequestContext
    from oncelog.broker.storage.data_directory import DataDirectory

Partitions = dict[str, list[DescribeLogDirsPartition]]
"""By topic."""


async def handle(broker: Broker, request: DescribeLogDirsRequest, _ctx: RequestContext) -> DescribeLogDirsResponse:
    """Describe each log directory, or return its error. Sizes are bytes of segments.

    `offset_lag` is the distance of the log end offset to the high watermark.
    """
    found = await _by_directory(broker, await counted(_wanted(broker, request)))
    results = [await _directory(broker, each, found.get(each, {})) for each in broker.directories]
    return DescribeLogDirsResponse(results=results)


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> Iterator[tuple[str, int]]:
    if request.topics is None:
        for info in tuple(broker.metadata.topics()):
            for index in range(info.partition_count):
                yield info.name, index
        return
    for topic in request.topics:
        for index in topic.partitions:
            yield topic.topic, index


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
    """Return the partitions of each directory. Open their logs, and let the loop serve others after each."""
    found: dict[DataDirectory, Partitions] = {}
    refused = RefusedItems()
    for topic, index in wanted:
        try:
            await broker.partitions.open_in_turns(topic, index)
            replica = broker.partitions.get(topic, index)
        except ProtocolError as error:  # it cannot be opened, which takes its directory offline
            refused.add("%s", error)
            await asyncio.sleep(0)
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
    refused.log(broker.log, "cannot describe a log", logging.ERROR)
    return found
