"""ListOffsets: find the first offset, the last one, or the first one at or after a time, within the isolation level."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.fetch_reads import READ_COMMITTED
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.readers import STEPS_A_TURN, Sessions, readable_ends, readers_of
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder, counted, in_turns
from oncelog.broker.workers import Workers
from oncelog.cluster.replica import Replica
from oncelog.log.log import Log
from oncelog.log.timestamps import first_since, last_of
from oncelog.log.validate import SMALL_BYTES
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from oncelog.protocol.records import parse_header

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# The first version that knows each special timestamp. Without tiered storage, the last two find nothing.
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_LEADER_EPOCH_SINCE = 4
_NOT_AVAILABLE_SINCE = 5
_CONSUMER = -1
"""The replica id of consumers. Followers, and tools with id -2, read the log up to its end."""
_DEBUGGING = -2
"""The replica id of tools, which may also ask a follower."""
_WITHOUT_READING = frozenset({LATEST, EARLIEST, EARLIEST_LOCAL})
"""What a follower may be asked. A follower may be truncated, and reading a truncated page would kill the process."""

Found = tuple[int, int, int]
"""(timestamp, offset, leader epoch)"""
_NOTHING: Found = (-1, -1, -1)


async def handle(
    partitions: Partitions,
    workers: Workers,
    sessions: Sessions,
    request: ListOffsetsRequest,
    ctx: RequestContext,
) -> ListOffsetsResponse:
    """Return an offset or an error for each partition.

    With `readable_ends`, a client that may act for the cluster gets more: see `requests.readers`.
    If the request names a partition twice, its error is INVALID_REQUEST. If this version of the request does not define
    a special timestamp, the error is UNSUPPORTED_VERSION.
    """
    named = await counted((topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)
    isolation = request.isolation_level if request.replica_id == _CONSUMER else None
    topics = []
    yielder = Yielder()
    with_ends = request.readable_ends and ctx.may(AclOperation.CLUSTER_ACTION, *CLUSTER)
    searches = Yielder(STEPS_A_TURN)
    differ = False
    for topic in request.topics:
        found_offsets = []
        for asked in topic.partitions:
            await yielder.next()
            code = ErrorCode.NONE
            found = _NOTHING
            ends = None
            try:
                if not with_ends:  # the client may fetch all records of the cluster
                    ctx.authorize(AclOperation.DESCRIBE, AclResource.TOPIC, topic.name)
                if named[topic.name, asked.partition_index] > 1:
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, "the request names this partition more than once")
                _check_supported(asked.timestamp, ctx.api_version)
                may_follow = request.replica_id == _DEBUGGING and asked.timestamp in _WITHOUT_READING
                require = partitions.require_any if may_follow else partitions.require
                replica = require(topic.name, asked.partition_index)
                found = await _find(replica, workers, asked, ctx.api_version, isolation)
                if with_ends:
                    ends = await readable_ends(replica, searches)
                    differ = differ or ends.uncommitted != ends.committed
            except ProtocolError as error:
                code = error.code
            timestamp, offset, epoch = found
            found_offsets.append(
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index,
                    error_code=code,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch if ctx.api_version >= _LEADER_EPOCH_SINCE else -1,
                    readable=ends,
                )
            )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found_offsets))
    readers = await in_turns(readers_of(sessions())) if differ else []
    return ListOffsetsResponse(topics=topics, readers=readers)


def _check_supported(timestamp: int, version: int) -> None:
    """Raise UNSUPPORTED_VERSION if this version of the request does not define a special timestamp."""
    if timestamp < LATEST and version < _SINCE.get(timestamp, 0 if timestamp >= EARLIEST else version + 1):
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION, f"ListOffsets v{version} does not support timestamp {timestamp}"
        )


async def _find(
    replica: Replica, workers: Workers, asked: ListOffsetsPartition, version: int, isolation: int | None
) -> Found:
    """Find the offset in one partition.

    `isolation` is the isolation level of a consumer, or None for followers and tools, which read all records.
    """
    timestamp = asked.timestamp
    replica.check_leader_epoch(asked.current_leader_epoch)
    log = replica.log
    end = log.log_end_offset if isolation is None else replica.readable_end(isolation == READ_COMMITTED)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.epoch_at(log.log_start_offset)
    hidden = isolation is not None and replica.leading().exposed_high_watermark is None
    if timestamp == LATEST and not hidden:
        return -1, end, replica.leader_epoch
    found = None
    if timestamp == MAX_TIMESTAMP:
        found = await _latest(workers, log)
    elif timestamp >= 0:
        found = await _first_since(workers, log, timestamp)
    elif timestamp != LATEST:
        return _NOTHING
    # The isolation level hides the records from `end` on.
    if found is not None and found[1] < end:
        return found
    if hidden:
        code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= _NOT_AVAILABLE_SINCE else ErrorCode.LEADER_NOT_AVAILABLE
        message = f"{replica!r}: records of earlier leaders are not committed yet (KIP-207); retry"
        raise ProtocolError(code, message)
    return _NOTHING


async def _first_since(workers: Workers, log: Log, timestamp: int) -> Found | None:
    """Find the first record whose timestamp is at least `timestamp`. The loop serves other requests between steps."""
    start = log.log_start_offset
    while (step := log.search_timestamp(timestamp, start)) is not None:
        if step.batch:
            found = await _decoded(workers, step.batch, first_since, timestamp, start)
            if found is not None:
                return *found, step.epoch
        else:
            await asyncio.sleep(0)
        start = step.next_offset
    return None


async def _latest(workers: Workers, log: Log) -> Found | None:
    """Find the first record with the largest timestamp."""
    step = log.batch_of_max_timestamp()
    found = None if step is None else await _decoded(workers, step.batch, last_of)
    return None if step is None or found is None else (*found, step.epoch)


async def _decoded(
    workers: Workers, batch: bytes, search: Callable[..., tuple[int, int] | None], *arguments: int
) -> tuple[int, int] | None:
    """Search a batch, in a worker thread if this may take long."""
    if len(batch) <= SMALL_BYTES and not parse_header(batch).codec:
        return search(batch, *arguments)
    return await workers.compute(search, batch, *arguments)


def bind(services: HandlerServices) -> Handler:
    """Return the handler of ListOffsets."""
    return partial(handle, services.partitions, services.runtime.workers, services.sessions)
