"""The decision record: the last message of the decision topic. It alone says which batch is committed.

A record with few spans is one message. A larger one keeps its transactions in parts. These are separate messages that
the same transaction writes before the record, so that no batch of messages grows with tasks times partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from oncelog.spark.commit.names import TopicPartition

STREAM, APP, WRITE, EACH = "stream", "app", "write", "foreachBatch"
"""The kinds of writers: a streaming query, a batch write with txnAppId, a batch write without, and a batch write
without that runs inside foreachBatch, which takes the query's id and batch number. A plain batch write has nothing to
compare."""


class Owner(NamedTuple):
    """A transactional producer: enough to end its transaction from any process. `sequence`: the next one."""

    id: str
    pid: int
    epoch: int
    sequence: int = 0


class Span(NamedTuple):
    """First and last offset that a transaction wrote in one partition."""

    at: TopicPartition
    first: int
    last: int


class TaskTransaction(NamedTuple):
    """One prepared task transaction."""

    owner: Owner
    spans: tuple[Span, ...]


class End(NamedTuple):
    """A partition's end, read while all transactions of the batch were open. Their markers cannot be below it.

    `topic_id`: the id of the partition's topic then. It is "" if the brokers do not report it, and in records older
    than this field.
    """

    at: TopicPartition
    offset: int
    topic_id: str = ""


class Source(NamedTuple):
    """The source of the rows: query id and batch id, or txnAppId and txnVersion.

    `checkpoint`: the option checkpointLocation of a streaming query, "" if not given. `call`: the last call of the
    foreachBatch function that wrote or skipped the batch; a replay is another call. `topic`: the option topic of that
    write, "" if its rows name their topics. Both are "" for other kinds. `start` and `end`: digests of the offsets at
    which the batch of a streaming query begins and ends, as planned in the checkpoint. They are "" if the driver could
    not read them, in records older than these fields, and for other kinds; `start` is also "" for batch 0.
    """

    kind: str
    query: str
    batch: int
    checkpoint: str = ""
    call: str = ""
    topic: str = ""
    start: str = ""
    end: str = ""


NO_SOURCE = Source(WRITE, "", -1)


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the decision topic's last committed message."""

    source: Source = NO_SOURCE
    plan: int = 0
    slots: int = 0
    rows: int = 0
    settled: bool = True
    transactions: tuple[TaskTransaction, ...] = ()
    topics: tuple[str, ...] = ()
    """All topics written so far. The plan searches them for lost markers."""
    planner: Source = NO_SOURCE
    """The maker of the last plan, committed or not; its query id is "" if the plan could not read it."""
    prefix: str = ""
    """The prefix whose decisions the topic holds; "" in records older than this field, and before the first plan."""
    ends: tuple[End, ...] = ()
    parts: tuple[int, ...] = ()
    """Offsets of the messages that hold the transactions, if the record itself does not."""

    def encode(self) -> bytes:
        """Return the record as JSON, which any Kafka tool can display."""
        topics = _topics_of(self.transactions, self.ends)
        head = _Head(
            _PackedSource(*self.source[:-2]),
            self.plan,
            self.slots,
            self.rows,
            self.settled,
            self.topics,
            _PackedSource(*self.planner[:-2]),
            self.prefix,
            self.parts,
            topics,
            _pack(self.transactions, topics),
            _pack_ends(self.ends, topics),
            _topic_ids(self.ends, topics),
            self.source.start,
            self.source.end,
        )
        return msgspec.json.encode({"version": VERSION, "record": head})

    def divide(self, limit: int) -> tuple[tuple[Part, ...], Record]:
        """Split a record of more than about `limit` bytes into parts, each no longer, and a head.

        Returns no part and the record itself if it is small. The head lacks the parts' offsets, which brokers assign.
        """
        parts: list[Part] = []
        part = _Filling(limit)
        for owner, spans in self.transactions:
            for span in spans:
                if not part.add(owner, span):
                    parts.append(part.close(len(parts)))
                    part = _Filling(limit)
                    part.add(owner, span)
        for end in self.ends:
            if not part.add(None, end):
                parts.append(part.close(len(parts)))
                part = _Filling(limit)
                part.add(None, end)
        if not parts:
            return (), self
        return (*parts, part.close(len(parts))), replace(self, transactions=(), ends=())

    def join(self, parts: tuple[Part, ...]) -> Record:
        """Return the record with the transactions of its parts."""
        spans: dict[Owner, tuple[Span, ...]] = {}
        for part in parts:
            for owner, some in part.transactions:
                spans[owner] = spans.get(owner, ()) + some
        transactions = tuple(TaskTransaction(owner, all_of_it) for owner, all_of_it in spans.items())
        return replace(self, transactions=transactions, ends=tuple(e for part in parts for e in part.ends), parts=())


