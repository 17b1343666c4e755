"""The protocol with one rule taken out each. The explorer has to find what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from oncelog.spark.commit import finish, plan, task, undo
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import AnotherDriverError, NotDecidedError, NotVerifiedError
from oncelog.spark.commit.names import Attempt, task_id
from oncelog.spark.commit.ownership import Permission, already_committed, check_idle, check_owner
from oncelog.spark.commit.record import APP, EACH, NOBODY, WRITE, Owner, Record, Source
from oncelog.spark.commit.steps import commit_all, see_commit, verify_all, write_record
from oncelog.spark.commit.task import Prepared
from oncelog.spark.commit.undo import UNDO_ACCEPTING
from spark.explorer.worlds import (
    APPLICATION,
    FOREACH_BATCH,
    ID,
    MOVED,
    QUERY,
    SINK,
    SUCCESSOR,
    SUCCESSOR_TAKER,
    TAKER,
    TWO_PREFIXES,
    WRITES,
    Query,
    Rules,
)

PREFIX = SINK.prefix


class Mutant(NamedTuple):
    """A rule taken out, and the bounds (faults: kind, at most) within which that shows."""

    rules: Rules
    faults: dict[str, int]
    batches: int = 1
    begin: str = ""
    every: int = 20
    targets: bool = True
    split: int = 0
    generations: tuple[bool, ...] = (True, False)
    queries: tuple[Query, ...] = (Query(),)
    max_epoch: int = 1000
    first_epoch: int = 0
    untouched: bool = False
    part_bytes: int = SINK.part_bytes


def _plan(**changed: Any) -> tuple[Any, ...]:
    return tuple(p for p in (changed.get(phase.__name__, phase) for phase in plan.PLAN) if p is not None)


def _task(**changed: Any) -> tuple[Any, ...]:
    return tuple(p for p in (changed.get(phase.__name__, phase) for phase in task.TASK) if p is not None)


def _commit(**changed: Any) -> tuple[Any, ...]:
    return tuple(p for p in (changed.get(phase.__name__, phase) for phase in finish.COMMIT) if p is not None)


def owner_only(state: Any) -> Any:
    """P0 where only who has committed is asked for, not who is at work."""
    window = yield op.ReadDecisions(state.sink.decision)
    record = yield from plan.read_record(state.sink, window)
    check_owner(PREFIX, record, state.applicant, state.permission)
    if state.left and record.source != NOBODY:
        check_idle(PREFIX, record, state.applicant, state.permission, left=True)
    return state


def open_only(state: Any) -> Any:
    """P0 where somebody is at work only if something is open."""
    window = yield op.ReadDecisions(state.sink.decision)
    record = yield from plan.read_record(state.sink, window)
    check_owner(PREFIX, record, state.applicant, state.permission)
    if state.left:
        check_idle(PREFIX, record, state.applicant, state.permission, left=True)
    return state


def unsigned(state: Any) -> Any:
    """P3 without saying whose decision topic it is."""
    anonymous = yield from plan.p3_write(replace(state, sink=replace(state.sink, prefix="")))
    return replace(anonymous, sink=state.sink)


def share_driver(state: Any) -> Any:
    """P1 without the fence: a new driver goes on with the former one's producer id and epoch."""
    described = yield op.DescribeTransactions((state.sink.prefix,))
    if described:
        driver = Owner(described[0].id, described[0].pid, described[0].epoch)
    else:
        driver = yield op.InitProducerId(state.sink.prefix, 0)
    return replace(state, driver=driver)


def write_once(state: Any) -> Any:
    """P3 writes only where something was to be settled: the plan has no number of its own."""
    record = state.record
    if record.plan and record.settled:
        return state
    return (yield from plan.p3_write(state))


def keep_parts(state: Any) -> Any:
    """P3 whose record keeps the transactions of the last batch, so that it has parts."""
    record = state.carried().record
    mine = replace(record, plan=record.plan + 1, settled=True, planner=state.applicant, prefix=state.sink.prefix)
    driver, place = yield from write_record(state.sink, state.driver, mine)
    yield from see_commit(state.sink, place)
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


