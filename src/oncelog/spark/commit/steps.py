"""Phases, how they run one after the other, and the steps that several programs share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import AnotherDriverError, NotDecidedError, NotVerifiedError, TornBatchError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner, Part, Record, Span

T = TypeVar("T")
Steps = Generator[op.Operation, Any, T]
Phase = Callable[[T], Steps[T]]


DRIVER_TIMEOUT_MS = 45_000
"""The driver's transaction.timeout.ms. A broker may be down for this long between the proposal and the decision."""
MARGIN_MS = 60_000
EXPIRY_CHECK_MS = 10_000
"""How often Apache Kafka checks for expired transactions: it may end one this much later than its timeout."""
PART_BYTES = 500_000
"""A record with more bytes of JSON than this is divided. Even uncompressed, its messages have at most half the size
that the default `max.message.bytes` allows."""
LAST_EPOCH = 2**15 - 2
"""The last epoch that a client gets (TransactionMetadata.isProducerEpochExhausted). Then its producer id changes."""


@dataclass(frozen=True, slots=True)
class Sink:
    """The settings that all processes of one sink share."""

    prefix: str
    decision: TopicPartition
    targets: tuple[TopicPartition, ...] = ()
    """Output partitions that are known before the tasks run, for the search for lost markers."""
    driver_timeout_ms: int = DRIVER_TIMEOUT_MS
    task_timeout_ms: int = 900_000
    two_phase: bool = False
    """Whether the tasks' transactions have no timeout (KIP-939). Then no batch can be torn by one."""
    margin_ms: int = MARGIN_MS
    """A prepared transaction with less time left than this is not committed.

    It is never less than the driver's own timeout, which begins before the last check (C2). A driver that is paused
    after that check cannot decide what has expired. The default allows for a broker that ends the driver's transaction
    later than its timeout (Kafka checks every ten seconds)."""
    last_epoch: int = LAST_EPOCH
    part_bytes: int = PART_BYTES


def run(phases: tuple[Phase[T], ...], state: T) -> Steps[T]:
    """Run one phase after the other."""
    for phase in phases:
        state = yield from phase(state)
    return state


def write_record(sink: Sink, driver: Owner, record: Record) -> Steps[tuple[Owner, op.Place]]:
    """One transaction under the driver that writes the record -> (driver afterwards, where its marker will be)."""
    driver, place = yield from propose_record(sink, driver, record)
    return (yield from commit_record(sink, driver)), place


def propose_record(sink: Sink, driver: Owner, record: Record) -> Steps[tuple[Owner, op.Place]]:
    """Write the parts of the record (if it is large), then the record, and leave the transaction open.

    Return the driver with its next sequence, and the place of the marker. Nothing is decided yet. Raises
    NotDecidedError if a message is too large: then no record was written, so none can be decided.
    """
    offsets: tuple[int, ...] = ()
    parts, head = record.divide(sink.part_bytes)
    for part in parts:
        driver, offset = yield from _write(sink, driver, part)
        offsets += (offset,)
    driver, offset = yield from _write(sink, driver, replace(head, parts=offsets))
    return driver, op.Place(sink.decision, driver.pid, offset)


def _write(sink: Sink, driver: Owner, message: Record | Part) -> Steps[tuple[Owner, int]]:
    """Produce one message -> (the driver with its next sequence, the message's offset)."""
    produced: op.Produced = yield op.Produce(driver, sink.decision, message)
    if produced.outcome is op.RequestOutcome.TOO_LARGE:
        raise NotDecidedError(_too_large(sink, message))
    if produced.outcome is not op.RequestOutcome.DONE:
        raise AnotherDriverError(
            f"option transactionalIdPrefix={sink.prefix}: a newer driver has fenced this one (decision rejected)"
        )
    return driver._replace(sequence=driver.sequence + 1), produced.offset


def _too_large(sink: Sink, message: Record | Part) -> str:
    """Return the error for a rejected message. The list of topics is the only part of a record that is not divided."""
    size = len(message.encode())
    cure = f"set the topic's max.message.bytes to at least {2 * max(sink.part_bytes, size)}"
    if isinstance(message, Record) and size > sink.part_bytes:
        cure += (
            f", or write to fewer topics with transactionalIdPrefix={sink.prefix}: each record names all "
            f"{len(message.topics)} topics that the sink has written to, in {size} bytes"
        )
    return f"option decisionTopic: {sink.decision.topic} rejected a message of the decision as too large; {cure}"


def commit_record(sink: Sink, driver: Owner) -> Steps[Owner]:
    """Commit the record that was proposed -> the driver afterwards.

    Give up after the driver's own timeout. A coordinator that is down for longer cannot expire the driver's
    transaction meanwhile. If it committed the decision afterwards, the tasks' transactions might have expired.
    """
    ended: op.Ended = yield op.EndTxn(driver, commit=True, within_ms=sink.driver_timeout_ms)
    if ended.outcome is not op.RequestOutcome.DONE:
        raise AnotherDriverError(
            f"option transactionalIdPrefix={sink.prefix}: a newer driver has fenced this one, or the decision was too "
            f"late ({ended.outcome})"
        )
    return ended.owner


