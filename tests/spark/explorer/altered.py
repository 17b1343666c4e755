"""Protocol steps that each lack one rule. `mutants` replaces the product's steps with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oncelog.spark.commit import finish, plan, task, undo
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotDecidedError, NotVerifiedError
from oncelog.spark.commit.names import Attempt, task_id
from oncelog.spark.commit.ownership import Permission, already_committed, check_idle, check_owner
from oncelog.spark.commit.record import APP, EACH, NO_SOURCE, WRITE, Owner, Record, Source
from oncelog.spark.commit.steps import await_commit_marker, commit_all, verify_all, write_record
from oncelog.spark.commit.task import Prepared
from spark.explorer.worlds import SINK

PREFIX = SINK.prefix


def owner_only(state: Any) -> Any:
    """P0 asks only for the last committer, not for a driver at work."""
    window = yield op.ReadDecisions(state.sink.decision)
    record = yield from plan.read_record(state.sink, window)
    check_owner(PREFIX, record, state.applicant, state.permission)
    if state.left and record.source != NO_SOURCE:
        check_idle(PREFIX, record, state.applicant, state.permission, left=True)
    return state


def open_only(state: Any) -> Any:
    """P0 assumes that a driver is at work only if a transaction is open."""
    window = yield op.ReadDecisions(state.sink.decision)
    record = yield from plan.read_record(state.sink, window)
    check_owner(PREFIX, record, state.applicant, state.permission)
    if state.left:
        check_idle(PREFIX, record, state.applicant, state.permission, left=True)
    return state


def unsigned(state: Any) -> Any:
    """P3 does not store the prefix of the decision topic."""
    anonymous = yield from plan.write_plan_record(replace(state, sink=replace(state.sink, prefix="")))
    return replace(anonymous, sink=state.sink)


def share_driver(state: Any) -> Any:
    """P1 without the fence: a new driver uses the previous one's producer id and epoch."""
    described = yield op.DescribeTransactions((state.sink.prefix,))
    if described:
        driver = Owner(described[0].id, described[0].pid, described[0].epoch)
    else:
        driver = yield op.InitProducerId(state.sink.prefix, 0)
    return replace(state, driver=driver)


def write_once(state: Any) -> Any:
    """P3 writes only if there was something to settle: the plan has no number of its own."""
    record = state.record
    if record.plan and record.settled:
        return state
    return (yield from plan.write_plan_record(state))


def keep_parts(state: Any) -> Any:
    """P3's record keeps the transactions of the last batch, so that it has parts."""
    record = state.carried().record
    mine = replace(record, plan=record.plan + 1, settled=True, planner=state.applicant, prefix=state.sink.prefix)
    driver, place = yield from write_record(state.sink, state.driver, mine)
    yield from await_commit_marker(state.sink, place)
    head = yield from plan.read_record(state.sink, (yield op.ReadDecisions(state.sink.decision)))
    return replace(state, driver=driver, record=head, offset=place.after)


def same_number(state: Any) -> Any:
    """P3 writes the record but does not count."""
    driver, _ = yield from write_record(state.sink, state.driver, replace(state.record, settled=True, transactions=()))
    return replace(state, driver=driver, record=replace(state.record, settled=True, transactions=()))


def clear_open(state: Any) -> Any:
    """P4 without what hangs in a partition only."""
    yield from plan.abort_left(replace(state.sink, targets=()), state.left)
    return state


def older_accepted(state: Any) -> Any:
    """K1 without "later than b"."""
    if state.carried.record.source.batch > state.source.batch:
        return replace(state, skip=False)
    return (yield from task.compare_record(state))


def not_compared(state: Any) -> Any:
    """K1 without the comparison: the current record decides, no matter which driver wrote it."""
    window = yield op.ReadDecisions(state.sink.decision)
    now = yield from plan.read_record(state.sink, window)
    return replace(state, skip=already_committed(state.sink.prefix, now, state.source, state.permission))


