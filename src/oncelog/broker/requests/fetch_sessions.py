"""Fetch sessions (KIP-227): a consumer names its partitions once, and then only the changes.

This module keeps the sessions, as Kafka's `FetchManager` and `FetchSession` do. The fetch handler reads the records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from oncelog.protocol.errors import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MOST_IN_SESSION = 20_000
"""The maximum number of partitions of one session. One step of some 10 ms processes them, while other clients wait."""
MOST_IN_ALL_SESSIONS = 200_000
"""The maximum number of partitions of all sessions together, which take about 60 MB."""
_MAX_EPOCH = 2**31 - 1
EVICTION_MS = 120_000
"""If the cache is full, a new session replaces one that was not used for this long."""

Key = tuple[str | None, UUID, int]


def partition_key(topic: str | None, topic_id: UUID, partition: int) -> Key:
    """Return the identity of a partition within a session: by topic id, or by name if there is no id.

    A name is not used besides an id, because it is unknown while the topic does not exist (Kafka's
    `CachedPartition.equals`).
    """
    return (None if topic_id.int else topic), topic_id, partition


@dataclass(slots=True)
class FetchPosition:
    """The request of one consumer for one partition, and the offsets in the last response (-1: none yet).

    `topic` is None while no topic has the id.
    """

    topic: str | None
    topic_id: UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    """The log start offset of a follower."""
    last_sent_high_watermark: int = -1
    last_sent_log_start_offset: int = -1

    @property
    def key(self) -> Key:
        """Return the identity within a session."""
        return partition_key(self.topic, self.topic_id, self.partition)

    def changed(self, error: int, high_watermark: int, log_start_offset: int, has_records: bool) -> bool:
        """Return whether an incremental response must name this partition, and remember what the response says."""
        must = has_records or error != ErrorCode.NONE
        must = must or high_watermark != self.last_sent_high_watermark
        must = must or log_start_offset != self.last_sent_log_start_offset
        # After an error the next response must name the partition, even if nothing has changed.
        self.last_sent_high_watermark = -1 if error != ErrorCode.NONE else high_watermark
        self.last_sent_log_start_offset = log_start_offset
        return must


@dataclass(slots=True)
class FetchSession:
    """One cached session. Partitions are served in the order of `positions`."""

    session_id: int
    uses_topic_ids: bool
    positions: OrderedDict[Key, FetchPosition]
    epoch: int
    last_used_ms: int
    privileged: bool
    """Whether the session is a follower's. Clients cannot replace it while it is in use."""


@dataclass(slots=True)
class FetchContext:
    """One Fetch: the partitions to read, and the kind of response."""

    error: ErrorCode = ErrorCode.NONE
    session_id: int = 0
    incremental: bool = False
    positions: list[FetchPosition] = field(default_factory=list)
    session: FetchSession | None = None

    def served(self, position: FetchPosition) -> None:
        """Move a partition that returned records to the end, so that the others are served first next time."""
        if self.session is not None and position.key in self.session.positions:  # else it was dropped meanwhile
            self.session.positions.move_to_end(position.key)


class FetchSessions:
    """The cache of all sessions of a broker (`max.incremental.fetch.session.cache.slots`)."""

    def __init__(self, slots: int, new_id: Callable[[], int], most_partitions: int = MOST_IN_ALL_SESSIONS) -> None:
        """`new_id()` returns a random positive int32. `most_partitions` bounds all sessions together."""
        self._slots = slots
        self._most_partitions = most_partitions
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0
        """The partitions of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        positions: list[FetchPosition],
        forgotten: Sequence[Key],
        *,
        uses_topic_ids: bool,
        now_ms: int,
        privileged: bool = False,
    ) -> FetchContext:
        """Return the context of a Fetch: full, incremental, or an error code.

        If the cache is full, a follower's session (`privileged`) replaces those that clients used least recently. The
        cache is also full if its sessions have MOST_IN_ALL_SESSIONS partitions.
        A Fetch of more than MOST_IN_SESSION partitions gets no session, as if the cache were full. A session that
        grows beyond that, or forgets more partitions in one Fetch, ends, and the client begins again.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            if epoch == FINAL_EPOCH or not positions or len(positions) > MOST_IN_SESSION:
                return FetchContext(positions=positions)
            return self._full(positions, uses_topic_ids, now_ms, privileged)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchContext(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext(error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        named = max(len(positions), len(forgotten))
        grown = 0
        if named <= MOST_IN_SESSION:
            grown = -len(session.positions)
            self._update(session, positions, forgotten)
            grown += len(session.positions)
            self._partitions += grown
        is_full = grown > 0 and self._partitions > self._most_partitions
        if max(named, len(session.positions)) > MOST_IN_SESSION or is_full:
            self._drop(session_id)
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.positions:
            self._drop(session_id)
            return FetchContext()
        session.epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return FetchContext(ErrorCode.NONE, session_id, True, list(session.positions.values()), session)

    def _full(self, asked: list[FetchPosition], uses_topic_ids: bool, now_ms: int, privileged: bool) -> FetchContext:
        if not self._make_slot(len(asked), now_ms, privileged):
            return FetchContext(positions=asked)
        session_id = self._new_id()
        while session_id in self._sessions or session_id == 0:
            session_id = self._new_id()
        session = FetchSession(
            session_id, uses_topic_ids, OrderedDict((p.key, p) for p in asked), INITIAL_EPOCH + 1, now_ms, privileged
        )
        self._sessions[session_id] = session
        self._partitions += len(session.positions)
        return FetchContext(session_id=session_id, positions=asked, session=session)

    def _make_slot(self, partitions: int, now_ms: int, privileged: bool) -> bool:
        while len(self._sessions) >= self._slots or self._partitions + partitions > self._most_partitions:
            found = next(iter(self._sessions.values()), None)
            if found is not None and now_ms - found.last_used_ms <= EVICTION_MS:
                clients = (session for session in self._sessions.values() if not session.privileged)
                found = next(clients, None) if privileged else None
            if found is None:
                return False
            self._drop(found.session_id)
        return True

    def end(self, session_id: int) -> None:
        """End a session, if it exists."""
        self._drop(session_id)

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.positions)

    @staticmethod
    def _update(session: FetchSession, positions: Iterable[FetchPosition], forgotten: Iterable[Key]) -> None:
        for position in positions:
            known = session.positions.get(position.key)
            if known is None:
                session.positions[position.key] = position
            else:
                known.fetch_offset = position.fetch_offset
                known.max_bytes = position.max_bytes
                known.current_leader_epoch = position.current_leader_epoch
                known.last_fetched_epoch = position.last_fetched_epoch
                known.log_start_offset = position.log_start_offset
        for key in forgotten:
            session.positions.pop(key, None)
