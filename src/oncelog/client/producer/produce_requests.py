"""Build Produce requests from batches, and match the results in a response with the batches. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.client.discovery.topology import Topology
from oncelog.client.producer.batch import Batch
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from oncelog.protocol.schema import NO_UUID
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.producer.transaction_manager import TransactionManager
    from oncelog.net.connection import ClientConnection

LAST_BEFORE_TV2 = 11
"""Transactional records in this version and below do not add their partition to the transaction (KIP-890)."""
LAST_WITH_NAMES = 12


MAY_BE_APPENDED = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which a batch may be in the log, or get there (KAFKA-13574). NETWORK_EXCEPTION is the client's own."""


class BatchAnswer(NamedTuple):
    """The broker's result for a batch. Unknown numbers are -1. `record_errors`: (index, text) of rejected records."""

    base_offset: int
    append_time: int
    log_start_offset: int
    record_errors: tuple[tuple[int, str | None], ...] = ()


UNANSWERED = BatchAnswer(-1, -1, -1)
Answer = tuple[Batch, ErrorCode, str, BatchAnswer]


def build(
    batches: Iterable[tuple[Batch, bytearray]],
    topology: Topology,
    connection: ClientConnection,
    options: Mapping[str, Any],
    manager: TransactionManager | None,
) -> tuple[ProduceRequest, int]:
    """Return (request, version) for batches of different partitions that one broker leads."""
    version = connection.version_for(ProduceRequest)
    transactional_id = manager.transactional_id if manager is not None else None
    if transactional_id is not None and manager is not None and not manager.implicit:
        version = min(version, LAST_BEFORE_TV2)
    topics: dict[str, TopicProduceData] = {}
    for batch, data in batches:
        name, partition = batch.tp
        topic = topics.get(name)
        if topic is None:
            known = topology.topics.get(name)
            topic_id = NO_UUID if known is None else known.topic_id
            if topic_id == NO_UUID:
                version = min(version, LAST_WITH_NAMES)
            topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
        topic.partition_data.append(PartitionProduceData(index=partition, records=data))
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=options["acks"],
        timeout_ms=options["request_timeout_ms"],
        topic_data=list(topics.values()),
    )
    return request, version


def match(sent: list[Batch], response: ProduceResponse, topology: Topology) -> list[Answer]:
    """Return each batch with its result. A batch that the response does not contain counts as not answered."""
    answers: dict[TopicPartition, PartitionProduceResponse] = {}
    for topic in response.responses:
        name = topic.name or topology.names.get(topic.topic_id, "")
        for item in topic.partition_responses:
            answers[name, item.index] = item
    found: list[Answer] = []
    for batch in sent:
        answer = answers.get(batch.tp)
        if answer is None:
            found.append(
                (batch, ErrorCode.NETWORK_EXCEPTION, "the broker's response does not contain the partition", UNANSWERED)
            )
            continue
        code = ErrorCode.of(answer.error_code)
        refused = tuple((each.batch_index, each.batch_index_error_message) for each in answer.record_errors or ())
        place = BatchAnswer(answer.base_offset, answer.log_append_time_ms, answer.log_start_offset, refused)
        found.append((batch, code, answer.error_message or "", place))
    return found
