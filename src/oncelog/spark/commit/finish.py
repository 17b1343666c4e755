"""Commit(b) and Abort(b): what the driver does, in another process, after the tasks. Steps C1 to C6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oncelog.errors import RetriableError
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotDecidedError, SinkError
from oncelog.spark.commit.plan import Carried, abort_left, find_open
from oncelog.spark.commit.record import EMPTY, Owner, Record, Source, TaskTransaction
from oncelog.spark.commit.steps import (
    Phase,
    Sink,
    Steps,
    T,
    await_commit_marker,
    commit_all,
    commit_record,
    propose_record,
    verify_all,
    write_record,
)
from oncelog.spark.commit.task import Prepared, Skipped, TaskMessage


@dataclass(frozen=True, slots=True)
class Committing:
    """The state between two phases of a commit."""

    sink: Sink
    messages: tuple[TaskMessage, ...]
    carried: Carried | None = None
    """None: all tasks skipped the batch, and there is nothing to write."""
    record: Record = EMPTY
    left: tuple[Owner, ...] = ()
    place: op.Place | None = None


def collect_reports(state: Committing) -> Steps[Committing]:
    """C1: check the reports of the tasks.

    If all tasks skipped, there is nothing to commit. If all prepared under one plan, commit them. Reject a mixture.
    """
    yield from ()  # a phase is a generator even if it sends no request
    skipped = [m for m in state.messages if isinstance(m, Skipped)]
    prepared = [m for m in state.messages if isinstance(m, Prepared)]
    if not prepared:
        _check_skipped(skipped)
        return _note_source(state, skipped)
    plans: set[tuple[Carried, Source]] = {(m.carried, m.source) for m in prepared}
    if skipped or len(plans) > 1:
        raise _different_plans(state.sink)
    ((carried, source),) = plans
    transactions = tuple(m.transaction for m in prepared if m.transaction is not None)
    record = Record(
        source=source,
        plan=carried.record.plan,
        slots=len(prepared),
        rows=sum(m.rows for m in prepared),
        settled=not transactions,
        transactions=transactions,
        topics=tuple(sorted({*carried.record.topics, *(s.at.topic for t in transactions for s in t.spans)})),
        planner=carried.record.planner,
        prefix=carried.record.prefix,
    )
    return replace(state, carried=carried, record=record)


def _note_source(state: Committing, skipped: Sequence[Skipped]) -> Committing:
    """Record what the next batch is compared with, if the skipped batch has changed it."""
    plans = {(m.carried, m.source) for m in skipped}
    if len(plans) > 1:
        raise _different_plans(state.sink)
    for carried, source in plans:
        if carried is not None:
            return replace(state, carried=carried, record=replace(carried.record, source=source))
    return state


def _different_plans(sink: Sink) -> NotDecidedError:
    return NotDecidedError(
        f"sink {sink.prefix!r}: the reports of the tasks belong to different plans; Spark replays the batch"
    )


def _check_skipped(skipped: Sequence[Skipped]) -> None:
    rows = sum(m.rows for m in skipped)
    if not skipped or skipped[0].total < 0 or rows == skipped[0].total:
        return
    batch, total = skipped[0].batch, skipped[0].total
    cure = (
        "If this is expected, because the source has lost rows and failOnDataLoss=false, set "
        f"acceptReplay={batch} to continue after this batch"
        if rows < total
        else "If the checkpoint is an older copy, restore the newer one, or start a new checkpoint where the committed "
        "rows end (startingOffsets, takeOver=true). If this is a batch write, give new rows a higher txnVersion. "
        f"With acceptReplay={batch}, the sink would continue after this batch, without its new rows"
    )
    raise SinkError(
        f"batch {batch} was committed with {total} rows and is now replayed with {rows} rows, so the source or the "
        f"query did not return the same rows again. Nothing was written, and the committed rows remain. {cure}"
    )


def _require_time_left(transactions: tuple[TaskTransaction, ...], margin_ms: int) -> Steps[None]:
    """Raise NotDecidedError unless each transaction is Ongoing under its producer id and epoch, with this time left."""
    described: tuple[op.Described, ...] = yield op.DescribeTransactions(tuple(t.owner.id for t in transactions))
    known = {(d.id, d.pid, d.epoch): d for d in described if d.state is op.TxnState.ONGOING}
    for t in transactions:
        found = known.get((t.owner.id, t.owner.pid, t.owner.epoch))
        if found is None:
            raise NotDecidedError(
                f"the transaction of {t.owner.id} is no longer open: a newer driver of this prefix has aborted it, or "
                "it has timed out (kafka.transaction.timeout.ms). Spark replays the batch"
            )
        if found.left_ms < margin_ms:
            raise NotDecidedError(
                f"the transaction of {t.owner.id} times out in {found.left_ms} ms, which is too short to commit it "
                "safely. Increase kafka.transaction.timeout.ms for this batch, or set maxOffsetsPerTrigger for "
                "smaller batches. If the clocks of driver and brokers differ, synchronize them"
            )


def check_prepared(state: Committing) -> Steps[Committing]:
    """C1b: check that each prepared transaction is still open in its partitions from its first row on, with time left.

    Read the ends of the partitions before that. If a transaction is seen open afterwards, its markers cannot be below
    them.
    """
    transactions = state.record.transactions
    if not transactions:
        return state
    yield from _require_time_left(transactions, state.sink.margin_ms)
    partitions = tuple(sorted({span.at for t in transactions for span in t.spans}))
    ends: tuple[op.End, ...] = yield op.FindEnds(partitions)
    opened: tuple[op.OpenProducer, ...] = yield op.DescribeProducers(partitions)
    _check_open(transactions, set(opened))
    return replace(state, record=replace(state.record, ends=ends))


def _give_up(transactions: tuple[TaskTransaction, ...]) -> Steps[None]:
    """Abort the prepared transactions, so that they do not block readers until their timeout.

    Do so only if the topic rejected the record that names them. In the old protocol, a late copy of EndTxn may decide a
    record that was written. If the next attempt may succeed, leave the transactions to the next plan, which aborts them
    as well.
    """
    if transactions:
        yield op.EndAll(tuple(t.owner for t in transactions), commit=False)


def _check_open(transactions: tuple[TaskTransaction, ...], opened: set[op.OpenProducer]) -> None:
    for t in transactions:
        for span in t.spans:
            if op.OpenProducer(span.at, t.owner.pid, t.owner.epoch, span.first) not in opened:
                raise NotDecidedError(
                    f"{span.at.topic}-{span.at.partition} has no open transaction of {t.owner.id} from offset "
                    f"{span.first} on; Spark replays the batch"
                )


def propose_decision(state: Committing) -> Steps[Committing]:
    """C2: write the record, and leave the transaction open. The driver's own timeout begins."""
    if state.carried is None:
        return state
    try:
        driver, place = yield from propose_record(state.sink, state.carried.driver, state.record)
    except NotDecidedError:
        yield from _give_up(state.record.transactions)
        raise
    return replace(state, carried=replace(state.carried, driver=driver), place=place)


