"""The requests that the protocol sends to the brokers, and their responses.

The shell retries transient errors (no coordinator yet, CONCURRENT_TRANSACTIONS, a lost connection), so an answer is
always definite. If the shell runs out of time, it raises an exception, which has the effect of a crash there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from oncelog.client.types import Marker as Marker
from oncelog.client.types import Place as Place
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import End as End
from oncelog.spark.commit.record import Owner, Part, Record, Span

WINDOW, WIDEST = 2, 64
"""Entries that the first read from the end of the decision topic returns (record and marker), and the maximum."""


class RequestOutcome(StrEnum):
    """The outcome of a request that changes something."""

    DONE = "done"
    FENCED = "fenced"
    """PRODUCER_FENCED, INVALID_PRODUCER_EPOCH or INVALID_PRODUCER_ID_MAPPING."""
    INVALID_STATE = "invalid state"
    """INVALID_TXN_STATE: nothing to end, or ended the other way."""
    DENIED = "denied"
    """CLUSTER_AUTHORIZATION_FAILED."""
    TOO_LARGE = "too large"
    """MESSAGE_TOO_LARGE or RECORD_LIST_TOO_LARGE: nothing was appended."""


class TxnState(StrEnum):
    """The state of a transactional id at its coordinator. The protocol does not distinguish all states."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    ENDING = "Ending"
    """PrepareCommit, PrepareAbort or PrepareEpochFence."""
    COMPLETE = "Complete"


class Listed(NamedTuple):
    """One row of ListTransactions."""

    id: str
    pid: int
    state: TxnState


class Described(NamedTuple):
    """One row of DescribeTransactions. `left_ms`: the time until the transaction expires."""

    id: str
    pid: int
    epoch: int
    state: TxnState
    left_ms: int


class OpenProducer(NamedTuple):
    """A producer in DescribeProducers whose transaction is open in a partition from offset `start` on."""

    at: TopicPartition
    pid: int
    epoch: int
    start: int


class Ended(NamedTuple):
    """The result of EndTxn, with the owner afterwards (transaction.version 2 moves the epoch)."""

    outcome: RequestOutcome
    owner: Owner


class Produced(NamedTuple):
    """The result of Produce."""

    outcome: RequestOutcome
    offset: int = -1


class Rows(NamedTuple):
    """The result of ProduceRows: how many rows, and where they are."""

    outcome: RequestOutcome
    rows: int
    spans: tuple[Span, ...]


class Message(NamedTuple):
    """One entry of the decision topic.

    Either a record, or a control marker (`record` is None), which commits or aborts.
    """

    offset: int
    pid: int
    epoch: int
    record: Record | None
    commit: bool = False


class Window(NamedTuple):
    """The decision topic's entries from `start` on. `first`: the topic has no earlier entry."""

    start: int
    end: int
    stable: int
    first: bool
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """ListTransactions on every broker -> tuple[Listed, ...] of task ids of this prefix.

    With `ongoing`, the result may omit transactions in any other state than Ongoing. Without `patient`, it omits those
    of brokers that do not answer within ten seconds.
    """

    prefix: str
    ongoing: bool = False
    patient: bool = True


@dataclass(frozen=True, slots=True)
class DescribeTransactions:
    """DescribeTransactions of each id -> tuple[Described, ...] of the known ids."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducers:
    """DescribeProducers on each partition's leader -> tuple[OpenProducer, ...]."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """InitProducerId -> Owner; ends the id's open transaction, and fences its earlier owner.

    `once`: the shell sends the request again only after an error response. If the connection ends without a response,
    the result is None, and a copy of the request may still reach the coordinator later. `two_phase`: the transactions
    have no timeout, if the coordinator permits it (KIP-939).
    """

    id: str
    timeout_ms: int
    once: bool = False
    two_phase: bool = False


@dataclass(frozen=True, slots=True)
class EndTxn:
    """EndTxn -> Ended.

    `within_ms`: the shell gives up when so much time has passed since it sent the owner's first Produce. It then
    raises TimedOutError, and the outcome is open.
    """

    owner: Owner
    commit: bool
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EndAll:
    """EndTxn for each, in parallel -> tuple[RequestOutcome, ...]."""

    owners: tuple[Owner, ...]
    commit: bool


@dataclass(frozen=True, slots=True)
class AwaitEnded:
    """Wait while the coordinator is ending a transaction of one of these (id, pid), whatever its epoch -> None.

    Do not wait for a transaction that is open or was never begun.
    """

    owners: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class ReadDecisions:
    """Fetch the decision topic's last entries before offset `before` (None: its end) -> Window.

    `since` is the offset of an existing entry: if it is given, fetch all entries from that one on.
    Omit parts of records.
    """

    at: TopicPartition
    before: int | None = None
    since: int | None = None
    width: int = WINDOW
    """How many entries to read, unless `since` is given."""


@dataclass(frozen=True, slots=True)
class ReadParts:
    """Fetch the parts of a record from the decision topic -> tuple[Part, ...]."""

    at: TopicPartition
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Produce:
    """Write one record, or a part of one, into the decision topic under this owner -> Produced."""

    owner: Owner
    at: TopicPartition
    record: Record | Part


@dataclass(frozen=True, slots=True)
class FindEnds:
    """New metadata, then ListOffsets of each partition's leader -> tuple[End, ...] of the partitions that exist."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class FindMarkers:
    """Wait for the first control marker of each place, as long as is reasonable -> tuple[Marker, ...]."""

    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class WriteTxnMarkers:
    """Write one control marker into one partition -> RequestOutcome."""

    at: TopicPartition
    pid: int
    epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class PeekRows:
    """Compute the task's first rows -> bool, whether there are any."""


@dataclass(frozen=True, slots=True)
class ProduceRows:
    """Produce the task's rows with acks=all, and wait for every response -> Rows."""

    owner: Owner


Operation = (
    ListTransactions
    | DescribeTransactions
    | DescribeProducers
    | InitProducerId
    | EndTxn
    | EndAll
    | AwaitEnded
    | ReadDecisions
    | ReadParts
    | Produce
    | FindEnds
    | FindMarkers
    | WriteTxnMarkers
    | PeekRows
    | ProduceRows
)
