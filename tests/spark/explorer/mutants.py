"""The protocol without one of its rules. The explorer must find a violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from oncelog.spark.commit import finish, plan, task, undo
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import AnotherDriverError
from oncelog.spark.commit.ownership import Permission
from oncelog.spark.commit.record import Record, Source
from oncelog.spark.commit.undo import UNDO_ACCEPTING
from spark.explorer import altered
from spark.explorer.worlds import (
    APPLICATION,
    FOREACH_BATCH,
    ID,
    MOVED,
    OWN,
    PLANNED_AGAIN,
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
    """A removed rule, and the bounds (faults: kind, maximum) within which the violation is found."""

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
    copy: int = OWN
    two_phase: bool = False


def _plan(**changed: Any) -> tuple[Any, ...]:
    return tuple(p for p in (changed.get(phase.__name__, phase) for phase in plan.PLAN) if p is not None)


def _task(**changed: Any) -> tuple[Any, ...]:
    return tuple(p for p in (changed.get(phase.__name__, phase) for phase in task.TASK) if p is not None)


def _commit(**changed: Any) -> tuple[Any, ...]:
    return tuple(p for p in (changed.get(phase.__name__, phase) for phase in finish.COMMIT) if p is not None)


Decide = Callable[[Record, Source, Permission], bool]


def _deciding(decide: Decide) -> tuple[Any, ...]:
    """Return K1 with another answer to "is it committed already, and may it follow"."""

    def compare_record(state: Any) -> Any:
        window = yield op.ReadDecisions(state.sink.decision)
        now = yield from plan.read_record(state.sink, window)
        if now != state.carried.record:
            raise AnotherDriverError("another driver is at work")
        return replace(state, skip=decide(now, state.source, state.permission))

    return _task(compare_record=compare_record)


def _move(phases: tuple[Any, ...], phase: Any, before: Any) -> tuple[Any, ...]:
    rest = [other for other in phases if other is not phase]
    rest.insert(rest.index(before), phase)
    return tuple(rest)


IDENTIFIED = (QUERY._replace(known_by=ID), SUCCESSOR._replace(known_by=ID))


def _admitting(phases: tuple[Any, ...], begin: str = "commit", queries: tuple[Query, ...] = IDENTIFIED) -> Mutant:
    return Mutant(Rules(plan=phases), {"other": 1}, 2, begin=begin, every=0, queries=queries, untouched=True)


MUTANTS: dict[str, Mutant] = {
    "P0 admits all": _admitting(_plan(admit_applicant=None)),
    "P0 admits after the fence": _admitting(_move(plan.PLAN, plan.admit_applicant, plan.read_decision)),
    "P0 asks for the owner only": _admitting(_plan(admit_applicant=altered.owner_only)),
    "P0 asks for what is open only": _admitting(_plan(admit_applicant=altered.open_only), "stage"),
    "P0 admits to any decision topic": _admitting(_plan(admit_applicant=None), queries=TWO_PREFIXES),
    "P3 does not say whose": Mutant(
        Rules(plan=_plan(write_plan_record=altered.unsigned)),
        {"other": 1},
        begin="stage",
        every=1,
        queries=TWO_PREFIXES,
    ),
    "P0 after P3": Mutant(Rules(plan=_move(plan.PLAN, plan.look_for_open, plan.abort_leftovers)), {"driver": 1}),
    "P1 no fence": Mutant(
        Rules(plan=_plan(fence_drivers=altered.share_driver)),
        {"driver": 1},
        begin="commit",
        every=0,
        generations=(False,),
    ),
    "P2 before P1": Mutant(Rules(plan=_move(plan.PLAN, plan.read_decision, plan.fence_drivers)), {"driver": 1}),
    "P2 without the parts": Mutant(
        Rules(plan=_plan(read_decision=altered.head_only)), {"driver": 1}, begin="commit", part_bytes=215
    ),
    "P3 nothing finished": Mutant(Rules(plan=_plan(finish_decision=None)), {"driver": 1}),
    "P3 not verified": Mutant(Rules(plan=_plan(finish_decision=altered.finish_unverified)), {"driver": 1, "lose": 1}),
    "P3 searches from the ends only": Mutant(
        Rules(plan=_plan(finish_decision=altered.finish_from_ends)), {"twin": 1, "cut": 1}, begin="stage"
    ),
    "P3 not written": Mutant(Rules(plan=_plan(write_plan_record=altered.write_once)), {"driver": 1}, 2),
    "P3 not counted": Mutant(Rules(plan=_plan(write_plan_record=altered.same_number)), {"driver": 1}, 2),
    "P3 keeps the parts": Mutant(
        Rules(plan=_plan(write_plan_record=altered.keep_parts), commit=_commit(settle_decision=None)),
        {"dup": 1, "compact": 1},
        2,
        every=5,
        generations=(False,),
        part_bytes=215,
    ),
    "P4 nothing cleared": Mutant(Rules(plan=_plan(abort_leftovers=None)), {"driver": 1}),
    "P4 no second look": Mutant(Rules(plan=_plan(abort_leftovers=altered.clear_open)), {"driver": 1, "lose": 1}),
    "K1 later than b": Mutant(Rules(task=_task(compare_record=altered.older_accepted)), {"rewind": 1}, 2),
    "K1 not compared": Mutant(
        Rules(task=_task(compare_record=altered.not_compared)), {"driver": 1}, begin="stage", every=0
    ),
    "K1 never skips": Mutant(Rules(task=_task(compare_record=altered.never_skip)), {"driver": 1}),
    "K2 with a timeout": Mutant(
        Rules(task=_task(begin_transaction=altered.begin_with_timeout)), {"late": 1}, begin="commit", two_phase=True
    ),
    "attempt not in the id": Mutant(Rules(name=altered.without_attempt), {"twin": 1}),
    "task attempt not in the id": Mutant(Rules(name=altered.without_task_attempt), {"twin": 1}),
    "plan not in the id": Mutant(Rules(name=altered.without_plan), {"driver": 1}),
    "K2 repeated": Mutant(Rules(name=altered.without_turn), {"dup": 1}, every=1),
    "K2 takes a twin's id": Mutant(Rules(name=altered.turn_of_a_twin), {"dup": 1, "twin": 1}, every=5),
    "K2 with the last epoch": Mutant(
        Rules(task=_task(begin_transaction=altered.last_epoch_used)),
        {"kill": 1, "lose": 1},
        split=2,
        generations=(True,),
        max_epoch=1,
        first_epoch=1,
        every=1,
    ),
    "C4a after C5": Mutant(
        Rules(commit=_move(finish.COMMIT, finish.look_for_twins, finish.abort_twins)), {"driver": 1}, 2, begin="commit"
    ),
    "C1b not checked": Mutant(Rules(commit=_commit(check_prepared=None, check_time_left=None)), {"timeout": 1}),
    "C1b no offsets": Mutant(
        Rules(commit=_commit(check_prepared=altered.check_state_only), name=altered.without_task_attempt),
        {"kill": 1, "twin": 1, "lose": 1},
        every=0,
        targets=False,
        split=2,
    ),
    "C2 proposes before C1b": Mutant(
        Rules(commit=_move(finish.COMMIT, finish.propose_decision, finish.check_prepared)),
        {"dup": 1, "timeout": 1},
        generations=(False,),
        every=5,
    ),
    "C1b without topic ids": Mutant(
        Rules(commit=_commit(check_prepared=altered.without_topic_ids)), {"remake": 1}, begin="commit", every=1
    ),
    "C2 after C3": Mutant(
        Rules(commit=_move(finish.COMMIT, finish.commit_tasks, finish.commit_decision)), {"driver": 1}
    ),
    "C2v not seen": Mutant(Rules(commit=_commit(verify_decision=None)), {"driver": 1, "lose": 1}),
    "C4 not verified": Mutant(Rules(commit=_commit(verify_tasks=None)), {"lose": 1}),
    "C5 before C4": Mutant(
        Rules(commit=_commit(verify_tasks=altered.settle_unverified, settle_decision=None)), {"lose": 1, "driver": 1}
    ),
    "U3 missing is no": Mutant(
        Rules(undo=tuple(altered.missing_is_no if phase is undo.take_back else phase for phase in undo.UNDO)),
        {"lose": 1, "deny": 1, "undo": 1},
        begin="commit",
    ),
    "U3 accepts what hangs": Mutant(
        Rules(accept=tuple(altered.accept_hanging if phase is undo.accept_loss else phase for phase in UNDO_ACCEPTING)),
        {"lose": 1, "accept": 1},
        begin="commit",
    ),
    "abort although decided": Mutant(Rules(abort=altered.abort_always), {"slow": 2}, every=1),
    "another query goes on": Mutant(
        Rules(task=_deciding(altered.anybody)), {"other": 1}, begin="commit", queries=(QUERY, SUCCESSOR)
    ),
    "end not compared": Mutant(Rules(task=_deciding(altered.end_ignored)), {"older": 1}, 2, begin="log"),
    "start not compared": Mutant(
        Rules(task=_deciding(altered.start_ignored)), {"leap": 1}, 2, begin="log", copy=PLANNED_AGAIN
    ),
    "renamed query goes on": Mutant(Rules(task=_deciding(altered.anybody)), {"renamed": 1}, begin="commit"),
    "takeOver before all": Mutant(
        Rules(task=_deciding(altered.take_over_first)), {"driver": 1}, begin="commit", queries=(TAKER,)
    ),
    "takeOver for both": Mutant(Rules(), {"other": 1}, begin="commit", queries=(TAKER, SUCCESSOR_TAKER)),
    "takeOver from any batch": Mutant(
        Rules(task=_deciding(altered.take_over_anywhere)),
        {"other": 1, "leap": 1},
        2,
        begin="commit",
        every=1,
        queries=(QUERY, SUCCESSOR_TAKER),
    ),
    "a gap goes on": Mutant(Rules(task=_deciding(altered.any_gap)), {"leap": 1}, 2),
    "adoptCheckpoint before all": Mutant(
        Rules(task=_deciding(altered.adopt_older)), {"rewind": 1}, 2, queries=(MOVED,)
    ),
    "older txnVersion not refused": Mutant(
        Rules(task=_deciding(altered.older_version_written)), {"rewind": 1}, 2, queries=(APPLICATION,)
    ),
    "txnVersion not compared": Mutant(
        Rules(task=_deciding(altered.version_ignored)), {"driver": 1}, begin="commit", queries=(APPLICATION,)
    ),
    "foreachBatch not compared": Mutant(
        Rules(task=_deciding(altered.batch_ignored)), {"driver": 1}, begin="commit", queries=(FOREACH_BATCH,)
    ),
    "a write without a name follows": Mutant(
        Rules(task=_deciding(altered.writes_follow_all)), {"other": 1}, begin="commit", queries=(QUERY, *WRITES)
    ),
    "producer id kept": Mutant(
        Rules(plan=_plan(write_plan_record=altered.keep_producer_id)), {}, max_epoch=0, generations=(True,)
    ),
}
NEEDLESS: dict[str, Mutant] = {
    "K1 not read again": Mutant(Rules(task=_task(compare_record=altered.not_read_again)), {"driver": 1}, begin="stage"),
    "C1b ends too far": Mutant(
        Rules(commit=_commit(check_prepared=altered.ends_too_far)), {"lose": 1}, begin="commit", every=1
    ),
}
"""Rules without a violation. The protocol keeps them as a defence (docs/design/sink-protocol.md explains why)."""
