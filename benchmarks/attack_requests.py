"""Send the most expensive legal request of each API to a broker with many topics."""

from __future__ import annotations

import re
import struct
import time
from urllib.request import urlopen

from attack_resources import produce
from attack_target import (
    MB,
    PATIENCE_S,
    TOPIC_PARTITIONS,
    TOPICS,
    Target,
    answer_size,
    ask,
    check,
    create,
    send_raw,
    waves,
)

from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest
from oncelog.protocol.messages.describe_producers import TopicRequest as DescribedTopic
from oncelog.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from oncelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.primitives import varint
from oncelog.protocol.schema import Message
from support.wire import Session, Wire, batch

TIMES = 3
WIDE = "wide"
WIDTH = 10_000
"""Number of partitions of the topic that one request covers."""


def answered(
    target: Target, request: Message, version: int, items: str, count: int, code: int = 0, *, times: int = TIMES
) -> None:
    """Send a request several times, and check each response. `check` describes `items`, `count` and `code`."""
    for _ in range(times):
        check(ask(target, request, version), items, count, code)


def wide(target: Target) -> None:
    """Create a topic with many partitions."""
    with target.wire() as wire:
        create(wire, [WIDE], WIDTH)


def pipelined(wire: Wire, requests: list[Message], version: int, *, width: int = 20) -> None:
    """Send requests, with several of them in flight at any time."""
    for wave in waves(len(requests), width):
        for number in wave:
            wire.send(requests[number], version)
        for number in wave:
            wire.receive(requests[number], version)


def unknown_names(target: Target) -> None:
    topics = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(20_000)]
    answered(
        target,
        MetadataRequest(topics=topics, allow_auto_topic_creation=False),
        12,
        "topics",
        len(topics),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def all_metadata(target: Target) -> None:
    wide(target)
    for _ in range(TIMES):
        answer = ask(target, MetadataRequest(topics=None), 12)
        answer.topics = [topic for topic in answer.topics if topic.name == WIDE or topic.name in target.names]
        check(answer, "topics.partitions", WIDTH + TOPICS * TOPIC_PARTITIONS)


def all_configs(target: Target) -> None:
    resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in target.names]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    answered(target, request, 4, "results", len(resources))


def offsets(target: Target) -> None:
    wide(target)
    for timestamp in (-1, -3, 1):
        wanted = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in range(WIDTH)]
        topics = [ListOffsetsTopic(name=WIDE, partitions=wanted)]
        answered(target, ListOffsetsRequest(replica_id=-1, topics=topics), 7, "topics.partitions", WIDTH)


def group_offsets(target: Target) -> None:
    """Fetch all offsets of a group that has committed in 20,000 partitions."""
    with target.wire() as wire:
        for wave in waves(len(target.names), 100):
            topics = [
                OffsetCommitRequestTopic(
                    name=target.names[number],
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
                        for index in range(TOPIC_PARTITIONS)
                    ],
                )
                for number in wave
            ]
            answer = wire.call(OffsetCommitRequest(group_id="everywhere", topics=topics), 8)
            check(answer, "topics.partitions", len(topics) * TOPIC_PARTITIONS)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="everywhere", topics=None)])
    answered(target, request, 8, "groups.topics.partitions", TOPICS * TOPIC_PARTITIONS)


def commits(target: Target) -> None:
    """Commit offsets of 10,000 partitions in one request."""
    wide(target)
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
        for index in range(WIDTH)
    ]
    topics = [OffsetCommitRequestTopic(name=WIDE, partitions=partitions)]
    answered(target, OffsetCommitRequest(group_id="one commit", topics=topics), 8, "topics.partitions", WIDTH)


def coordinators(target: Target) -> None:
    keys = [f"key-{number}" for number in range(100_000)]
    answered(target, FindCoordinatorRequest(key_type=0, coordinator_keys=keys), 4, "coordinators", len(keys))