EMPTY = Record()
"""The record before the first plan."""


class Part(NamedTuple):
    """One message with some of a large record's transactions. The head, written later, has its offset."""

    number: int
    transactions: tuple[TaskTransaction, ...]
    ends: tuple[End, ...] = ()

    def encode(self) -> bytes:
        """Return the part as JSON."""
        topics = _topics_of(self.transactions, self.ends)
        packed = _pack(self.transactions, topics)
        ids = _topic_ids(self.ends, topics)
        return msgspec.json.encode(_Part(VERSION, topics, packed, _pack_ends(self.ends, topics), ids))


class _Filling:
    """Build a part until it is full. Sizes are upper estimates of the actual JSON."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._topics: set[str] = set()
        self._ids: set[str] = set()
        """Topics whose ids the part has."""
        self._spans: dict[Owner, list[Span]] = {}
        self._ends: list[End] = []

    def add(self, owner: Owner | None, item: Span | End) -> bool:
        """Add an owner's span, or an end. Returns False if the part is full."""
        cost = _ITEM_BYTES
        if item.at.topic not in self._topics:
            cost += _ITEM_BYTES + len(item.at.topic)
        if isinstance(item, End) and item.topic_id and item.at.topic not in self._ids:
            cost += _ITEM_BYTES + len(item.topic_id)
        if owner is not None and owner not in self._spans:
            cost += _ITEM_BYTES + len(owner.id)
        if cost > self._left and self._topics:
            return False
        self._left -= cost
        self._topics.add(item.at.topic)
        if isinstance(item, End):
            self._ids.add(item.at.topic)
            self._ends.append(item)
        elif owner is not None:
            self._spans.setdefault(owner, []).append(item)
        return True

    def close(self, number: int) -> Part:
        """Return the finished part."""
        spans = tuple(TaskTransaction(owner, tuple(some)) for owner, some in self._spans.items())
        return Part(number, spans, tuple(self._ends))


VERSION = 2
_ITEM_BYTES = 40
"""Bytes of JSON that a span or an end takes, or an owner or topic without its name, with offsets up to 10^12."""
_PackedTransaction = tuple[str, int, int, list[tuple[int, int, int, int]]]
"""Transactional id, producer id, epoch, and a tuple per span: index of the topic, partition, first offset,
number of offsets."""
_PackedEnd = tuple[int, int, int]
"""Index of the topic, partition, offset."""


class _PackedSource(NamedTuple):
    """The fields of a source that each oncelog with version 2 of the record knows. It rejects a longer list."""

    kind: str
    query: str
    batch: int
    checkpoint: str = ""
    call: str = ""
    topic: str = ""


class _Head(msgspec.Struct):
    """Version 2 of a record. `spanned` is the table of topics that `transactions` and `ends` refer to.

    `ids`: the id of each topic in `spanned`, or nothing. `start` and `end`: those of `source`. An older oncelog reads
    the record without these. Some versions had one digest, `offsets`, which is ignored.
    """

    source: _PackedSource
    plan: int
    slots: int
    rows: int
    settled: bool
    topics: tuple[str, ...]
    planner: _PackedSource
    prefix: str
    parts: tuple[int, ...] = ()
    spanned: tuple[str, ...] = ()
    transactions: list[_PackedTransaction] = []
    ends: list[_PackedEnd] = []
    ids: tuple[str, ...] = ()
    start: str = ""
    end: str = ""


class _Part(msgspec.Struct):
    version: int
    spanned: tuple[str, ...]
    transactions: list[_PackedTransaction]
    ends: list[_PackedEnd]
    ids: tuple[str, ...] = ()


