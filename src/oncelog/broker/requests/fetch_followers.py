"""Read partitions for followers, report to the leaders' terms what they have, and list which are connected."""

from __future__ import annotations

from oncelog.broker.requests.fetch_reads import PartitionRead
from oncelog.broker.storage.roles import steady_ms
from oncelog.cluster.replica import Replica
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError


class FollowerConnections:
    """The connections on which followers have fetched, by broker. The death of a process closes them at once."""

    def __init__(self) -> None:
        self._open: dict[int, set[Session]] = {}

    def __contains__(self, broker: int) -> bool:
        return broker in self._open

    def add(self, broker: int, session: Session) -> None:
        """Count the connection of a follower's Fetch until the follower disconnects."""
        if session in (found := self._open.setdefault(broker, set())):
            return
        found.add(session)

        def remove() -> None:
            found.discard(session)
            if not found and self._open.get(broker) is found:
                del self._open[broker]

        session.on_disconnect(remove)


def read_for_follower(
    read: PartitionRead,
    replica: Replica,
    left: int,
    broker: int,
    broker_epoch: int,
    *,
    at_least_one: bool,
    again: bool,
) -> None:
    """Read one partition for a follower, at most `left` bytes. Unless `again`, record which offsets it has.

    Raises NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE.
    """
    position = read.position
    term = replica.leading()
    log = replica.log
    offset = position.fetch_offset
    diverging = term.check_fetch(
        current_leader_epoch=position.current_leader_epoch,
        offset=offset,
        last_fetched_epoch=position.last_fetched_epoch,
    )
    follower = term.follower(broker)
    if follower is None:  # as in Kafka: either of the two brokers has old metadata
        known = position.current_leader_epoch >= 0
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise ProtocolError(code, f"broker {broker} has no replica of {replica.name}")
    read.replica = replica
    read.role = term, replica.leader_epoch
    read.end = log.log_end_offset
    read.appended = replica.bytes_appended
    read.diverging = diverging
    if diverging is not None:
        return
    term.check_follower(broker, broker_epoch)
    limit = min(left, position.max_bytes)
    if offset < read.end and (limit > 0 or at_least_one):
        # Records at or after the high watermark may be truncated before the response is sent. To read a page of a
        # mapped file that was truncated kills the process.
        shared = offset < log.high_watermark
        end = log.high_watermark if shared else read.end
        read.data = log.read(offset, max(limit, 0), upto=end, at_least_one=at_least_one, shared=shared)
    if not again:
        log_start = follower.log_start
        term.fetched(broker, broker_epoch, offset, log_start=position.log_start_offset, now_ms=steady_ms())
        if log_start < position.log_start_offset:
            replica.wake()  # DeleteRecords waits for it