def older_goes_on(state: Any) -> Any:
    """K1 without "later than b"."""
    if state.carried.record.source.batch > state.source.batch:
        return replace(state, skip=False)
    return (yield from task.k1_compare(state))


def not_compared(state: Any) -> Any:
    """K1 without the comparison: the record as it is now decides, whoever wrote it."""
    window = yield op.ReadDecisions(state.sink.decision)
    now = yield from plan.read_record(state.sink, window)
    return replace(state, skip=already_committed(state.sink.prefix, now, state.source, state.permission))


def not_read_again(state: Any) -> Any:
    """K1 without the second look: the record that the plan wrote decides."""
    yield from ()
    return replace(state, skip=already_committed(PREFIX, state.carried.record, state.source, state.permission))


def never_skip(state: Any) -> Any:
    """K1 without "committed already"."""
    if state.carried.record.source.batch == state.source.batch:
        return state
    return (yield from task.k1_compare(state))


Decide = Callable[[Record, Source, Permission], bool]


def _deciding(decide: Decide) -> tuple[Any, ...]:
    """K1 with another answer to "is it committed already, and may it follow"."""

    def k1_compare(state: Any) -> Any:
        window = yield op.ReadDecisions(state.sink.decision)
        now = yield from plan.read_record(state.sink, window)
        if now != state.carried.record:
            raise AnotherDriverError("another driver is at work")
        return replace(state, skip=decide(now, state.source, state.permission))

    return _task(k1_compare=k1_compare)


def anybody(record: Record, source: Source, permission: Permission) -> bool:
    """K1 without "another query"."""
    return already_committed(PREFIX, record, source, permission._replace(take_over=True))


def take_over_first(record: Record, source: Source, permission: Permission) -> bool:
    """K1 where takeOver stands before "committed already"."""
    return not permission.take_over and already_committed(PREFIX, record, source, permission)


def any_gap(record: Record, source: Source, permission: Permission) -> bool:
    """K1 without "batches between never came here"."""
    return already_committed(PREFIX, record, source, permission._replace(adopt_checkpoint=True))


def adopt_older(record: Record, source: Source, permission: Permission) -> bool:
    """K1 where adoptCheckpoint lets an older checkpoint in as well."""
    older = permission.adopt_checkpoint and source.batch < record.source.batch
    return not older and already_committed(PREFIX, record, source, permission)


def take_over_anywhere(record: Record, source: Source, permission: Permission) -> bool:
    """K1 where takeOver lets a checkpoint in that is ahead of what came here."""
    adopted = permission._replace(adopt_checkpoint=True) if record.source.query != source.query else permission
    return already_committed(PREFIX, record, source, adopted)


def older_version_written(record: Record, source: Source, permission: Permission) -> bool:
    """K1 where an older txnVersion is taken for one that was never written."""
    older = source.kind == record.source.kind == APP and source.batch < record.source.batch
    return not older and already_committed(PREFIX, record, source, permission)


def version_ignored(record: Record, source: Source, permission: Permission) -> bool:
    """K1 where txnVersion tells nothing."""
    return source.kind != APP and already_committed(PREFIX, record, source, permission)


def batch_ignored(record: Record, source: Source, permission: Permission) -> bool:
    """K1 that does not compare the batch number of a write inside foreachBatch."""
    return source.kind != EACH and already_committed(PREFIX, record, source, permission)


def writes_follow_all(record: Record, source: Source, permission: Permission) -> bool:
    """K1 where a write without a name may follow whoever wrote, and whoever else may follow it."""
    return WRITE not in (record.source.kind, source.kind) and already_committed(PREFIX, record, source, permission)


def last_epoch_used(state: Any) -> Any:
    """K2 without a second request where the epochs are used up."""
    return (yield from task.k2_begin(replace(state, sink=replace(state.sink, last_epoch=2**15))))


def keep_producer_id(state: Any) -> Any:
    """P3 that takes only the epoch from EndTxn's answer."""
    former = state.driver
    state = yield from plan.p3_write(state)
    return replace(state, driver=state.driver._replace(pid=former.pid))


