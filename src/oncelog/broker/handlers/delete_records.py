"""DeleteRecords: move the start of partitions to a later offset, also in the followers (KIP-107)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import wait_for_event
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.cluster.replica import Replica
from oncelog.cluster.topics import INTERNAL_TOPICS
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_HIGH_WATERMARK = -1
"""The offset in a request that means: delete all committed records."""
_NONE = -1
"""The low watermark in the result of a partition that has an error."""

_Deleted = list[tuple[Replica, DeleteRecordsPartitionResult]]
"""The partitions whose new start offsets are on the device, with their results."""


async def handle(
    cache: MetadataCache,
    partitions: Partitions,
    directories: LogDirectories,
    logger: logging.Logger,
    request: DeleteRecordsRequest,
    ctx: RequestContext,
) -> DeleteRecordsResponse:
    """Return an error or the new start offset for each partition, when the live followers have it, too.

    The results of partitions whose followers do not have it in time are REQUEST_TIMED_OUT. If the client disconnects,
    the wait ends.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + request.timeout_ms / 1000
    gone = asyncio.Event()
    with ctx.session.on_disconnect(gone.set):  # the client may disconnect before the wait begins
        response, deleted = await _delete_all(cache, partitions, directories, logger, request, ctx)
        yielder = Yielder()
        for replica, answer in deleted:
            await yielder.next()
            left_ms = 0 if gone.is_set() else max(0, int((end_s - loop.time()) * 1000))
            await _replicated(replica, answer, left_ms, ctx)
    return response


async def _delete_all(
    cache: MetadataCache,
    partitions: Partitions,
    directories: LogDirectories,
    logger: logging.Logger,
    request: DeleteRecordsRequest,
    ctx: RequestContext,
) -> tuple[DeleteRecordsResponse, _Deleted]:
    """Move the start of each log, and wait until the offsets are on the device.

    Kafka does not wait for the device. If the offset of a partition cannot be written, its error is
    KAFKA_STORAGE_ERROR: the records are deleted, but a crash may bring them back.
    """
    response = DeleteRecordsResponse()
    deleted: list[tuple[Replica, DeleteRecordsPartitionResult, DataDirectory | None]] = []
    yielder = Yielder()
    refused = RefusedItems()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        for wanted in topic.partitions:
            await yielder.next()
            answer = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=_NONE)
            try:
                ctx.authorize(AclOperation.DELETE, AclResource.TOPIC, topic.name)
                replica = _delete(cache.image, partitions, topic.name, wanted.partition_index, wanted.offset)
                answer.low_watermark = replica.log.log_start_offset
                deleted.append((replica, answer, directories.find(topic.name, wanted.partition_index)))
            except ProtocolError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    refused.add("%s-%d: %s", topic.name, wanted.partition_index, error)
                answer.error_code = error.code
            result.partitions.append(answer)
        response.topics.append(result)
    refused.log(logger, "cannot delete records")
    if not deleted:
        return response, []
    # The periodic write would be too late: a crash before it would undo the deletion.
    written = await partitions.checkpoints.write({each for _, _, each in deleted if each is not None})
    done: _Deleted = []
    unwritten = RefusedItems()
    for replica, answer, log_dir in deleted:
        await yielder.next()
        if log_dir not in written:
            unwritten.add("%s-%d", replica.topic, answer.partition_index)
            answer.error_code, answer.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, _NONE
        else:
            done.append((replica, answer))
    unwritten.log(logger, "cannot write the new start offset of a partition")
    return response, done


async def _replicated(
    replica: Replica, answer: DeleteRecordsPartitionResult, timeout_ms: int, ctx: RequestContext
) -> None:
    """Wait until all live followers have deleted the records too, and write errors into `answer`."""

    def ready(replica: Replica) -> bool:
        return replica.term is None or replica.term.low_watermark >= answer.low_watermark

    done = await wait_for_event(ready, [replica], timeout_ms, ctx.session)
    if replica.term is None:
        answer.error_code, answer.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, _NONE
    elif not done:
        answer.error_code, answer.low_watermark = ErrorCode.REQUEST_TIMED_OUT, replica.term.low_watermark


def _delete(image: MetadataImage, partitions: Partitions, topic: str, partition: int, offset: int) -> Replica:
    """Move the start of a log, and return its replica. Housekeeping deletes the segments before it later."""
    if topic in INTERNAL_TOPICS and image.topic(topic) is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"cannot delete records of the internal topic {topic}")
    replica = partitions.require(topic, partition)
    log = replica.log
    if log.config.compact and not log.config.delete:
        message = f"cannot delete records of {topic} by offset, because its cleanup.policy is compact"
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
    wanted = log.high_watermark if offset == _HIGH_WATERMARK else offset
    if wanted < 0:
        raise ProtocolError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {wanted} is invalid; use at least 0, or -1 for the high watermark"
        )
    log.advance_log_start(wanted)
    replica.leading().deleted()
    return replica


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DeleteRecords."""
    return partial(handle, services.cache, services.partitions, services.directories, services.runtime.logger)