def not_read_again(state: Any) -> Any:
    """K1 without the second read: the record that the plan wrote decides."""
    yield from ()
    return replace(state, skip=already_committed(PREFIX, state.carried.record, state.source, state.permission))


def never_skip(state: Any) -> Any:
    """K1 without "committed already"."""
    if state.carried.record.source.batch == state.source.batch:
        return state
    return (yield from task.compare_record(state))


def anybody(record: Record, source: Source, permission: Permission) -> bool:
    """K1 without "another query"."""
    return already_committed(PREFIX, record, source, permission._replace(take_over=True))


def take_over_first(record: Record, source: Source, permission: Permission) -> bool:
    """K1 checks takeOver before "committed already"."""
    return not permission.take_over and already_committed(PREFIX, record, source, permission)


def end_ignored(record: Record, source: Source, permission: Permission) -> bool:
    """K1 does not compare where a replayed batch ends."""
    return already_committed(PREFIX, record, source._replace(end=""), permission)


def start_ignored(record: Record, source: Source, permission: Permission) -> bool:
    """K1 does not compare where a batch begins."""
    return already_committed(PREFIX, record, source._replace(start=""), permission)


def any_gap(record: Record, source: Source, permission: Permission) -> bool:
    """K1 without "batches between were never committed here"."""
    return already_committed(PREFIX, record, source, permission._replace(adopt_checkpoint=True))


def adopt_older(record: Record, source: Source, permission: Permission) -> bool:
    """K1: adoptCheckpoint also accepts an older checkpoint."""
    older = permission.adopt_checkpoint and source.batch < record.source.batch
    return not older and already_committed(PREFIX, record, source, permission)


def take_over_anywhere(record: Record, source: Source, permission: Permission) -> bool:
    """K1: takeOver also accepts a checkpoint that is ahead."""
    adopted = permission._replace(adopt_checkpoint=True) if record.source.query != source.query else permission
    return already_committed(PREFIX, record, source, adopted)


def older_version_written(record: Record, source: Source, permission: Permission) -> bool:
    """K1 treats an older txnVersion as one that was never written."""
    older = source.kind == record.source.kind == APP and source.batch < record.source.batch
    return not older and already_committed(PREFIX, record, source, permission)


def version_ignored(record: Record, source: Source, permission: Permission) -> bool:
    """K1 ignores txnVersion."""
    return source.kind != APP and already_committed(PREFIX, record, source, permission)


def batch_ignored(record: Record, source: Source, permission: Permission) -> bool:
    """K1 does not compare the batch number of a write inside foreachBatch."""
    return source.kind != EACH and already_committed(PREFIX, record, source, permission)


def writes_follow_all(record: Record, source: Source, permission: Permission) -> bool:
    """K1: a write without a name may follow any other, and any other may follow it."""
    return WRITE not in (record.source.kind, source.kind) and already_committed(PREFIX, record, source, permission)


def last_epoch_used(state: Any) -> Any:
    """K2 without a second request when the epochs are exhausted."""
    return (yield from task.begin_transaction(replace(state, sink=replace(state.sink, last_epoch=2**15))))


def begin_with_timeout(state: Any) -> Any:
    """K2 without two-phase commit."""
    return (yield from task.begin_transaction(replace(state, sink=replace(state.sink, two_phase=False))))


def keep_producer_id(state: Any) -> Any:
    """P3 takes only the epoch from EndTxn's answer."""
    former = state.driver
    state = yield from plan.write_plan_record(state)
    return replace(state, driver=state.driver._replace(pid=former.pid))


def accept_hanging(state: Any) -> Any:
    """U3 accepts the operator's word without a check for hanging rows."""
    yield from commit_none(state.carried().record)
    return state


def commit_none(record: Record) -> Any:
    """EndTxn(abort) for each, and no check of the markers."""
    owners = tuple(t.owner for t in record.transactions)
    if owners:
        yield op.EndAll(owners, commit=False)
        yield op.AwaitEnded(owners)


