"""What a consumer has fetched and where it stands, without any I/O: positions, fetch sessions, what must not be seen.

`FetchSession` writes incremental Fetch requests (KIP-227). `Fetched` is one partition's part of an answer: batches
are decoded when their records are asked for, control batches and those of aborted transactions are left out, and the
position moves past them all the same, so that a reader ends where its isolation level ends and not at the last record
it saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from oncelog import errors
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.types import TopicPartition
from oncelog.protocol.aborted import AbortedTransactions
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from oncelog.protocol.records import check_crc, decode_records, iter_batches
from oncelog.protocol.schema import NO_UUID

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
LAST_WITH_NAMES = 12
NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1


class ConsumerRecord(NamedTuple):
    """One record as a consumer gets it; `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Wanted(NamedTuple):
    """What a partition is fetched with."""

    offset: int
    leader_epoch: int
    max_bytes: int
    topic_id: UUID


class FetchSession:
    """The session with one broker: what it remembers of our partitions, so that only changes are sent."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}
        self._asked: dict[TopicPartition, Wanted] = {}

    def build(self, wanted: Mapping[TopicPartition, Wanted], options: Mapping[str, int], rack: str) -> FetchRequest:
        """The request for exactly these partitions."""
        self._asked = dict(wanted)
        if self.epoch == FULL_EPOCH:
            changed: Iterable[TopicPartition] = wanted
            forgotten: list[TopicPartition] = []
        else:
            changed = [tp for tp, item in wanted.items() if self._known.get(tp) != item]
            forgotten = [
                tp for tp, old in self._known.items() if tp not in wanted or wanted[tp].topic_id != old.topic_id
            ]
        topics: dict[str, FetchTopic] = {}
        for tp in changed:
            item = wanted[tp]
            topic = topics.get(tp[0])
            if topic is None:
                topic = topics[tp[0]] = FetchTopic(topic=tp[0], topic_id=item.topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=tp[1],
                    current_leader_epoch=item.leader_epoch,
                    fetch_offset=item.offset,
                    partition_max_bytes=item.max_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=options["max_wait_ms"],
            min_bytes=options["min_bytes"],
            max_bytes=options["max_bytes"],
            isolation_level=options["isolation_level"],
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=self._forgotten(forgotten),
            rack_id=rack,
        )

    def _forgotten(self, partitions: Iterable[TopicPartition]) -> list[ForgottenTopic]:
        topics: dict[TopicPartition | tuple[str, UUID], ForgottenTopic] = {}
        for tp in partitions:
            topic_id = self._known[tp].topic_id
            topic = topics.setdefault((tp[0], topic_id), ForgottenTopic(topic=tp[0], topic_id=topic_id, partitions=[]))
            topic.partitions.append(tp[1])
        return list(topics.values())

    def succeeded(self, session_id: int) -> None:
        """The broker has taken the request in."""
        self._known = self._asked
        if session_id == NO_SESSION:
            self.reset()
            return
        self.epoch = 1 if session_id != self.session_id or self.epoch == 2**31 - 1 else self.epoch + 1
        self.session_id = session_id

    def reset(self) -> None:
        """The session is lost: the next request is a full one."""
        self.session_id, self.epoch = NO_SESSION, FULL_EPOCH
        self._known = {}


class Fetched:
    """The records of one partition out of one answer; `position` is what comes next in it."""

    def __init__(
        self, tp: TopicPartition, data: PartitionData, position: int, *, committed_only: bool, check_crcs: bool
    ) -> None:
        self.tp = tp
        self.position = position
        self.raw = data.records if data.records is not None else b""
        self.aborted = (
            sorted((item.first_offset, item.producer_id) for item in data.aborted_transactions or ())
            if committed_only
            else None
        )
        self._check_crcs = check_crcs
        self._batches = iter_batches(self.raw, partial_ok=True)
        self._hidden = AbortedTransactions(self.aborted or ())
        self._records: deque[ConsumerRecord] = deque()
        self._after = position
        self._damage: ProtocolError | None = None
        self.end, self.last_epoch = end_of(self.raw, position)
        """Where this ends, and the leader epoch in which its last batch was written."""
        self.epoch = -1
        """The leader epoch of the batch that was decoded last."""

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` more records. ProtocolError, each time, when a damaged batch is what comes next."""
        found: list[ConsumerRecord] = []
        while len(found) < count:
            if not self._records and not self._decode_next():
                break
            records = self._records
            while records and len(found) < count:
                found.append(records.popleft())
            self.position = records[0].offset if records else self._after
        if not found and self._damage is not None:
            raise self._damage.with_traceback(None)  # otherwise each raise adds frames to the traceback
        return found

    def go_to(self, position: int) -> None:
        """Go on from there, whatever has been taken: `tables` reads `raw` by itself."""
        self.position = self._after = position
        self._batches = iter_batches(self.raw, partial_ok=True)
        self._hidden = AbortedTransactions(self.aborted or ())
        self._records.clear()
        self._damage = None

    @property
    def damaged(self) -> bool:
        """Whether a damaged batch has been met: it is not over with what `take` gave."""
        return self._damage is not None

    def _decode_next(self) -> bool:
        """`_next_batch`, but damage stays where it is, and is raised only when nothing lies before it."""
        if self._damage is None:
            try:
                return self._next_batch()
            except ProtocolError as error:
                self._damage = error
        return False

    def _next_batch(self) -> bool:
        """Decode the next batch that has records to be seen; the position passes those that have none."""
        for header, view in self._batches:
            hidden = self._hidden.hides(header, view)  # of those before the position, too: their markers end it
            if header.next_offset <= self.position:
                continue
            self._after = header.next_offset
            self.epoch = header.partition_leader_epoch
            if hidden or header.is_control:
                self.position = self._after
                continue
            if self._check_crcs:
                check_crc(header, view)
            topic, partition = self.tp
            self._records.extend(
                ConsumerRecord(topic, partition, *record)
                for record in decode_records(view)
                if record.offset >= self.position
            )
            if self._records:
                return True
            self.position = self._after
        return False


def end_of(raw: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The offset behind the last whole batch before damage, and that batch's leader epoch; `position` and -1 if there
    is none. ProtocolError if the first one is damaged.
    """
    after, epoch = position, -1
    try:
        for header, _ in iter_batches(raw, partial_ok=True):
            after, epoch = max(after, header.next_offset), header.partition_leader_epoch
    except ProtocolError:
        if after == position:
            raise
    return after, epoch