def check_time_left(state: Committing) -> Steps[Committing]:
    """C2: check again how much time the transactions have left.

    A driver that was paused after C1b must not decide what has expired meanwhile. If it is paused after this step, its
    own transaction expires before the tasks' transactions.

    If this raises, the next plan's P1 aborts the proposed record. C1b is still needed: in the old protocol, a late copy
    of the plan's EndTxn may commit the proposed record.
    """
    if state.record.transactions:
        yield from _require_time_left(state.record.transactions, state.sink.margin_ms)
    return state


def commit_decision(state: Committing) -> Steps[Committing]:
    """C2: commit the record. Raises AnotherDriverError if a driver has fenced this one, or if it came too late."""
    if state.carried is None:
        return state
    driver = yield from commit_record(state.sink, state.carried.driver)
    return replace(state, carried=replace(state.carried, driver=driver))


def verify_decision(state: Committing) -> Steps[Committing]:
    """C2v: wait for the decision's COMMIT marker. From here on, the batch is committed whatever happens."""
    if state.place is not None:
        yield from await_commit_marker(state.sink, state.place)
    return state


def commit_tasks(state: Committing) -> Steps[Committing]:
    """C3: send EndTxn(commit) for each prepared transaction."""
    yield from commit_all(state.record)
    return state


def verify_tasks(state: Committing) -> Steps[Committing]:
    """C4: find the markers. A coordinator's CompleteCommit does not mean that rows are visible."""
    yield from verify_all(state.sink, state.record)
    return state


def look_for_twins(state: Committing) -> Steps[Committing]:
    """C4a: find the other open task transactions of this prefix.

    A twin whose K1 came before the decision may begin its transaction during the commit, so search late. If C5 succeeds
    afterwards, what was found belongs to this driver or to an earlier one, and C6 aborts it. A batch without rows has
    no C5, so it aborts nothing: the next plan does.
    """
    if state.record.settled:
        return state
    left, _ = yield from _if_available(find_open(replace(state.sink, targets=()), patient=False), ((), ()))
    return replace(state, left=left)


def _if_available(steps: Steps[T], otherwise: T) -> Steps[T]:
    """Do without these steps if a broker does not answer.

    The batch is committed. It must not fail because of a broker that has no part in it. The next plan does the same.
    """
    try:
        return (yield from steps)
    except RetriableError:
        return otherwise


def settle_decision(state: Committing) -> Steps[Committing]:
    """C5: write the record again, settled. Without it, the next plan would repeat C3 and C4."""
    if state.carried is not None and not state.record.settled:
        settled = replace(state.record, settled=True, transactions=(), ends=())
        yield from write_record(state.sink, state.carried.driver, settled)
    return state


def abort_twins(state: Committing) -> Steps[Committing]:
    """C6: abort what C4a found. Spark does not report attempts of tasks that lost against another attempt.

    The batch is committed: if the sink may not end a transaction, the next plan raises the error.
    """
    yield from _if_available(abort_left(state.sink, state.left), ())
    return state


COMMIT: tuple[Phase[Committing], ...] = (
    collect_reports,
    check_prepared,
    propose_decision,
    check_time_left,
    commit_decision,
    verify_decision,
    commit_tasks,
    verify_tasks,
    look_for_twins,
    settle_decision,
    abort_twins,
)


def abort_batch(messages: Sequence[TaskMessage | None]) -> Steps[None]:
    """Abort(b): abort the prepared transactions if a task's report is missing.

    Spark calls this after a *failed commit* as well. If no report is missing, the batch may be decided: change nothing,
    the next plan settles it.
    """
    if all(message is not None for message in messages):
        return
    owners = tuple(m.transaction.owner for m in messages if isinstance(m, Prepared) and m.transaction is not None)
    if owners:
        yield op.EndAll(owners, commit=False)