def head_only(state: Any) -> Any:
    """P2 without the record's parts."""
    window = yield op.ReadDecisions(state.sink.decision)
    return replace(state, record=(yield from plan.read_record(state.sink, window)))


def ends_too_far(state: Any) -> Any:
    """C1b with ends that may be after the markers."""
    state = yield from finish.check_prepared(state)
    ends = tuple(end._replace(offset=end.offset + 1) for end in state.record.ends)
    return replace(state, record=replace(state.record, ends=ends))


def without_topic_ids(state: Any) -> Any:
    """C1b without the ids of the topics."""
    state = yield from finish.check_prepared(state)
    return replace(
        state, record=replace(state.record, ends=tuple(end._replace(topic_id="") for end in state.record.ends))
    )


def check_state_only(state: Any) -> Any:
    """C1b without the offsets."""
    described = yield op.DescribeTransactions(tuple(t.owner.id for t in state.record.transactions))
    if {(d.id, d.pid, d.epoch) for d in described} < {t.owner[:3] for t in state.record.transactions}:
        raise NotDecidedError("not open")
    return state


def finish_unverified(state: Any) -> Any:
    """P3 without C4."""
    if not state.record.settled:
        yield from commit_all(state.record)
    return state


def ends_only(record: Record) -> Record:
    """The record claims that all rows of a partition ended at the end that C1b saw: all searches start there."""
    ends = {end.at: end.offset for end in record.ends}
    moved = (
        t._replace(spans=tuple(s._replace(last=max(s.last, ends.get(s.at, 0) - 1)) for s in t.spans))
        for t in record.transactions
    )
    return replace(record, transactions=tuple(moved))


def finish_from_ends(state: Any) -> Any:
    """P3's second search for markers also starts at the ends."""
    record = state.record
    if not record.settled:
        yield from commit_all(record)
        yield from verify_all(state.sink, ends_only(record))
    return state


def settle_unverified(state: Any) -> Any:
    """C5 before C4."""
    state = yield from finish.settle_decision(state)
    yield from verify_all(state.sink, state.record)
    return replace(state, record=replace(state.record, settled=True))


def abort_always(messages: Any) -> Any:
    """Abort(b) although no message is missing."""
    owners = tuple(m.transaction.owner for m in messages if isinstance(m, Prepared) and m.transaction is not None)
    if owners:
        yield op.EndAll(owners, commit=False)


def missing_is_no(state: Any) -> Any:
    """U3 undoes everything without a COMMIT: a marker that is missing, and may not be written, counts as an ABORT."""
    try:
        return (yield from undo.take_back(state))
    except NotVerifiedError:
        return replace(state, record=replace(state.record, source=NO_SOURCE, rows=0, slots=0))


def without_attempt(prefix: str, number: int, attempt: Attempt, turn: int) -> str:
    """One id for all attempts of a task."""
    return task_id(prefix, number, Attempt(attempt.slot, 0, 0), turn)


def without_task_attempt(prefix: str, number: int, attempt: Attempt, turn: int) -> str:
    """One id for attempts of different stage attempts."""
    return task_id(prefix, number, attempt._replace(task_attempt_id=0), turn)


def without_plan(prefix: str, number: int, attempt: Attempt, turn: int) -> str:
    """One id for a task in every plan."""
    return task_id(prefix, 0, attempt, turn)


def without_turn(prefix: str, number: int, attempt: Attempt, turn: int) -> str:
    """K2 repeats InitProducerId under the same id after a lost answer."""
    return task_id(prefix, number, attempt)


def turn_of_a_twin(prefix: str, number: int, attempt: Attempt, turn: int) -> str:
    """After a lost answer, K2 takes the id of an attempt that may run at the same time."""
    twin = Attempt(attempt.slot, attempt.number + turn, 5 + attempt.slot)
    return task_id(prefix, number, twin if turn else attempt)