def accept_hanging(state: Any) -> Any:
    """U3 on an operator's word, without a look at what hangs."""
    yield from commit_none(state.carried().record)
    return state


def commit_none(record: Record) -> Any:
    """EndTxn(abort) for each, and no look at the markers."""
    owners = tuple(t.owner for t in record.transactions)
    if owners:
        yield op.EndAll(owners, commit=False)
        yield op.AwaitEnded(owners)


def take_any(state: Any) -> Any:
    """C1 without "of one plan": what is prepared is committed."""
    prepared = [m for m in state.messages if isinstance(m, Prepared)]
    if not prepared:
        return state
    return (yield from finish.c1_collect(replace(state, messages=tuple(prepared))))


def head_only(state: Any) -> Any:
    """P2 without the record's parts."""
    window = yield op.ReadDecisions(state.sink.decision)
    return replace(state, record=(yield from plan.read_record(state.sink, window)))


def ends_too_far(state: Any) -> Any:
    """C1b with ends that the markers may lie before."""
    state = yield from finish.c1b_check(state)
    ends = tuple(end._replace(offset=end.offset + 1) for end in state.record.ends)
    return replace(state, record=replace(state.record, ends=ends))


def without_topic_ids(state: Any) -> Any:
    """C1b without the ids of the topics."""
    state = yield from finish.c1b_check(state)
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
    """The record as if all rows of a partition ended where C1b saw its end: all searches begin there."""
    ends = {end.at: end.offset for end in record.ends}
    moved = (
        t._replace(spans=tuple(s._replace(last=max(s.last, ends.get(s.at, 0) - 1)) for s in t.spans))
        for t in record.transactions
    )
    return replace(record, transactions=tuple(moved))


def finish_from_ends(state: Any) -> Any:
    """P3 whose second search for markers begins at the ends, too."""
    record = state.record
    if not record.settled:
        yield from commit_all(record)
        yield from verify_all(state.sink, ends_only(record))
    return state


def settle_unverified(state: Any) -> Any:
    """C5 before C4."""
    state = yield from finish.c5_settle(state)
    yield from verify_all(state.sink, state.record)
    return replace(state, record=replace(state.record, settled=True))


def abort_always(messages: Any) -> Any:
    """Abort(b) although no message is missing."""
    owners = tuple(m.transaction.owner for m in messages if isinstance(m, Prepared) and m.transaction is not None)
    if owners:
        yield op.EndAll(owners, commit=False)


def missing_is_no(state: Any) -> Any:
    """U3 takes back whatever shows no COMMIT: a marker that is missing, and may not be written, counts as an ABORT."""
    try:
        return (yield from undo.u3_take_back(state))
    except NotVerifiedError:
        return replace(state, record=replace(state.record, source=NOBODY, rows=0, slots=0))


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
    """K2 takes, after a lost answer, the id of an attempt that may run at the same time."""
    twin = Attempt(attempt.slot, attempt.number + turn, 5 + attempt.slot)
    return task_id(prefix, number, twin if turn else attempt)


def _swap(phases: tuple[Any, ...], first: Any, second: Any) -> tuple[Any, ...]:
    places = {first: second, second: first}
    return tuple(places.get(phase, phase) for phase in phases)


def _move(phases: tuple[Any, ...], phase: Any, before: Any) -> tuple[Any, ...]:
    rest = [other for other in phases if other is not phase]
    rest.insert(rest.index(before), phase)
    return tuple(rest)


TOLD = (QUERY._replace(told=ID), SUCCESSOR._replace(told=ID))


def _admitting(phases: tuple[Any, ...], begin: str = "commit", queries: tuple[Query, ...] = TOLD) -> Mutant:
    return Mutant(Rules(plan=phases), {"other": 1}, 2, begin=begin, every=0, queries=queries, untouched=True)


