"""DeleteRecords: move the start of partitions to a later offset (KIP-107)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.turns import Turns
from oncelog.cluster.metadata import INTERNAL_TOPICS
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext
    from oncelog.broker.storage.data_directory import DataDirectory

_HIGH_WATERMARK = -1
"""As the offset: everything that is committed."""
_NONE = -1
"""As the low watermark: there is none, for something went wrong."""


async def handle(broker: Broker, request: DeleteRecordsRequest, ctx: RequestContext) -> DeleteRecordsResponse:
    """Return an error or the new start offset for each partition. Wait until the offsets are on the device.

    Kafka does not wait for the device. If the offset of a partition cannot be written, its error is
    KAFKA_STORAGE_ERROR: the records are deleted, but a crash may bring them back.
    """
    response = DeleteRecordsResponse()
    deleted: list[tuple[str, DeleteRecordsPartitionResult, DataDirectory | None]] = []
    turns = Turns()
    refused = RefusedItems()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        for wanted in topic.partitions:
            await turns.next()
            answer = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=_NONE)
            try:
                answer.low_watermark = _delete(broker, topic.name, wanted.partition_index, wanted.offset)
                deleted.append((topic.name, answer, broker.directories.find(topic.name, wanted.partition_index)))
            except ProtocolError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    refused.add("%s-%d: %s", topic.name, wanted.partition_index, error)
                answer.error_code = error.code
            result.partitions.append(answer)
        response.topics.append(result)
    refused.log(broker.log, "cannot delete records")
    if not deleted:
        return response
    written = await broker.checkpoints.write()  # do not wait for the periodic write: a crash would undo the deletion
    unwritten = RefusedItems()
    for name, answer, home in deleted:
        await turns.next()
        if home not in written:
            unwritten.add("%s-%d", name, answer.partition_index)
            answer.error_code, answer.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, _NONE
    unwritten.log(broker.log, "cannot write the new start offset of a partition")
    return response


def _delete(broker: Broker, topic: str, partition: int, offset: int) -> int:
    """The segments before the new start are left to housekeeping, as in Kafka."""
    if topic in INTERNAL_TOPICS and broker.metadata.topic(topic) is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the coordinators' own topic")
    log = broker.partitions.find(topic, partition).log
    if log.config.compact and not log.config.delete:
        message = f"cleanup.policy of {topic} is compact: its records are not deleted by their offsets"
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
    wanted = log.high_watermark if offset == _HIGH_WATERMARK else offset
    if wanted < 0:
        raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {wanted} is not valid")
    log.advance_log_start(wanted)
    return log.log_start_offset