def producers(target: Target) -> None:
    """Describe 20,000 producers of one partition, and 20,000 partitions without producers."""
    with target.wire() as wire:
        wire.create_topic("producers")
        pipelined(
            wire,
            [produce("producers", bytes(batch([b"x"], Session(10**6 + number, 0)))) for number in range(20_000)],
            11,
            width=100,
        )
    topics = [DescribedTopic(name="producers", partition_indexes=[0])]
    topics += [DescribedTopic(name=name, partition_indexes=list(range(TOPIC_PARTITIONS))) for name in target.names]
    for _ in range(TIMES):
        answer = ask(target, DescribeProducersRequest(topics=topics), 0)
        check(answer, "topics.partitions", 1 + TOPICS * TOPIC_PARTITIONS)
        check(answer, "topics.partitions.active_producers", 20_000)


def groups(target: Target) -> None:
    """List and describe 10,000 groups."""
    names = [f"group-{number}" for number in range(10_000)]
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")]
    topics = [OffsetCommitRequestTopic(name=target.names[0], partitions=partitions)]
    with target.wire() as wire:
        pipelined(wire, [OffsetCommitRequest(group_id=name, topics=topics) for name in names], 8, width=100)
    answered(target, ListGroupsRequest(), 4, "groups", len(names))
    answered(target, DescribeGroupsRequest(groups=names), 5, "groups", len(names))


def transactions(target: Target) -> None:
    """List 5,000 transactional ids, also by a pattern."""
    with target.wire() as wire:
        for number in range(5000):
            wire.init_producer(f"id-{number}")
    answered(target, ListTransactionsRequest(), 1, "transaction_states", 5000)
    request = ListTransactionsRequest(transactional_id_pattern=".*(a|b|c|d)*[0-9]+")
    answered(target, request, 2, "transaction_states", 5000)


def delete_records(target: Target) -> None:
    wide(target)
    partitions = [DeleteRecordsPartition(partition_index=index, offset=-1) for index in range(WIDTH)]
    topics = [DeleteRecordsTopic(name=WIDE, partitions=partitions)]
    answered(target, DeleteRecordsRequest(topics=topics, timeout_ms=30_000), 2, "topics.partitions", WIDTH)


def epochs(target: Target) -> None:
    wide(target)
    partitions = [OffsetForLeaderPartition(partition=index, leader_epoch=0) for index in range(WIDTH)]
    topics = [OffsetForLeaderTopic(topic=WIDE, partitions=partitions)]
    answered(target, OffsetForLeaderEpochRequest(topics=topics), 4, "topics.partitions", WIDTH)


def create_topics(target: Target) -> None:
    """Create and delete as many partitions as one request may: 1,000 topics of 10, and one topic of 10,000."""
    for count, partitions in ((1000, WIDTH // 1000), (1, WIDTH)):
        names = [f"created-{number}" for number in range(count)]
        topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
        for validate_only in (True, False):
            request = CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=validate_only)
            answered(target, request, 5, "topics", count, times=1)
        answered(target, DeleteTopicsRequest(topic_names=names, timeout_ms=60_000), 5, "responses", count, times=1)
    too_many = [CreatableTopic(name=f"x-{number}", num_partitions=100, replication_factor=1) for number in range(1000)]
    request = CreateTopicsRequest(topics=too_many, timeout_ms=60_000)
    answered(target, request, 5, "topics", 1000, ErrorCode.POLICY_VIOLATION)


def transaction_partitions(target: Target) -> None:
    """Commit a transaction of 10,000 partitions, with its markers."""
    wide(target)
    with target.wire() as wire:
        who = wire.session("wide transaction")
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="wide transaction",
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=WIDE, partitions=list(range(WIDTH)))],
        )
        check(wire.call(request, 3), "results_by_topic_v3_and_below.results_by_partition", WIDTH)
        assert not wire.end("wide transaction", who).error_code
        end = time.monotonic() + PATIENCE_S
        while describe(wire, "wide transaction") != "CompleteCommit":
            assert time.monotonic() < end, "the markers are written"
            time.sleep(0.5)
        wire.init_producer("wide transaction")


