"""Task(b, slot, attempt): what one attempt of a task does. Steps K0 to K4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import AnotherDriverError, NotDecidedError
from oncelog.spark.commit.names import TURNS, Attempt, task_id
from oncelog.spark.commit.ownership import (
    NO_PERMISSION,
    Permission,
    already_committed,
    check_decisions,
    describe,
    source_after_skip,
)
from oncelog.spark.commit.plan import Carried, read_record
from oncelog.spark.commit.record import NO_SOURCE, Owner, Source, TaskTransaction
from oncelog.spark.commit.steps import Phase, Sink, Steps


class Skipped(NamedTuple):
    """K4: the batch is committed already. `rows` were counted here; the record says `total` for all slots.

    `total` is -1 if it must not be compared: if option `acceptReplay` names this batch. The record then says nothing
    about an older txnVersion.
    """

    slot: int
    rows: int
    total: int
    batch: int
    carried: Carried | None = None
    """The task's plan, if the commit has to replace the record's source by `source`."""
    source: Source = NO_SOURCE


class Prepared(NamedTuple):
    """K4: all rows are written and acknowledged, nothing is committed. `transaction` is None without rows."""

    slot: int
    transaction: TaskTransaction | None
    rows: int
    carried: Carried
    source: Source


TaskMessage = Skipped | Prepared


@dataclass(frozen=True, slots=True)
class Tasking:
    """The state between two phases of a task."""

    sink: Sink
    carried: Carried
    source: Source
    attempt: Attempt
    permission: Permission = NO_PERMISSION
    name: Callable[[str, int, Attempt, int], str] = task_id
    skip: bool = False
    empty: bool = False
    owner: Owner | None = None
    rows: op.Rows | None = None

    def message(self) -> TaskMessage:
        """K4: return the task's report to the driver."""
        if self.rows is None:
            raise ValueError("the task has not run")
        record = self.carried.record
        if self.skip:
            batch = self.source.batch
            compared = batch == record.source.batch and batch != self.permission.accept_replay
            total = record.rows if compared else -1
            noted = source_after_skip(record.source, self.source)
            if noted == record.source:
                return Skipped(self.attempt.slot, self.rows.rows, total, batch)
            return Skipped(self.attempt.slot, self.rows.rows, total, batch, self.carried, noted)
        transaction = None
        if self.owner is not None and self.rows.spans:
            transaction = TaskTransaction(self.owner, self.rows.spans)
        return Prepared(self.attempt.slot, transaction, self.rows.rows, self.carried, self.source)


def look_for_rows(state: Tasking) -> Steps[Tasking]:
    """K0: check whether the task has rows. A task without rows opens no transaction.

    This runs before K1, because the first rows may take long to compute, and K2 should follow K1 soon.
    """
    found: bool = yield op.PeekRows()
    return replace(state, empty=not found)


def compare_record(state: Tasking) -> Steps[Tasking]:
    """K1: check that the record is still the plan's own. It says whether the batch is already committed.

    The task reads from the plan's own record on. That record is small, and the last one unless another driver is
    active. Another driver's record may say that the batch is committed before that driver has ended its transactions
    (C3). A task that skipped its rows because of that record would report rows to Spark that readers cannot see yet.
    """
    window: op.Window = yield op.ReadDecisions(state.sink.decision, since=state.carried.offset)
    now = None
    if window.stable == window.end:
        now = yield from read_record(state.sink, window)
        check_decisions(state.sink.decision.topic, state.sink.prefix, now)
    if now != state.carried.record:
        planner = NO_SOURCE if now is None else now.planner
        who = "another driver" if planner in (NO_SOURCE, state.carried.record.planner) else describe(planner)
        raise AnotherDriverError(
            f"option transactionalIdPrefix={state.sink.prefix}: {who} uses the prefix, because the decision record is "
            "no longer that of this plan. Give each query its own prefix. If this query was started twice, stop one, "
            "and start the other again"
        )
    return replace(state, skip=already_committed(state.sink.prefix, now, state.source, state.permission))


def begin_transaction(state: Tasking) -> Steps[Tasking]:
    """K2: begin an epoch under this attempt's own id, which a late EndTxn of an earlier transaction cannot reach.

    If the response is lost, the attempt takes its next id and never uses this one again. Otherwise, a copy of the
    request could reach the coordinator after the decision, and abort the decided transaction. Under an unused id, it
    finds nothing to abort. Spark's local masters do not retry a task, so a failure here would end the query.
    """
    if state.skip or state.empty:
        return state
    for turn in range(TURNS):
        name = state.name(state.sink.prefix, state.carried.record.plan, state.attempt, turn)
        owner = yield from _begin(state.sink, name)
        if owner is not None:
            return replace(state, owner=owner)
    raise NotDecidedError(
        f"sink {state.sink.prefix!r}: the coordinators of {TURNS} transactional ids (the last one is {name}) closed "
        "the connection before they answered InitProducerId; Spark replays the batch"
    )


def _begin(sink: Sink, name: str) -> Steps[Owner | None]:
    """Return the owner from InitProducerId, or None if a response was lost.

    If the producer id has no epochs left, a second request gets the next producer id. Otherwise, the end of the
    transaction would change the producer id (KIP-890). If a marker were lost then, the owner of its rows would be
    unknown.
    """
    begin = op.InitProducerId(name, sink.task_timeout_ms, once=True, two_phase=sink.two_phase)
    owner: Owner | None = yield begin
    if owner is not None and owner.epoch >= sink.last_epoch:
        owner = yield begin
    return owner


def produce_rows(state: Tasking) -> Steps[Tasking]:
    """K3: write all rows with acks=all, and wait for every response. Only count the rows of a skipped batch."""
    owner = state.owner if state.owner is not None else Owner("", -1, -1)
    rows: op.Rows = yield op.ProduceRows(owner)
    if rows.outcome is not op.RequestOutcome.DONE:
        raise AnotherDriverError(f"{owner.id}: another attempt of this task, or another driver, has fenced this one")
    return replace(state, rows=rows)


TASK: tuple[Phase[Tasking], ...] = (look_for_rows, compare_record, begin_transaction, produce_rows)


def abandon(owner: Owner) -> Steps[None]:
    """Abort the transaction of a task that fails or is killed. This is best effort: the next plan aborts it, too."""
    yield op.EndTxn(owner, commit=False)
