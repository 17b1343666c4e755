"""Take a decision back on an operator's request: for a batch that is decided but was torn by a timeout.

Only an ABORT marker after the rows proves that they will never be visible. If none can be found or written, the
decision stays. Otherwise the producer's next COMMIT, or a repair by a driver that still runs, would show these rows
beside those that Spark writes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from oncelog.spark.commit import operations as op
from oncelog.spark.commit import plan
from oncelog.spark.commit.errors import NotVerifiedError, TornBatchError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.plan import Planning
from oncelog.spark.commit.record import WRITE, Owner, Record, Source, Span
from oncelog.spark.commit.steps import Phase, Sink, Steps, find_markers_again, marker_places

Part = tuple[Owner, Span]
"""What one decided transaction wrote in one partition."""


def _parts(record: Record) -> tuple[Part, ...]:
    return tuple((t.owner, span) for t in record.transactions for span in t.spans)


def _owners(parts: tuple[Part, ...]) -> tuple[Owner, ...]:
    return tuple(dict.fromkeys(owner for owner, _ in parts))


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(set(partitions)))


def _find_ongoing(record: Record) -> Steps[set[tuple[str, int, int]]]:
    """Return (id, pid, epoch) of the decided transactions that have not ended yet."""
    ids = tuple(t.owner.id for t in record.transactions)
    described: tuple[op.Described, ...] = yield op.DescribeTransactions(ids)
    return {(d.id, d.pid, d.epoch) for d in described if d.state is op.TxnState.ONGOING}


def _find_markers(record: Record, parts: tuple[Part, ...]) -> Steps[tuple[op.Marker, ...]]:
    markers: tuple[op.Marker, ...] = yield op.FindMarkers(marker_places(parts, record.ends))
    return markers


def _missing(parts: tuple[Part, ...], markers: tuple[op.Marker, ...]) -> tuple[Part, ...]:
    return tuple(part for part, marker in zip(parts, markers, strict=True) if marker is op.Marker.MISSING)


def _find_hanging(parts: tuple[Part, ...]) -> Steps[tuple[op.OpenProducer, ...]]:
    """Return the producers that are open in a partition at these rows, under whatever epoch."""
    last = {(span.at, owner.pid): span.last for owner, span in parts}
    opened: tuple[op.OpenProducer, ...] = yield op.DescribeProducers(tuple(sorted({at for at, _ in last})))
    return tuple(p for p in opened if p.start <= last.get((p.at, p.pid), -1))


def _abort_hanging(sink: Sink, parts: tuple[Part, ...]) -> Steps[None]:
    """Write the ABORT markers that were lost. Raises NotVerifiedError if the sink may not."""
    hanging = yield from _find_hanging(parts)
    own = {op.OpenProducer(span.at, owner.pid, owner.epoch, span.first) for owner, span in parts}
    denied = yield from plan.abort_hanging(tuple(producer for producer in hanging if producer in own))
    if denied:
        raise NotVerifiedError(
            f"sink {sink.prefix!r}: markers of the decided batch were lost in {_names(p.at for p in denied)}, so a "
            "later COMMIT would make its rows visible. Writing an ABORT needs the permission ClusterAction. The batch "
            "is still decided: ask an operator with this permission to run `oncelog sink settle "
            f"{sink.prefix}`, or `oncelog sink abort {sink.prefix}` again"
        )


def _see_aborted(sink: Sink, record: Record, parts: tuple[Part, ...]) -> Steps[None]:
    """Find an ABORT marker after each part, or write it if it was lost. Raises TornBatchError or NotVerifiedError.

    Search all markers before writing one.
    """
    if not parts:
        return
    yield op.AwaitEnded(_owners(parts))
    markers = yield from _find_markers(record, parts)
    _refuse_visible(sink, record, markers)
    missing = _missing(parts, markers)
    if not missing:
        return
    yield from _abort_hanging(sink, missing)
    again = yield from find_markers_again(record, missing)
    markers = tuple(marker for _, marker in again)
    _refuse_visible(sink, record, markers)
    if still := _missing(missing, markers):
        raise NotVerifiedError(
            f"sink {sink.prefix!r}: batch {record.source.batch} has no marker in "
            f"{_names(span.at for _, span in still)}, so its rows there may be visible or become visible. The batch is "
            "not revoked. Check the rows, then retry; --accept-loss ends the batch without a replay"
        )


def _refuse_visible(sink: Sink, record: Record, markers: tuple[op.Marker, ...]) -> None:
    visible, gone = markers.count(op.Marker.COMMIT), markers.count(op.Marker.GONE)
    batch, parts = record.source.batch, len(_parts(record))
    if visible:
        raise TornBatchError(
            f"sink {sink.prefix!r}: at least {visible} of {parts} parts of batch {batch} are visible, so the batch "
            f"cannot be revoked. Run `oncelog sink settle {sink.prefix}` to commit the rest. If that fails, write the "
            "missing rows again, then end the batch with --accept-loss"
        )
    if gone:
        raise NotVerifiedError(
            f"sink {sink.prefix!r}: {gone} of {parts} parts of batch {batch} are deleted, and consumers may have read "
            f"them, so the batch is not revoked. Run `oncelog sink settle {sink.prefix}` to continue without them. If "
            "part of the rest is lost, use --accept-loss"
        )


def take_back(state: Planning) -> Steps[Planning]:
    """U3, in the place of P3: set the record back by one batch, so that Spark replays the batch.

    Raises an error unless nothing of the batch will ever be visible. Transactions that have ended are checked first: if
    this raises, `settle` can still commit the others.
    """
    record = state.carried().record
    if record.settled:
        return state
    ongoing = yield from _find_ongoing(record)
    parts = _parts(record)
    yield from _see_aborted(state.sink, record, tuple(part for part in parts if part[0][:3] not in ongoing))
    left = tuple(part for part in parts if part[0][:3] in ongoing)
    if left:
        yield op.EndAll(_owners(left), commit=False)
    yield from _see_aborted(state.sink, record, left)
    return replace(state, record=replace(record, source=_before(record.source), rows=0, slots=0))


def _before(source: Source) -> Source:
    """Return the source as it was before this batch.

    The owner stays the same: its record has replaced that of an earlier writer, which could repeat a batch unnoticed.
    The batch before ended where this one begins.
    """
    return source if source.kind == WRITE else source._replace(batch=source.batch - 1, start="", end=source.start)


def accept_loss(state: Planning) -> Steps[Planning]:
    """U3, in the place of P3: keep what is visible, abort the rest, and count the batch as committed.

    No row may hang afterwards: it would become visible beside what the operator has written again.
    """
    record = state.carried().record
    if record.settled:
        return state
    parts = _parts(record)
    yield op.EndAll(_owners(parts), commit=False)
    yield op.AwaitEnded(_owners(parts))
    missing = _missing(parts, (yield from _find_markers(record, parts)))
    if missing:
        yield from _abort_hanging(state.sink, missing)
        if hanging := (yield from _find_hanging(missing)):
            raise NotVerifiedError(
                f"sink {state.sink.prefix!r}: rows of the decided batch are still open in "
                f"{_names(p.at for p in hanging)}, in a newer transaction of the same producer; retry when that "
                "transaction has ended"
            )
    return state


def _plan_with(phase: Phase[Planning]) -> tuple[Phase[Planning], ...]:
    return tuple(phase if known is plan.finish_decision else known for known in plan.PLAN)


UNDO = _plan_with(take_back)
UNDO_ACCEPTING = _plan_with(accept_loss)