def describe(wire: Wire, transactional_id: str) -> str:
    """Return the state of a transaction."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return str(wire.call(request, 0).transaction_states[0].transaction_state)


def full_fetches(target: Target) -> None:
    """Open fetch sessions of 10,000 partitions, continue them, and forget their partitions one by one."""
    with target.wire() as wire:
        create(wire, [WIDE], WIDTH)
        topic = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=WIDE)]), 12).topics[0].topic_id
        wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=MB) for index in range(WIDTH)]
        topics = [FetchTopic(topic_id=topic, partitions=wanted)]
        for epoch in (-1, 0):
            first = wire.call(FetchRequest(max_wait_ms=0, session_epoch=epoch, topics=topics), 16)
            check(first, "responses.partitions", WIDTH)
        for epoch in range(1, 4):
            request = FetchRequest(max_wait_ms=10, session_id=first.session_id, session_epoch=epoch)
            assert wire.call(request, 16).session_id == first.session_id
            request = FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=topics)
            check(wire.call(request, 16), "responses.partitions", WIDTH)


def log_dirs(target: Target) -> None:
    wide(target)
    for _ in range(TIMES):
        found = ask(target, DescribeLogDirsRequest(topics=None), 4).results[0].topics
        assert sum(len(topic.partitions) for topic in found) >= WIDTH + TOPICS * TOPIC_PARTITIONS


def topic_partitions(target: Target) -> None:
    topics = [TopicRequest(name=name) for name in target.names]
    for _ in range(TIMES):
        cursor, found = None, 0
        while found == 0 or cursor is not None:
            request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=2**31 - 1, cursor=cursor)
            answer = ask(target, request, 0)
            found += sum(len(topic.partitions) for topic in answer.topics)
            cursor = answer.next_cursor
        assert found == TOPICS * TOPIC_PARTITIONS, f"{found} partitions"


def wide_produce(target: Target) -> None:
    """Produce a small batch to each of 10,000 partitions, so that the broker creates their first files."""
    wide(target)
    records = bytes(batch([b"x"]))
    data = [PartitionProduceData(index=index, records=records) for index in range(WIDTH)]
    topics = [TopicProduceData(name=WIDE, partition_data=data)]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
    answered(target, request, 11, "responses.partition_responses", WIDTH)


def large_batch(target: Target) -> None:
    """Produce batches of 50 MB that the broker stores with another codec."""
    with target.wire() as wire:
        wire.create_topic("heavy", max_message_bytes=str(100 * MB), compression_type="gzip")
    answered(target, produce("heavy", bytes(batch([bytes(MB)] * 50))), 11, "responses.partition_responses", 1)


def scrapes(target: Target) -> None:
    """Read the broker's metrics ten times."""
    [where] = re.findall(r"serving metrics at (http://\S+)", target.server.process.output())
    for _ in range(10):
        with urlopen(where, timeout=PATIENCE_S) as answer:
            lines = answer.read().count(b"\nkafka_log_log_size{")
        assert lines >= WIDTH, f"{lines} partitions"


def open_logs(target: Target) -> None:
    """Let the broker open the logs of 10,000 partitions, whose sizes are then among its metrics."""
    offsets(target)
    scrapes(target)


def huge_requests(target: Target) -> None:
    """Send 100 MB of the smallest items of several APIs."""
    for api, version, head, item in (
        (ApiKey.METADATA, 1, b"", b"\x00\x01a"),
        (ApiKey.FIND_COORDINATOR, 4, b"", b"\x02a"),
        (ApiKey.LIST_GROUPS, 4, b"", b"\x02a"),
        (ApiKey.DELETE_GROUPS, 1, b"", b"\x00\x01a"),
        (ApiKey.DESCRIBE_GROUPS, 1, b"", b"\x00\x01a"),
        (ApiKey.LIST_OFFSETS, 2, b"\xff\xff\xff\xff\x00", b"\x00\x01a\x00\x00\x00\x00"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\xff\xff\x00\x00\x03\xe8", b"\x00\x01a\x00\x00\x00\x00"),
    ):
        body = encode_request_header(RequestHeader(api, version, 1, "huge")) + head
        flexible = api in (ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS)
        if api == ApiKey.FIND_COORDINATOR:
            body += b"\x00"
        count = (100 * MB - len(body) - 8) // len(item)
        if flexible:
            payload = body + varint(count + 1) + item * count + b"\x00"
        else:
            payload = body + struct.pack(">i", count) + item * count
        sock = send_raw(target, struct.pack(">i", len(payload)) + payload)
        answer_size(sock)  # the broker may close the connection
        sock.close()
        time.sleep(0.2)