class _OldRecord(msgspec.Struct):
    """Version 1 of a record: each span has its topic's name."""

    source: Source = NO_SOURCE
    plan: int = 0
    slots: int = 0
    rows: int = 0
    settled: bool = True
    transactions: tuple[TaskTransaction, ...] = ()
    topics: tuple[str, ...] = ()
    planner: Source = NO_SOURCE
    prefix: str = ""


class _Versioned(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct):
    record: _Head


class _OldEnvelope(msgspec.Struct):
    record: _OldRecord


def decode_record(data: bytes) -> Record:
    """Decode the record in a message's value. Raises msgspec.ValidationError if it is not a sink's record."""
    version = _version_of(data)
    if version == 1:
        old = msgspec.json.decode(data, type=_OldEnvelope).record
        return Record(**msgspec.structs.asdict(old))
    head = msgspec.json.decode(data, type=_Envelope).record
    fields = msgspec.structs.asdict(head)
    topics = fields.pop("spanned")
    fields["source"] = Source(*head.source, fields.pop("start"), fields.pop("end"))
    fields["planner"] = Source(*head.planner)
    fields["transactions"] = _unpack(head.transactions, topics)
    fields["ends"] = _unpack_ends(head.ends, topics, fields.pop("ids"))
    return Record(**fields)


def decode_part(number: int, data: bytes) -> Part:
    """Decode a part in a message's value. Raises msgspec.ValidationError if it is not a sink's part."""
    _version_of(data)
    part = msgspec.json.decode(data, type=_Part)
    return Part(number, _unpack(part.transactions, part.spanned), _unpack_ends(part.ends, part.spanned, part.ids))


def _version_of(data: bytes) -> int:
    version = msgspec.json.decode(data, type=_Versioned).version
    if version > VERSION:
        raise msgspec.ValidationError(
            f"the decision record has version {version}, which a newer oncelog has written; upgrade oncelog"
        )
    return version


def _topics_of(transactions: tuple[TaskTransaction, ...], ends: tuple[End, ...]) -> tuple[str, ...]:
    return tuple(sorted({span.at.topic for t in transactions for span in t.spans} | {end.at.topic for end in ends}))


def _pack(transactions: tuple[TaskTransaction, ...], topics: tuple[str, ...]) -> list[_PackedTransaction]:
    index = {topic: number for number, topic in enumerate(topics)}
    return [
        (o.id, o.pid, o.epoch, [(index[at.topic], at.partition, first, last - first + 1) for at, first, last in spans])
        for o, spans in transactions
    ]


def _pack_ends(ends: tuple[End, ...], topics: tuple[str, ...]) -> list[_PackedEnd]:
    index = {topic: number for number, topic in enumerate(topics)}
    return [(index[end.at.topic], end.at.partition, end.offset) for end in ends]


def _topic_ids(ends: tuple[End, ...], topics: tuple[str, ...]) -> tuple[str, ...]:
    """Return the id of each of these topics, or nothing if no id is known."""
    known = {end.at.topic: end.topic_id for end in ends if end.topic_id}
    return tuple(known.get(topic, "") for topic in topics) if known else ()


def _unpack(packed: list[_PackedTransaction], topics: tuple[str, ...]) -> tuple[TaskTransaction, ...]:
    return tuple(
        TaskTransaction(
            Owner(name, pid, epoch),
            tuple(
                Span(_topic_partition(topics, topic, number), first, first + count - 1)
                for topic, number, first, count in spans
            ),
        )
        for name, pid, epoch, spans in packed
    )


def _unpack_ends(packed: list[_PackedEnd], topics: tuple[str, ...], ids: tuple[str, ...]) -> tuple[End, ...]:
    known = dict(zip(topics, ids, strict=False))
    places = ((_topic_partition(topics, topic, partition), offset) for topic, partition, offset in packed)
    return tuple(End(at, offset, known.get(at.topic, "")) for at, offset in places)


def _topic_partition(topics: tuple[str, ...], index: int, partition: int) -> TopicPartition:
    if not 0 <= index < len(topics):
        raise msgspec.ValidationError(f"topic {index} of {len(topics)}")
    return TopicPartition(topics[index], partition)