MUTANTS: dict[str, Mutant] = {
    "P0 admits all": _admitting(_plan(p0_admit=None)),
    "P0 admits after the fence": _admitting(_move(plan.PLAN, plan.p0_admit, plan.p2_read)),
    "P0 asks for the owner only": _admitting(_plan(p0_admit=owner_only)),
    "P0 asks for what is open only": _admitting(_plan(p0_admit=open_only), "stage"),
    "P0 admits to any decision topic": _admitting(_plan(p0_admit=None), queries=TWO_PREFIXES),
    "P3 does not say whose": Mutant(
        Rules(plan=_plan(p3_write=unsigned)), {"other": 1}, begin="stage", every=1, queries=TWO_PREFIXES
    ),
    "P0 after P3": Mutant(Rules(plan=_move(plan.PLAN, plan.p0_look, plan.p4_clear)), {"driver": 1}),
    "P1 no fence": Mutant(
        Rules(plan=_plan(p1_fence=share_driver)), {"driver": 1}, begin="commit", every=0, generations=(False,)
    ),
    "P2 before P1": Mutant(Rules(plan=_move(plan.PLAN, plan.p2_read, plan.p1_fence)), {"driver": 1}),
    "P2 without the parts": Mutant(Rules(plan=_plan(p2_read=head_only)), {"driver": 1}, begin="commit", part_bytes=215),
    "P3 nothing finished": Mutant(Rules(plan=_plan(p3_finish=None)), {"driver": 1}),
    "P3 not verified": Mutant(Rules(plan=_plan(p3_finish=finish_unverified)), {"driver": 1, "lose": 1}),
    "P3 searches from the ends only": Mutant(
        Rules(plan=_plan(p3_finish=finish_from_ends)), {"twin": 1, "cut": 1}, begin="stage"
    ),
    "P3 not written": Mutant(Rules(plan=_plan(p3_write=write_once)), {"driver": 1}, 2),
    "P3 not counted": Mutant(Rules(plan=_plan(p3_write=same_number)), {"driver": 1}, 2),
    "P3 keeps the parts": Mutant(
        Rules(plan=_plan(p3_write=keep_parts), commit=_commit(c5_settle=None)),
        {"dup": 1, "compact": 1},
        2,
        every=5,
        generations=(False,),
        part_bytes=215,
    ),
    "P4 nothing cleared": Mutant(Rules(plan=_plan(p4_clear=None)), {"driver": 1}),
    "P4 no second look": Mutant(Rules(plan=_plan(p4_clear=clear_open)), {"driver": 1, "lose": 1}),
    "K1 later than b": Mutant(Rules(task=_task(k1_compare=older_goes_on)), {"rewind": 1}, 2),
    "K1 not compared": Mutant(Rules(task=_task(k1_compare=not_compared)), {"driver": 1}, begin="stage", every=0),
    "K1 never skips": Mutant(Rules(task=_task(k1_compare=never_skip)), {"driver": 1}),
    "attempt not in the id": Mutant(Rules(name=without_attempt), {"twin": 1}),
    "task attempt not in the id": Mutant(Rules(name=without_task_attempt), {"twin": 1}),
    "plan not in the id": Mutant(Rules(name=without_plan), {"driver": 1}),
    "K2 repeated": Mutant(Rules(name=without_turn), {"dup": 1}, every=1),
    "K2 takes a twin's id": Mutant(Rules(name=turn_of_a_twin), {"dup": 1, "twin": 1}, every=5),
    "K2 with the last epoch": Mutant(
        Rules(task=_task(k2_begin=last_epoch_used)),
        {"kill": 1, "lose": 1},
        split=2,
        generations=(True,),
        max_epoch=1,
        first_epoch=1,
        every=1,
    ),
    "C1a after C5": Mutant(
        Rules(commit=_move(finish.COMMIT, finish.c1a_look, finish.c6_clear)), {"driver": 1}, 2, begin="commit"
    ),
    "C1b not checked": Mutant(Rules(commit=_commit(c1b_check=None, c2_look=None)), {"timeout": 1}),
    "C1b no offsets": Mutant(
        Rules(commit=_commit(c1b_check=check_state_only), name=without_task_attempt),
        {"kill": 1, "twin": 1, "lose": 1},
        every=0,
        targets=False,
        split=2,
    ),
    "C2 proposes before C1b": Mutant(
        Rules(commit=_move(finish.COMMIT, finish.c2_propose, finish.c1b_check)),
        {"dup": 1, "timeout": 1},
        generations=(False,),
        every=5,
    ),
    "C1b without topic ids": Mutant(
        Rules(commit=_commit(c1b_check=without_topic_ids)), {"remake": 1}, begin="commit", every=1
    ),
    "C2 after C3": Mutant(Rules(commit=_move(finish.COMMIT, finish.c3_commit, finish.c2_decide)), {"driver": 1}),
    "C2v not seen": Mutant(Rules(commit=_commit(c2v_see=None)), {"driver": 1, "lose": 1}),
    "C4 not verified": Mutant(Rules(commit=_commit(c4_verify=None)), {"lose": 1}),
    "C5 before C4": Mutant(
        Rules(commit=_commit(c4_verify=settle_unverified, c5_settle=None)), {"lose": 1, "driver": 1}
    ),
    "U3 missing is no": Mutant(
        Rules(undo=tuple(missing_is_no if phase is undo.u3_take_back else phase for phase in undo.UNDO)),
        {"lose": 1, "deny": 1, "undo": 1},
        begin="commit",
    ),
    "U3 accepts what hangs": Mutant(
        Rules(accept=tuple(accept_hanging if phase is undo.u3_accept else phase for phase in UNDO_ACCEPTING)),
        {"lose": 1, "accept": 1},
        begin="commit",
    ),
    "abort although decided": Mutant(Rules(abort=abort_always), {"slow": 2}, every=1),
    "another query goes on": Mutant(
        Rules(task=_deciding(anybody)), {"other": 1}, begin="commit", queries=(QUERY, SUCCESSOR)
    ),
    "takeOver before all": Mutant(
        Rules(task=_deciding(take_over_first)), {"driver": 1}, begin="commit", queries=(TAKER,)
    ),
    "takeOver for both": Mutant(Rules(), {"other": 1}, begin="commit", queries=(TAKER, SUCCESSOR_TAKER)),
    "takeOver from any batch": Mutant(
        Rules(task=_deciding(take_over_anywhere)),
        {"other": 1, "leap": 1},
        2,
        begin="commit",
        every=1,
        queries=(QUERY, SUCCESSOR_TAKER),
    ),
    "a gap goes on": Mutant(Rules(task=_deciding(any_gap)), {"leap": 1}, 2),
    "adoptCheckpoint before all": Mutant(Rules(task=_deciding(adopt_older)), {"rewind": 1}, 2, queries=(MOVED,)),
    "older txnVersion not refused": Mutant(
        Rules(task=_deciding(older_version_written)), {"rewind": 1}, 2, queries=(APPLICATION,)
    ),
    "txnVersion not compared": Mutant(
        Rules(task=_deciding(version_ignored)), {"driver": 1}, begin="commit", queries=(APPLICATION,)
    ),
    "foreachBatch not compared": Mutant(
        Rules(task=_deciding(batch_ignored)), {"driver": 1}, begin="commit", queries=(FOREACH_BATCH,)
    ),
    "a write without a name follows": Mutant(
        Rules(task=_deciding(writes_follow_all)), {"other": 1}, begin="commit", queries=(QUERY, *WRITES)
    ),
    "producer id kept": Mutant(Rules(plan=_plan(p3_write=keep_producer_id)), {}, max_epoch=0, generations=(True,)),
}
NEEDLESS: dict[str, Mutant] = {
    "K1 not read again": Mutant(Rules(task=_task(k1_compare=not_read_again)), {"driver": 1}, begin="stage"),
    "C1b ends too far": Mutant(Rules(commit=_commit(c1b_check=ends_too_far)), {"lose": 1}, begin="commit", every=1),
}
"""What may be taken out: the protocol keeps it all the same (ARCHITECTURE, The Spark sink, says why)."""
