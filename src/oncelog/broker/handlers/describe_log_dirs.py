"""DescribeLogDirs: the partitions in each log directory of the broker, and failed directories (KIP-113, 827).

Source: Kafka's `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import counted
from oncelog.broker.workers import Workers
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from oncelog.protocol.topics import TopicPartition

SPACE_WAIT_S = 10.0
"""How long to wait for the size of a file system, whose device may hang."""

ByTopic = dict[str, list[DescribeLogDirsPartition]]
"""The described partitions of each topic."""


@dataclass(frozen=True, slots=True)
class DescribeLogDirs:
    """The handler, with the services that it uses."""

    cache: MetadataCache
    partitions: Partitions
    directories: LogDirectories
    workers: Workers
    logger: logging.Logger

    async def handle(self, request: DescribeLogDirsRequest, ctx: RequestContext) -> DescribeLogDirsResponse:
        """Describe each log directory, or return its error. Sizes are bytes of segments.

        `offset_lag` is the high watermark minus the log end offset, at least 0, as in Kafka.
        """
        ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
        found = await self._by_directory(await counted(_wanted(self.cache.image, request)))
        results = [await self._directory(each, found.get(each, {})) for each in self.directories]
        return DescribeLogDirsResponse(results=results)

    async def _directory(self, directory: DataDirectory, found: ByTopic) -> DescribeLogDirsResult:
        try:
            asked = self.workers.on_disk(directory.disk, directory.disk.space, directory.path)
            total, usable = await asyncio.wait_for(asked, SPACE_WAIT_S)
        except (OSError, TimeoutError):
            return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.absolute_path)
        return DescribeLogDirsResult(
            log_dir=directory.absolute_path,
            topics=[
                DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in sorted(found.items())
            ],
            total_bytes=total,
            usable_bytes=usable,
        )

    async def _by_directory(self, wanted: Iterable[TopicPartition]) -> dict[DataDirectory, ByTopic]:
        """Open the logs, and return the partitions of each directory. The loop serves other requests after each log."""
        found: dict[DataDirectory, ByTopic] = {}
        refused = RefusedItems()
        for topic, index in wanted:
            try:
                await self.partitions.open_in_turns(topic, index)
                replica = self.partitions.opened_replica(topic, index)
            except ProtocolError as error:  # the log cannot be opened, and its directory goes offline
                refused.add("%s", error)
                await asyncio.sleep(0)
                continue
            log_dir = self.directories.find(topic, index)
            if replica is not None and log_dir is not None:
                partition = DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=replica.log.size_bytes,
                    offset_lag=max(replica.log.high_watermark - replica.log.log_end_offset, 0),
                )
                found.setdefault(log_dir, {}).setdefault(topic, []).append(partition)
            await asyncio.sleep(0)
        refused.log(self.logger, "cannot describe a log", logging.ERROR)
        return found


def _wanted(image: MetadataImage, request: DescribeLogDirsRequest) -> Iterator[TopicPartition]:
    if request.topics is None:
        for info in image.topics():
            for index in range(info.partition_count):
                yield info.name, index
        return
    for topic in request.topics:
        for index in topic.partitions:
            yield topic.topic, index


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeLogDirs."""
    return DescribeLogDirs(
        services.cache, services.partitions, services.directories, services.runtime.workers, services.runtime.logger
    ).handle
