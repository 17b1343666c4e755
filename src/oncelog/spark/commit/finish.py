"""Commit(b) and Abort(b): what the driver does, in another process, after the tasks. Steps C1 to C6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotDecidedError, SinkError
from oncelog.spark.commit.plan import Carried, abort_left, find_open
from oncelog.spark.commit.record import EMPTY, Owner, Record, Source, Transaction
from oncelog.spark.commit.steps import (
    Phase,
    Sink,
    Steps,
    commit_all,
    commit_record,
    propose_record,
    see_commit,
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


def c1_collect(state: Committing) -> Steps[Committing]:
    """Check the reports of the tasks.

    If all tasks skipped, there is nothing to commit. If all prepared under one plan, commit them. Reject a mixture.
    """
    yield from ()  # a phase is a generator, also one that asks nothing
    skipped = [m for m in state.messages if isinstance(m, Skipped)]
    prepared = [m for m in state.messages if isinstance(m, Prepared)]
    if not prepared:
        _check_skipped(skipped)
        return _note_call(state, skipped)
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


def _note_call(state: Committing, skipped: Sequence[Skipped]) -> Committing:
    """Record which foreachBatch call skipped the batch, so that K1 can reject the call's second write."""
    plans = {(m.carried, m.call) for m in skipped}
    if len(plans) > 1:
        raise _different_plans(state.sink)
    for carried, call in plans:
        if carried is not None:
            record = replace(carried.record, source=carried.record.source._replace(call=call))
            return replace(state, carried=carried, record=record)
    return state


def _different_plans(sink: Sink) -> NotDecidedError:
    return NotDecidedError(f"{sink.prefix}: the tasks' messages come from different plans; Spark replays the batch")


def _check_skipped(skipped: Sequence[Skipped]) -> None:
    rows = sum(m.rows for m in skipped)
    if not skipped or skipped[0].total < 0 or rows == skipped[0].total:
        return
    batch, total = skipped[0].batch, skipped[0].total
    cure = (
        f"If that is as it should be (the source has lost rows since, with failOnDataLoss=false), acceptReplay={batch} "
        "goes on behind this batch"
        if rows < total
        else f"acceptReplay={batch} would go on behind this batch, without those that are new. Is the checkpoint an "
        "older one: bring the newer back, or begin another where the committed rows end (startingOffsets, "
        "takeOver=true). Is it a batch write: new rows want a higher txnVersion"
    )
    raise SinkError(
        f"batch {batch} was committed with {total} rows and is now replayed with {rows}: the source or the query does "
        f"not give the same rows again. Nothing was written; what is committed stays. {cure}"
    )


def c1a_look(state: Committing) -> Steps[Committing]:
    """Open task transactions before the decision: none is a successor's if the decision succeeds."""
    if state.carried is None:
        return state
    decided = {t.owner.id for t in state.record.transactions}
    left, _ = yield from find_open(replace(state.sink, targets=()), decided)
    return replace(state, left=left)


def _look_at_time(state: Committing) -> Steps[None]:
    """Each transaction is Ongoing, same pid and epoch, with the margin left."""
    transactions = state.record.transactions
    described: tuple[op.Described, ...] = yield op.DescribeTransactions(tuple(t.owner.id for t in transactions))
    known = {(d.id, d.pid, d.epoch): d for d in described if d.state is op.State.ONGOING}
    for t in transactions:
        found = known.get((t.owner.id, t.owner.pid, t.owner.epoch))
        if found is None:
            raise NotDecidedError(
                f"{t.owner.id}: its transaction is not open any more: a newer driver of this prefix has aborted "
                "it, or it timed out (kafka.transaction.timeout.ms). Spark replays the batch"
            )
        if found.left_ms < state.sink.margin_ms:
            raise NotDecidedError(
                f"{t.owner.id}: {found.left_ms} ms are left until its time-out, too little to commit safely (by this "
                "driver's clock: if it differs from the brokers', set the clocks); a longer "
                "kafka.transaction.timeout.ms helps this batch, smaller ones (maxOffsetsPerTrigger) those to come"
            )


