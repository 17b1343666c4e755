"""A follower of one partition under one leader epoch. No I/O, no clock: it decides what to fetch, append and truncate.

The shell sends `next_fetch`, passes each response to `received`, carries out the returned action on the log, and asks
for the next fetch. The log is the only record of progress, so a restart needs no state. Each fetch names the epoch of
the last batch. If the leader's log has diverged, the follower truncates, perhaps several times, until the logs agree.
Sources: KIP-101, KIP-279, KIP-595; Kafka's `AbstractFetcherThread`; KAFKA-7164, KAFKA-13141.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from oncelog.cluster.leader import UNKNOWN_OFFSET, DivergingEpoch, EpochLog
from oncelog.protocol.errors import ErrorCode

NO_EPOCH = -1


class Fetch(NamedTuple):
    """The part of a Fetch request for one partition."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    """The epoch of the last batch in the follower's log, or -1 if the log has none."""
    log_start: int


class Fetched(NamedTuple):
    """The part of a Fetch response for one partition."""

    error: ErrorCode = ErrorCode.NONE
    records: bytes | memoryview = b""
    high_watermark: int = UNKNOWN_OFFSET
    log_start: int = UNKNOWN_OFFSET
    diverging: DivergingEpoch | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records to the log, then advance its high watermark and its log start offset.

    If the append fails, fetch again after a pause, because the records may be corrupt.
    """

    records: bytes | memoryview
    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `offset`, then fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Delete all records and start the log at `offset`, because the leader has deleted the records before it."""

    offset: int


class Signal(Enum):
    """An action without arguments."""

    IGNORE = "ignore"
    """The response belongs to an earlier fetch."""
    RETRY = "retry"
    """Fetch again after a pause."""
    ASK_RANGE = "ask range"
    """Ask the leader for its log start and end offsets (ListOffsets), then call `range_known`."""
    STOP = "stop"
    """Do not fetch again. This broker does not know the newest leader epoch; read the metadata."""


Action = Append | Truncate | Restart | Signal

_SIGNALS = {
    ErrorCode.FENCED_LEADER_EPOCH: Signal.STOP,
    ErrorCode.OFFSET_OUT_OF_RANGE: Signal.ASK_RANGE,
}
"""What a follower does after an error. All other errors are transient: it retries, and keeps its log.

UNKNOWN_LEADER_EPOCH: the leader does not know of its election yet. NOT_LEADER_OR_FOLLOWER: the metadata of one of the
brokers is old. UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID: the topic is being created or
deleted. KAFKA_STORAGE_ERROR: the controller elects another leader.
"""


class Following:
    """One partition that follows a leader. A later leader epoch needs a new object."""

    __slots__ = ("_asked", "_log", "leader", "leader_epoch", "stopped")

    def __init__(self, leader: int, leader_epoch: int, log: EpochLog) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.stopped = False
        """Whether the leader has a later epoch than this one."""
        self._log = log
        self._asked: Fetch | None = None

    def next_fetch(self, log_start: int) -> Fetch | None:
        """Return the fetch to send, or None if the follower has stopped. Responses to earlier fetches are ignored.

        `log_start` is the log start offset that survives a crash. DeleteRecords waits for it.
        """
        if self.stopped:
            return None
        log = self._log
        epoch = log.leader_epoch
        self._asked = Fetch(self.leader_epoch, log.log_end_offset, NO_EPOCH if epoch is None else epoch, log_start)
        return self._asked

    def received(self, fetch: Fetch, response: Fetched) -> Action:
        """Return what to do with the response to `fetch`."""
        if self.stopped or fetch != self._asked:
            return Signal.IGNORE
        self._asked = None
        if response.error != ErrorCode.NONE:
            signal = _SIGNALS.get(response.error, Signal.RETRY)
            self.stopped = signal == Signal.STOP
            return signal
        if response.diverging is not None:
            return self._truncate(response.diverging)
        return Append(response.records, response.high_watermark, response.log_start)

    def _truncate(self, diverging: DivergingEpoch) -> Action:
        """Truncate to the end of the largest epoch that both logs may have in common.

        If the leader's epoch is unknown here, truncate to the end of the epoch before it. The next fetch then names
        that epoch, and may diverge again.
        """
        log = self._log
        epoch, end = log.end_offset_for_epoch(diverging.epoch)
        if epoch < 0:
            offset = diverging.end_offset
        elif epoch == diverging.epoch:
            offset = min(end, diverging.end_offset)
        else:
            offset = end
        if not 0 <= offset < log.log_end_offset:
            return Signal.RETRY  # the logs agree up to here, so the leader has changed meanwhile
        return Truncate(offset)

    def range_known(self, log_start: int, log_end: int) -> Action:
        """Return what to do after OFFSET_OUT_OF_RANGE, given the leader's log start and end offsets.

        If the leader has deleted the records after this log's end, restart at the leader's log start. If this log is
        longer, the leader was elected although it lacked records, so truncate.
        """
        own_end = self._log.log_end_offset
        if self.stopped:
            return Signal.IGNORE
        if log_end < own_end:
            return Truncate(log_end)
        if log_start > own_end:
            return Restart(log_start)
        return Signal.RETRY
