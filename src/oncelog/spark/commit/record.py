"""The decision record: the last message of the decision topic, the one truth about which batch is committed."""

from __future__ import annotations

from dataclasses import dataclass
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


class Transaction(NamedTuple):
    """One prepared task transaction."""

    owner: Owner
    spans: tuple[Span, ...]


class Source(NamedTuple):
    """Whose rows, and which of them: query id and batch id, or txnAppId and txnVersion.

    `checkpoint`: a streaming query's option checkpointLocation, "" if it is not given. `call`: the call of the
    foreachBatch function that wrote, or skipped, the batch last; a replay is another call. "" for other kinds.
    """

    kind: str
    query: str
    batch: int
    checkpoint: str = ""
    call: str = ""


NOBODY = Source(WRITE, "", -1)


@dataclass(frozen=True, slots=True)
class Record:
    """What the decision topic's last committed message says."""

    source: Source = NOBODY
    plan: int = 0
    slots: int = 0
    rows: int = 0
    settled: bool = True
    transactions: tuple[Transaction, ...] = ()
    topics: tuple[str, ...] = ()
    """Every topic that was written so far: where lost markers are looked for."""
    planner: Source = NOBODY
    """Who made the last plan, committed or not; its query id is "" where the plan could not tell it."""
    prefix: str = ""
    """Whose decisions the topic holds; "" in records older than this field, and where nothing was planned."""

    def encode(self) -> bytes:
        """As JSON, for people who look into the topic."""
        return msgspec.json.encode({"version": 1, "record": self})


EMPTY = Record()
"""Before the first plan."""


class _Envelope(msgspec.Struct):
    version: int
    record: Record


def decode_record(data: bytes) -> Record:
    """The record in a message's value. Raises msgspec.ValidationError when it is not one of ours."""
    envelope = msgspec.json.decode(data, type=_Envelope)
    if envelope.version != 1:
        raise msgspec.ValidationError(f"decision record of version {envelope.version}: written by a newer oncelog")
    return envelope.record