def c1b_check(state: Committing) -> Steps[Committing]:
    """Check that each prepared transaction is still open in its partitions from its first row on, with time left.

    Read the ends of the partitions before that. If a transaction is seen open afterwards, its markers cannot be below
    them.
    """
    transactions = state.record.transactions
    if not transactions:
        return state
    yield from _look_at_time(state)
    partitions = tuple(sorted({span.at for t in transactions for span in t.spans}))
    ends: tuple[op.End, ...] = yield op.FindEnds(partitions)
    opened: tuple[op.OpenProducer, ...] = yield op.DescribeProducers(partitions)
    _check_open(transactions, set(opened))
    return replace(state, record=replace(state.record, ends=ends))


def _give_up(state: Committing) -> Steps[None]:
    """Abort the prepared transactions, so that they do not block readers until their time-out.

    Do so only if the topic rejected the record that names them. In the old protocol, a late copy of EndTxn may decide a
    record that was written. If the next attempt may succeed, leave the transactions to the next plan, which aborts them
    as well.
    """
    if state.record.transactions:
        yield op.EndAll(tuple(t.owner for t in state.record.transactions), commit=False)


def _check_open(transactions: tuple[Transaction, ...], opened: set[op.OpenProducer]) -> None:
    for t in transactions:
        for span in t.spans:
            if op.OpenProducer(span.at, t.owner.pid, t.owner.epoch, span.first) not in opened:
                raise NotDecidedError(
                    f"{t.owner.id}: {span.at.topic}-{span.at.partition} does not show its transaction open from "
                    f"offset {span.first} on; Spark replays the batch"
                )


def c2_propose(state: Committing) -> Steps[Committing]:
    """Write the record, and leave the transaction open. The driver's own time-out begins."""
    if state.carried is None:
        return state
    try:
        driver, place = yield from propose_record(state.sink, state.carried.driver, state.record)
    except NotDecidedError:
        yield from _give_up(state)
        raise
    return replace(state, carried=replace(state.carried, driver=driver), place=place)


def c2_look(state: Committing) -> Steps[Committing]:
    """At what time is left, once more: a driver that slept behind C1b does not decide what has expired meanwhile, and
    one that sleeps from here on finds its own transaction expired before theirs.

    Should this refuse, the next plan's P1 aborts what was proposed. C1b is no less needed: in the old protocol a late
    copy of the plan's EndTxn decides what stands here.
    """
    if state.record.transactions:
        yield from _look_at_time(state)
    return state


def c2_decide(state: Committing) -> Steps[Committing]:
    """The decision. A driver that was fenced meanwhile, or whose own transaction has expired, fails here."""
    if state.carried is None:
        return state
    driver = yield from commit_record(state.sink, state.carried.driver)
    return replace(state, carried=replace(state.carried, driver=driver))


def c2v_see(state: Committing) -> Steps[Committing]:
    """From here on the batch is committed whatever happens."""
    if state.place is not None:
        yield from see_commit(state.sink, state.place)
    return state


def c3_commit(state: Committing) -> Steps[Committing]:
    """EndTxn(commit) for each."""
    yield from commit_all(state.record)
    return state


def c4_verify(state: Committing) -> Steps[Committing]:
    """CompleteCommit does not mean visible: find the markers."""
    yield from verify_all(state.sink, state.record)
    return state


def c5_settle(state: Committing) -> Steps[Committing]:
    """The record again, settled. Without it the next plan would do C3 and C4 once more."""
    if state.carried is not None and not state.record.settled:
        settled = replace(state.record, settled=True, transactions=(), ends=())
        yield from write_record(state.sink, state.carried.driver, settled)
    return state


def c6_clear(state: Committing) -> Steps[Committing]:
    """Twins that lost: Spark does not tell them. The batch is committed: what may not be ended, the next plan tells."""
    yield from abort_left(state.sink, state.left)
    return state


COMMIT: tuple[Phase[Committing], ...] = (
    c1_collect,
    c1a_look,
    c1b_check,
    c2_propose,
    c2_look,
    c2_decide,
    c2v_see,
    c3_commit,
    c4_verify,
    c5_settle,
    c6_clear,
)


def abort_batch(messages: Sequence[TaskMessage | None]) -> Steps[None]:
    """Spark calls this after a *failed commit* as well.

    With no message missing the batch may be decided: touch nothing, the next plan settles it.
    """
    if all(message is not None for message in messages):
        return
    owners = tuple(m.transaction.owner for m in messages if isinstance(m, Prepared) and m.transaction is not None)
    if owners:
        yield op.EndAll(owners, commit=False)
