"""Read partitions for consumers, and find the racks from which they may read."""

from __future__ import annotations

from oncelog.broker.requests.fetch_followers import FollowerConnections
from oncelog.broker.requests.fetch_reads import PartitionRead
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import iter_batches


def reachable_racks(
    image: MetadataImage, node_id: int, connected: FollowerConnections, listener: str
) -> dict[int, str | None]:
    """Return the racks of the brokers that a client of a listener can read from. This broker is `node_id`.

    A follower without an open connection may have been killed. The metadata names it until its session ends, and
    librdkafka would try to reach it for minutes.
    """
    return {
        broker: info.rack
        for broker, info in image.brokers.items()
        if listener in info.endpoints and (broker == node_id or broker in connected)
    }


def _aborted(replica: Replica, start: int, data: memoryview | bytes) -> list[tuple[int, int]]:
    """Return the aborted transactions of the returned batches only, so that the response does not grow with the log."""
    if not replica.log.aborted_transactions(start, replica.log.last_stable_offset):
        return []
    end = start
    for header, _ in iter_batches(data):
        end = header.next_offset
    return replica.log.aborted_transactions(start, end)


def read_for_consumer(
    read: PartitionRead, replica: Replica, left: int, read_committed: bool, *, at_least_one: bool
) -> None:
    """Read one partition for a consumer, unless it should read from another replica."""
    position = read.position
    read.replica = replica
    read.role = replica.term, replica.leader_epoch
    read.end = replica.readable_end(read_committed)
    read.appended = replica.bytes_appended
    if read.preferred is not None:
        return
    log = replica.log
    offset = position.fetch_offset
    if offset < log.log_start_offset or offset > log.log_end_offset:
        message = f"offset {offset} is outside the log's range {log.log_start_offset}..{log.log_end_offset}"
        raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
    limit = min(left, position.max_bytes)
    if read_committed:
        read.aborted = []
    if offset < read.end and (limit > 0 or at_least_one):
        read.data = log.read(offset, max(limit, 0), upto=read.end, at_least_one=at_least_one, shared=True)
        if read_committed and read.data:
            read.aborted = _aborted(replica, offset, read.data)
