"""Taking a decision back: for a batch that is decided but was torn by a time-out, on an operator's word."""

from __future__ import annotations

from dataclasses import replace

from oncelog.spark.commit import operations as op
from oncelog.spark.commit import plan
from oncelog.spark.commit.errors import TornBatchError
from oncelog.spark.commit.plan import Planning
from oncelog.spark.commit.record import NOBODY, STREAM, Record
from oncelog.spark.commit.steps import Phase, Sink, Steps


def _abort_all(sink: Sink, record: Record) -> Steps[list[op.Marker]]:
    """EndTxn(abort) for every decided transaction; how each one ended in each partition."""
    yield op.EndAll(tuple(t.owner for t in record.transactions), commit=False)
    pairs = [(t, span) for t in record.transactions for span in t.spans]
    places = tuple(op.Place(span.at, t.owner.pid, span.last) for t, span in pairs)
    markers: tuple[op.Marker, ...] = yield op.FindMarkers(places)
    missing = [pair for pair, marker in zip(pairs, markers, strict=True) if marker is op.Marker.MISSING]
    if missing:
        opened: tuple[op.OpenProducer, ...] = yield op.DescribeProducers(tuple(sorted({s.at for _, s in missing})))
        for t, span in missing:
            if op.OpenProducer(span.at, t.owner.pid, t.owner.epoch, span.first) in opened:
                yield op.WriteTxnMarkers(span.at, t.owner.pid, t.owner.epoch, commit=False)
        markers = yield op.FindMarkers(places)
    return list(markers)


def u3_take_back(state: Planning) -> Steps[Planning]:
    """Nothing of it visible: the record goes back by one batch, and Spark replays it. Else: refuse."""
    record = state.carried().record
    if record.settled:
        return state
    markers = yield from _abort_all(state.sink, record)
    visible = sum(marker is op.Marker.COMMIT for marker in markers)
    if visible:
        raise TornBatchError(
            f"{state.sink.prefix}: {visible} of {len(markers)} parts of batch {record.source.batch} are visible, "
            "so it cannot be taken back whole. Write what is missing again, then --accept-loss ends the matter"
        )
    source = record.source
    before = source._replace(batch=source.batch - 1) if source.kind == STREAM and source.batch else NOBODY
    return replace(state, record=replace(record, source=before, rows=0, slots=0))


def u3_accept(state: Planning) -> Steps[Planning]:
    """What is visible stays, the rest is aborted, and the batch counts as committed."""
    record = state.carried().record
    if not record.settled:
        yield from _abort_all(state.sink, record)
    return state


def _instead(phase: Phase[Planning]) -> tuple[Phase[Planning], ...]:
    return tuple(phase if known is plan.p3_finish else known for known in plan.PLAN)


UNDO = _instead(u3_take_back)
UNDO_ACCEPTING = _instead(u3_accept)