def await_commit_marker(sink: Sink, place: op.Place) -> Steps[None]:
    """Wait until the decision partition shows the COMMIT marker; repair nothing.

    If a coordinator restarts after its response, it may write the marker after FindMarkers has timed out.
    """
    (marker,) = yield op.FindMarkers((place,))
    if marker is op.Marker.MISSING:
        yield op.AwaitEnded((Owner(sink.prefix, place.producer_id, -1),))
        (marker,) = yield op.FindMarkers((place,))
    if marker is not op.Marker.COMMIT:
        raise NotDecidedError(
            f"sink {sink.prefix!r}: the decision at offset {place.after} of {place.at[0]} is not committed (its marker "
            f"is {marker}); Spark replays the batch"
        )


def commit_all(record: Record) -> Steps[None]:
    """Send EndTxn(commit) for each transaction. Only the markers prove the outcome, not the responses."""
    if record.transactions:
        yield op.EndAll(tuple(t.owner for t in record.transactions), commit=True)


def marker_places(spans: Iterable[tuple[Owner, Span]], ends: Iterable[op.End] = ()) -> tuple[op.Place, ...]:
    """Return where to look for the markers of these spans.

    C1b read the `ends` of the partitions, and saw the transactions open afterwards. So their markers cannot be below
    these ends. Between a task's rows and that end are only rows of other tasks, which need not be fetched again.

    Only a log that was truncated below such an end (by an unclean leader election, or a restored disk) has a marker
    there. A search that finds no marker is therefore repeated without `ends`.
    """
    known = {end.at: end.offset for end in ends}
    return tuple(op.Place(span.at, owner.pid, max(span.last, known.get(span.at, 0) - 1)) for owner, span in spans)


def find_markers_again(
    record: Record, missing: Sequence[tuple[Owner, Span]]
) -> Steps[tuple[tuple[tuple[Owner, Span], op.Marker], ...]]:
    """Repeat a search for these spans of the record that has found no marker -> each span with its marker.

    The marker is GONE if the topic was deleted since C1b, also if it was created again under its name.
    """
    found: tuple[op.Marker, ...] = yield op.FindMarkers(marker_places(missing))
    again = tuple(zip(missing, found, strict=True))
    left = tuple(sorted({span.at for (_, span), marker in again if marker is op.Marker.MISSING}))
    if not left:
        return again
    ends: tuple[op.End, ...] = yield op.FindEnds(left)
    before, now = ({end.at: end.topic_id for end in some} for some in (record.ends, ends))
    gone = {at for at in left if at not in now or (before.get(at) and now[at] and before[at] != now[at])}
    return tuple(
        (pair, op.Marker.GONE if marker is op.Marker.MISSING and pair[1].at in gone else marker)
        for pair, marker in again
    )


def verify_all(sink: Sink, record: Record) -> Steps[None]:
    """Find the COMMIT marker of each transaction in each of its partitions, or repair it, or fail.

    Rows that were deleted, by retention or with their topic, have no marker and need none. A marker is lost only if its
    coordinator has ended the transaction. A coordinator that restarts may write its markers after FindMarkers has
    timed out.
    """
    wanted = [(t.owner, span) for t in record.transactions for span in t.spans]
    if not wanted:
        return
    markers: tuple[op.Marker, ...] = yield op.FindMarkers(marker_places(wanted, record.ends))
    missing = [pair for pair, marker in zip(wanted, markers, strict=True) if marker is op.Marker.MISSING]
    aborted = [pair for pair, marker in zip(wanted, markers, strict=True) if marker is op.Marker.ABORT]
    if missing:
        yield op.AwaitEnded(tuple(dict.fromkeys(owner for owner, _ in missing)))
        described: tuple[op.OpenProducer, ...] = yield op.DescribeProducers(tuple(sorted({s.at for _, s in missing})))
        opened = set(described)
        for owner, span in missing:
            if op.OpenProducer(span.at, owner.pid, owner.epoch, span.first) in opened:
                yield from _repair(sink, owner, span.at)
        again = yield from find_markers_again(record, missing)
        aborted += [pair for pair, marker in again if marker is op.Marker.ABORT]
        still = {span.at for (_, span), marker in again if marker is op.Marker.MISSING}
        if still and not aborted:
            raise NotVerifiedError(
                f"sink {sink.prefix!r}: a commit marker is missing in "
                f"{', '.join(f'{t}-{p}' for t, p in sorted(still))}; the next plan, or `oncelog sink settle "
                f"{sink.prefix}`, searches again. If the marker remains missing because the rows are lost (the "
                "partition was truncated, or its topic was created again), run `oncelog sink abort "
                f"{sink.prefix} --accept-loss` to end the batch without them"
            )
    if aborted:
        lost = ", ".join(f"{o.id} in {s.at.topic}-{s.at.partition} {s.first}..{s.last}" for o, s in aborted)
        raise TornBatchError(
            f"sink {sink.prefix!r}: transactions of a decided batch were aborted before they could be committed "
            f"(probably by their timeout of {sink.task_timeout_ms} ms): {lost}. Run `oncelog sink abort "
            f"{sink.prefix}`: it revokes the batch if none of its rows is visible, and Spark replays it; otherwise, it "
            "reports which rows to write again"
        )


def _repair(sink: Sink, owner: Owner, at: TopicPartition) -> Steps[None]:
    outcome: op.RequestOutcome = yield op.WriteTxnMarkers(at, owner.pid, owner.epoch, commit=True)
    if outcome is op.RequestOutcome.DENIED:
        raise NotVerifiedError(
            f"sink {sink.prefix!r}: the commit marker of {owner.id} was lost in {at.topic}-{at.partition}, and writing "
            "it needs the permission ClusterAction; ask an operator with this permission to run `oncelog sink settle "
            f"{sink.prefix}`"
        )