class PartitionState:
    """Where a consumer stands in a partition.

    `position`: offset to be fetched next, None until it is known. `consumed`: offset behind what the user was given;
    `settled`: where that was when it was last committed, or handed to a transaction. `epoch`, `consumed_epoch`: the
    leader epoch of what lies before each, -1 if unknown; `checked`: that of the leader which has `position` for sure.
    """

    __slots__ = (
        "buffered",
        "checked",
        "checking",
        "consumed",
        "consumed_epoch",
        "epoch",
        "high_watermark",
        "last_stable_offset",
        "paused",
        "position",
        "preferred",
        "refusals",
        "refused",
        "reset",
        "settled",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        self.consumed: int | None = None
        self.settled: int | None = None
        self.epoch = self.consumed_epoch = self.checked = -1
        self.checking = False
        self.preferred: tuple[int, float] | None = None
        """The follower that the leader sent us to, and until when (the loop's time) that counts (KIP-392)."""
        self.buffered: deque[Fetched] = deque()
        self.paused = False
        self.reset: int | None = None
        """Timestamp to look the position up with (-2 first, -1 end, else ms), unless it is to be the committed one."""
        self.high_watermark = self.last_stable_offset = -1
        self.refusals = 0
        """How often in a row a broker has refused to be asked."""
        self.refused: tuple[int, Wanted, float] | None = None
        """Which node refused what, and until when (the loop's time) it is not asked for the same again."""

    def seek(self, offset: int) -> None:
        """Go to an offset (an `OffsetAndMetadata` knows the epoch before it); what was fetched goes. UsageError."""
        if offset < 0:
            raise errors.UsageError(f"there is no offset {offset} to seek; seek_to_end() and others go to a place")
        self.position = self.consumed = self.settled = int(offset)
        self.epoch = self.consumed_epoch = OffsetAndMetadata.of(offset).leader_epoch
        self.checked = -1
        self.reset = None
        self.buffered.clear()

    def go_back(self, offset: int) -> None:
        """What lies behind this was taken, but not given to the user: it comes again. What is settled stays so."""
        self.position = self.consumed = offset
        self.epoch = self.consumed_epoch = self.checked = -1
        self.buffered.clear()

    def seek_to_time(self, timestamp: int) -> None:
        """Go where ListOffsets says."""
        self.position = self.consumed = self.settled = None
        self.epoch = self.consumed_epoch = self.checked = -1
        self.reset = timestamp
        self.buffered.clear()

    def seek_to_committed(self) -> None:
        """Go where the group's offset is, else where auto.offset.reset says."""
        self.seek_to_time(0)
        self.reset = None

    def lag(self, *, committed_only: bool) -> int | None:
        """Offsets between what was consumed and what can be read, as of the last answer; None if unknown."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        return None if end < 0 or self.consumed is None else max(0, end - self.consumed)


def topic_ids_usable(wanted: Mapping[TopicPartition, Wanted]) -> bool:
    """Whether every topic's id is known, as versions above `LAST_WITH_NAMES` need."""
    return all(item.topic_id != NO_UUID for item in wanted.values())
