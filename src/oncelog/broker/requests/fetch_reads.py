"""What a Fetch has read from each partition, and what it then waits for."""

from __future__ import annotations

from oncelog.broker.requests.fetch_sessions import FetchPosition
from oncelog.cluster.leader import DivergingEpoch, Leadership
from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchRequest

HIGH_WATERMARK_WAIT_S = 0.02
"""How long a Fetch with a new high watermark waits for records. So followers do not fetch more often under load."""
READ_COMMITTED = 1
"""The isolation level of a consumer that reads only committed transactions."""
_LARGEST_OFFSET = 2**63 - 1


class PartitionRead:
    """The result of reading one partition."""

    __slots__ = (
        "aborted",
        "appended",
        "data",
        "diverging",
        "end",
        "error",
        "held_back",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "position",
        "preferred",
        "replica",
        "role",
    )

    def __init__(self, position: FetchPosition) -> None:
        self.position = position
        self.replica: Replica | None = None
        self.role: tuple[Leadership | None, int] = None, -1
        """The term and the leader epoch of the replica."""
        self.error = ErrorCode.NONE
        self.data: memoryview | bytes = b""
        self.end = -1
        self.appended = 0
        self.aborted: list[tuple[int, int]] | None = None
        self.diverging: DivergingEpoch | None = None
        """Where the log of a follower diverges."""
        self.held_back = False
        """There is data, but no memory for it until other responses are sent (`queued.max.response.bytes`)."""
        self.preferred: int | None = None
        """The follower from which the consumer should read instead."""
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1

    def note_offsets(self) -> None:
        """Record the log's offsets that belong to the data. Call this in the turn of the read.

        The response may be built in a later turn. By then, the broker may follow another leader, whose high watermark
        covers other records than those that were read.
        """
        if self.replica is not None:
            log = self.replica.log
            self.high_watermark = log.high_watermark
            self.last_stable_offset = log.last_stable_offset
            self.log_start_offset = log.log_start_offset


def follower_of(request: FetchRequest) -> tuple[int, int] | None:
    """Return the id and the broker epoch of a follower, or None for a consumer."""
    state = request.replica_state
    broker = state.replica_id if state.replica_id >= 0 else request.replica_id
    return (broker, state.replica_epoch) if broker >= 0 else None


def is_enough(reads: list[PartitionRead], min_bytes: int) -> bool:
    """Return whether to answer at once: there are enough bytes, or a partition whose news must not wait."""
    size = 0
    for read in reads:
        if read.error or read.held_back or read.diverging or read.preferred is not None:
            return True
        size += len(read.data)
    return size >= min_bytes


class DelayedFetch:
    """The condition that a Fetch waits for: enough new data, or a partition that is deleted or fails.

    It compares the partitions with their state at the read, so that it misses no append.

    If the high watermark is above the one in the last response to a follower, the Fetch waits only for
    `HIGH_WATERMARK_WAIT_S`. Without a session, the leader does not know the last response. Kafka always waits for
    records, because an immediate response doubles the Fetches of some clusters (KAFKA-9731, KAFKA-9952).
    """

    def __init__(self, request: FetchRequest, reads: list[PartitionRead], *, in_session: bool) -> None:
        self.replicas: list[Replica] = []
        self.has_new_high_watermark = False
        """Whether a high watermark has advanced, and the follower does not know it yet."""
        self._in_session = in_session
        self._known: dict[Replica, int] = {}
        """The high watermarks that the follower knows."""
        self._is_follower = follower_of(request) is not None
        self._read_committed = request.isolation_level == READ_COMMITTED and not self._is_follower
        self._min_bytes = request.min_bytes
        self._bytes = 0
        """How many bytes must be appended before the next read."""
        self._appended: dict[Replica, int] = {}
        self._ends: dict[Replica, int] = {}
        self._roles: dict[Replica, tuple[Leadership | None, int]] = {}
        self._unread: set[Replica] = set()
        """The replicas whose logs had records after the readable end."""
        self.read_again(reads)

    def can_complete(self, replica: Replica) -> bool:
        """Return whether to read again, after an event of this replica."""
        if (replica.term, replica.leader_epoch) != self._roles[replica] or replica.offline or replica.log.closed:
            return True
        if not self.has_new_high_watermark and replica.log.high_watermark > self._known.get(replica, _LARGEST_OFFSET):
            self.has_new_high_watermark = True
            return True
        end = replica.log.log_end_offset if self._is_follower else replica.readable_end(self._read_committed)
        if end == self._ends[replica]:
            return False
        if self._read_committed or replica in self._unread:  # bytes that were appended before may be readable now
            return True
        self._bytes -= replica.bytes_appended - self._appended[replica]
        self._appended[replica] = replica.bytes_appended
        return self._bytes <= 0

    def read_again(self, reads: list[PartitionRead]) -> None:
        """Record the replicas and their ends after a read that returned too little.

        A topic that was deleted and created again has new replicas. The old ones are closed, so a wait for them would
        end at once.
        """
        known = [(read.replica, read) for read in reads if read.replica is not None]
        self.replicas = [replica for replica, _ in known]
        self._ends = {replica: read.end for replica, read in known}
        self._roles = {replica: read.role for replica, read in known}
        self._unread = {replica for replica, read in known if read.end < replica.log.log_end_offset}
        self._appended = {replica: read.appended for replica, read in known}
        self._bytes = self._min_bytes - sum(len(read.data) for read in reads)
        if self._is_follower and self._in_session:
            self._known = {replica: read.position.last_sent_high_watermark for replica, read in known}
