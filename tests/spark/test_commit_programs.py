"""The programs of the commit protocol, step by step: the rules of K1, markers, and fencing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import (
    AnotherDriverError,
    MisuseError,
    NotDecidedError,
    NotVerifiedError,
    SinkError,
    TornBatchError,
)
from oncelog.spark.commit.finish import Committing, abort_batch, check_prepared, collect_reports, propose_decision
from oncelog.spark.commit.names import TURNS, Attempt, TopicPartition
from oncelog.spark.commit.ownership import Permission, already_committed
from oncelog.spark.commit.plan import Carried, Planning, abort_leftovers, last_decided
from oncelog.spark.commit.record import (
    APP,
    EACH,
    STREAM,
    WRITE,
    Owner,
    Record,
    Source,
    Span,
    TaskTransaction,
)
from oncelog.spark.commit.steps import Sink, Steps, await_commit_marker, commit_record, verify_all
from oncelog.spark.commit.task import Prepared, Skipped, Tasking, begin_transaction, look_for_rows
from oncelog.spark.commit.undo import accept_loss, take_back
from oncelog.spark.writing.driver import sink_of
from oncelog.spark.writing.options import sink_options
from oncelog.spark.writing.sink import SinkMessage, StreamSink

SINK = Sink("p", TopicPartition("p-commits", 0))
DRIVER = Owner("p", 1, 0)
TASK = Owner("p/0/1/0.0", 2, 0)
SPAN = Span(TopicPartition("out", 0), 3, 9)


def test_lost_answer_to_k2_moves_to_the_attempts_next_id() -> None:
    steps = begin_transaction(Tasking(SINK, Carried(DRIVER, Record(plan=1)), Source(STREAM, "q", 0), Attempt(0, 0, 0)))
    assert next(steps) == op.InitProducerId("p/0/1/0.0", SINK.task_timeout_ms, once=True)
    assert steps.send(None) == op.InitProducerId("p/0/1/0.0.1", SINK.task_timeout_ms, once=True)
    with pytest.raises(StopIteration) as stop:
        steps.send(Owner("p/0/1/0.0.1", 7, 0))
    assert stop.value.value.owner == Owner("p/0/1/0.0.1", 7, 0)


def test_k2_gives_up_when_the_answers_for_all_ids_are_lost() -> None:
    steps = begin_transaction(Tasking(SINK, Carried(DRIVER, Record(plan=1)), Source(STREAM, "q", 0), Attempt(0, 0, 0)))
    asked = [next(steps), *(steps.send(None) for _ in range(TURNS - 1))]
    assert len(set(asked)) == TURNS
    with pytest.raises(NotDecidedError, match="before they answered InitProducerId"):
        steps.send(None)


RECORD = Record(Source(STREAM, "q", 4), 7, 2, 100, False, (TaskTransaction(TASK, (SPAN,)),), ("out",))


@pytest.mark.parametrize("outcome", [op.RequestOutcome.TOO_LARGE, op.RequestOutcome.FENCED])
def test_oversized_decision_aborts_the_tasks_transactions(outcome: op.RequestOutcome) -> None:
    """A fenced driver aborts nothing: a copy of its request may have written the record, which another driver reads."""
    phase = propose_decision(Committing(SINK, (), Carried(DRIVER, Record()), RECORD))
    assert next(phase) == op.Produce(DRIVER, SINK.decision, RECORD)
    if outcome is op.RequestOutcome.FENCED:
        with pytest.raises(AnotherDriverError):
            phase.send(op.Produced(outcome))
        return
    assert phase.send(op.Produced(outcome)) == op.EndAll((TASK,), commit=False)
    with pytest.raises(NotDecidedError, match=r"p-commits rejected .* max\.message\.bytes to at least 1000000"):
        phase.send((op.RequestOutcome.DONE,))


def test_too_many_topics_for_one_record_are_named_and_abort_the_tasks() -> None:
    record = replace(RECORD, topics=tuple(f"topic-{number}" for number in range(50_000)))
    phase = propose_decision(Committing(SINK, (), Carried(DRIVER, Record()), record))
    assert isinstance(next(phase), op.Produce)
    assert phase.send(op.Produced(op.RequestOutcome.TOO_LARGE)) == op.EndAll((TASK,), commit=False)
    least = 2 * len(record.encode())
    with pytest.raises(NotDecidedError, match=f"at least {least}, or write to fewer topics.*all 50000 topics"):
        phase.send((op.RequestOutcome.DONE,))


def test_decision_may_take_no_longer_than_the_drivers_transaction() -> None:
    assert next(commit_record(SINK, DRIVER)) == op.EndTxn(DRIVER, True, within_ms=SINK.driver_timeout_ms)


def test_marker_search_starts_at_the_partitions_ends() -> None:
    """The rows of other tasks may be between a task's own rows and the end."""
    record = replace(RECORD, ends=(op.End(SPAN.at, 1_000),))
    assert next(verify_all(SINK, record)) == op.FindMarkers((op.Place(SPAN.at, TASK.pid, 999),))
    assert next(verify_all(SINK, RECORD)) == op.FindMarkers((op.Place(SPAN.at, TASK.pid, SPAN.last),))


def test_marker_search_restarts_after_the_rows_if_the_log_was_truncated() -> None:
    record = replace(RECORD, ends=(op.End(SPAN.at, 1_000),))
    phase = verify_all(SINK, record)
    next(phase)
    assert phase.send((op.Marker.MISSING,)) == op.AwaitEnded((TASK,))
    assert phase.send(None) == op.DescribeProducers((SPAN.at,))
    assert phase.send(()) == op.FindMarkers((op.Place(SPAN.at, TASK.pid, SPAN.last),))
    with pytest.raises(StopIteration):
        phase.send((op.Marker.COMMIT,))


def test_task_without_rows_opens_no_transaction() -> None:
    tasking = Tasking(SINK, Carried(DRIVER, RECORD), Source(STREAM, "q", 5), Attempt(0, 0, 0))
    peek = look_for_rows(tasking)
    assert next(peek) == op.PeekRows()
    with pytest.raises(StopIteration) as stopped:
        peek.send(False)
    with pytest.raises(StopIteration) as begun:
        next(begin_transaction(stopped.value.value))
    assert begun.value.value.owner is None


def message(offset: int, pid: int, plan: int | None, commit: bool = False) -> op.Message:
    return op.Message(offset, pid, 0, None if plan is None else Record(plan=plan), commit)


def test_aborted_records_are_skipped() -> None:
    log = (message(0, 1, 1), message(1, 1, None, True), message(2, 1, 2), message(3, 1, None), message(4, 2, 3))
    decided = last_decided(log)
    assert decided is not None
    assert decided.plan == 1
    assert last_decided(log[2:]) is None


@pytest.mark.parametrize(
    ("last", "source", "permission", "expected"),
    [
        (Source(WRITE, "", -1), Source(STREAM, "q", 0), Permission(), False),
        (Source(WRITE, "", -1), Source(STREAM, "q", 5), Permission(), "batch 5 already, that writes it a"),
        (Source(WRITE, "", -1), Source(STREAM, "q", 5), Permission(adopt_checkpoint=True), False),
        (Source(STREAM, "q", 4), Source(STREAM, "q", 4), Permission(), True),
        (Source(STREAM, "q", 4), Source(STREAM, "q", 5), Permission(), False),
        (Source(STREAM, "q", 4), Source(STREAM, "q", 6), Permission(), "adoptCheckpoint"),
        (
            Source(STREAM, "q", 4),
            Source(STREAM, "q", 3),
            Permission(True, True),
            "the sink has already committed batch",
        ),
        (Source(STREAM, "q", 4), Source(STREAM, "r", 5), Permission(), "takeOver"),
        (Source(STREAM, "q", 4), Source(STREAM, "r", 0), Permission(take_over=True), False),
        (Source(STREAM, "q", 4), Source(STREAM, "r", 3), Permission(take_over=True), "adoptCheckpoint"),
        (Source(STREAM, "q", 4), Source(STREAM, "r", 5), Permission(take_over=True), "adoptCheckpoint"),
        (Source(STREAM, "q", 4), Source(STREAM, "r", 5), Permission(True, True), False),
        (Source(STREAM, "q", 4), Source(WRITE, "u", 0), Permission(), "takeOver"),
        (Source(APP, "a", 4), Source(APP, "a", 4), Permission(), True),
        (Source(APP, "a", 4), Source(APP, "a", 3), Permission(), "txnVersion=3: it is below 4.*acceptReplay=3"),
        (Source(APP, "a", 4), Source(APP, "a", 3), Permission(accept_replay=2), "txnVersion=3"),
        (Source(APP, "a", 4), Source(APP, "a", 3), Permission(accept_replay=3), True),
        (Source(APP, "a", 4), Source(APP, "a", 9), Permission(), False),
        (Source(APP, "a", 4), Source(APP, "b", 9), Permission(), "takeOver"),
        (Source(WRITE, "u", 0), Source(WRITE, "v", 0), Permission(), False),
        (Source(WRITE, "u", 0), Source(STREAM, "q", 0), Permission(), "takeOver"),
        (Source(WRITE, "u", 0), Source(STREAM, "q", 0), Permission(take_over=True), False),
        (Source(WRITE, "u", 0), Source(APP, "a", 9), Permission(), "takeOver"),
        (Source(WRITE, "", -1), Source(APP, "a", 9), Permission(), False),
        (Source(WRITE, "", -1), Source(WRITE, "u", 0), Permission(), False),
        (Source(WRITE, "", -1), Source(EACH, "q", 7, call="a"), Permission(), False),
        (Source(EACH, "q", 4, call="a"), Source(EACH, "q", 4, call="b"), Permission(), True),
        (
            Source(EACH, "q", 4, call="a"),
            Source(EACH, "q", 4, call="a"),
            Permission(take_over=True),
            "distinguish the two",
        ),
        (Source(EACH, "q", 4, call="a", topic="x"), Source(EACH, "q", 4, call="b", topic="x"), Permission(), True),
        (Source(EACH, "q", 4, call="a", topic="x"), Source(EACH, "q", 4, call="b", topic="y"), Permission(), "topic y"),
        (Source(EACH, "q", 4, call="a", topic="x"), Source(EACH, "q", 5, call="b", topic="y"), Permission(), False),
        (Source(EACH, "q", 4, call="a", topic="x"), Source(EACH, "q", 4, call="b"), Permission(), True),
        (Source(EACH, "q", 4, call="a"), Source(EACH, "q", 4, call="b", topic="y"), Permission(), True),
        (
            Source(EACH, "q", 4, call="a", topic="x"),
            Source(EACH, "q", 4, call="b", topic="y"),
            Permission(accept_replay=4),
            True,
        ),
        (Source(EACH, "q", 4, call="a"), Source(EACH, "q", 6, call="a"), Permission(), False),
        (
            Source(EACH, "q", 4, call="a"),
            Source(EACH, "q", 3, call="b"),
            Permission(True, True, 3),
            "already committed batch 4",
        ),
        (Source(EACH, "q", 4, call="a"), Source(EACH, "r", 4, call="a"), Permission(), "takeOver"),
        (Source(EACH, "q", 4, call="a"), Source(EACH, "r", 4, call="a"), Permission(take_over=True), False),
        (Source(EACH, "q", 4, call="a"), Source(WRITE, "u", 0), Permission(), "takeOver"),
        (Source(WRITE, "u", 0), Source(EACH, "q", 0, call="a"), Permission(), "takeOver"),
        (Source(APP, "a", 4), Source(EACH, "q", 4, call="a"), Permission(), "takeOver"),
    ],
)
def test_k1_compares_batches(last: Source, source: Source, permission: Permission, expected: bool | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(MisuseError, match=expected):
            already_committed("p", Record(last), source, permission)
    else:
        assert already_committed("p", Record(last), source, permission) is expected


def prepared(slot: int, plan: int = 1, rows: int = 5) -> Prepared:
    carried = Carried(DRIVER, Record(plan=plan))
    return Prepared(slot, TaskTransaction(TASK._replace(pid=slot), (SPAN,)), rows, carried, Source(STREAM, "q", 0))


def test_tasks_of_different_plans_are_not_committed() -> None:
    for messages in ((prepared(0), prepared(1, plan=2)), (prepared(0), Skipped(1, 5, 10, 4))):
        with pytest.raises(SinkError, match="different plans"):
            list(collect_reports(Committing(SINK, messages)))


def test_replay_with_other_rows_is_rejected() -> None:
    list(collect_reports(Committing(SINK, (Skipped(0, 5, 10, 4), Skipped(1, 5, 10, 4)))))
    with pytest.raises(SinkError, match="10 rows"):
        list(collect_reports(Committing(SINK, (Skipped(0, 5, 10, 4), Skipped(1, 4, 10, 4)))))


@pytest.mark.parametrize(("accepted", "total"), [(None, 10), (3, 10), (4, -1)])
def test_accept_replay_applies_only_to_the_named_batch(accepted: int | None, total: int) -> None:
    source = Source(STREAM, "q", 4)
    carried = Carried(DRIVER, Record(source, 7, 2, rows=10))
    tasking = Tasking(SINK, carried, source, Attempt(0, 0, 0), Permission(accept_replay=accepted), skip=True)
    assert replace(tasking, rows=op.Rows(op.RequestOutcome.DONE, 4, ())).message() == Skipped(0, 4, total, 4)


def test_too_little_time_error_names_batch_timeout_and_clocks() -> None:
    phase = check_prepared(Committing(SINK, (), record=Record(transactions=(TaskTransaction(TASK, (SPAN,)),))))
    next(phase)
    with pytest.raises(NotDecidedError, match=r"kafka\.transaction\.timeout\.ms.*maxOffsetsPerTrigger.*clocks"):
        phase.send((op.Described(TASK.id, TASK.pid, TASK.epoch, op.TxnState.ONGOING, -700_000),))


def test_commit_waits_for_a_late_marker() -> None:
    place = op.Place(SINK.decision, DRIVER.pid, 5)
    steps = await_commit_marker(SINK, place)
    assert next(steps) == op.FindMarkers((place,))
    assert steps.send((op.Marker.MISSING,)) == op.AwaitEnded((Owner(SINK.prefix, DRIVER.pid, -1),))
    assert steps.send(None) == op.FindMarkers((place,))
    with pytest.raises(StopIteration):
        steps.send((op.Marker.COMMIT,))


def test_only_markers_that_stay_missing_are_named() -> None:
    cured, missing = SPAN, Span(TopicPartition("out", 1), 0, 4)
    phase = verify_all(SINK, Record(transactions=(TaskTransaction(TASK, (cured, missing)),)))
    both = op.FindMarkers(tuple(op.Place(span.at, TASK.pid, span.last) for span in (cured, missing)))
    assert next(phase) == both
    assert phase.send((op.Marker.MISSING, op.Marker.MISSING)) == op.AwaitEnded((TASK,))
    assert phase.send(None) == op.DescribeProducers((cured.at, missing.at))
    opened = op.OpenProducer(cured.at, TASK.pid, TASK.epoch, cured.first)
    assert phase.send((opened,)) == op.WriteTxnMarkers(cured.at, TASK.pid, TASK.epoch, commit=True)
    assert phase.send(op.RequestOutcome.DONE) == both
    assert phase.send((op.Marker.COMMIT, op.Marker.MISSING)) == op.FindEnds((missing.at,))
    with pytest.raises(NotVerifiedError, match=r"missing in out-1; the next.*sink abort p --accept-loss"):
        phase.send((op.End(missing.at, 5),))


@pytest.mark.parametrize(
    ("before", "now", "gone"),
    [
        ("one", (op.End(SPAN.at, 0, "two"),), True),
        ("one", (), True),
        ("one", (op.End(SPAN.at, 0, "one"),), False),
        ("", (op.End(SPAN.at, 0, "two"),), False),
        ("one", (op.End(SPAN.at, 0),), False),
    ],
    ids=["created again", "deleted", "the same", "an older record", "brokers without ids"],
)
@pytest.mark.parametrize("undo", [False, True], ids=["P3", "U3"])
def test_marker_in_a_deleted_topic_is_gone(before: str, now: tuple[op.End, ...], gone: bool, undo: bool) -> None:
    record = replace(RECORD, ends=(op.End(SPAN.at, 10, before),))
    phase: Steps[object] = verify_all(SINK, record)
    if undo:
        phase = take_back(Planning(SINK, driver=DRIVER, record=record))
        next(phase)
        assert phase.send(()) == op.AwaitEnded((TASK,))
        assert phase.send(None) == PLACE
    else:
        assert next(phase) == PLACE
        assert phase.send((op.Marker.MISSING,)) == op.AwaitEnded((TASK,))
    assert phase.send((op.Marker.MISSING,) if undo else None) == op.DescribeProducers((SPAN.at,))
    assert phase.send(()) == PLACE
    assert phase.send((op.Marker.MISSING,)) == op.FindEnds((SPAN.at,))
    if undo or not gone:
        with pytest.raises(NotVerifiedError, match="1 of 1 parts of batch 4 are deleted" if gone else "marker"):
            phase.send(now)
    else:
        with pytest.raises(StopIteration):
            phase.send(now)


@pytest.mark.parametrize("timeout_ms", [1_000, 4_000, 60_000, 90_000, 900_000])
def test_driver_decides_before_the_tasks_transactions_expire(timeout_ms: int) -> None:
    """If there is time: even for a broker that checks for expired transactions only every ten seconds."""
    given = {"kafka.bootstrap.servers": "h:1", "transactionalIdPrefix": "p", "topic": "t"}
    made = sink_of(sink_options({**given, "kafka.transaction.timeout.ms": str(timeout_ms)}, streaming=True))
    assert made.driver_timeout_ms <= made.margin_ms < made.task_timeout_ms == timeout_ms
    if timeout_ms >= 60_000:
        assert made.driver_timeout_ms + 10_000 <= made.margin_ms


def test_broker_may_be_away_between_proposal_and_decision_for_most_of_a_minute() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "transactionalIdPrefix": "p", "topic": "t"}
    assert sink_of(sink_options(given, streaming=True)).driver_timeout_ms >= 45_000


def test_abort_changes_nothing_if_the_commit_may_have_started() -> None:
    assert list(abort_batch([prepared(0), prepared(1)])) == []
    assert list(abort_batch([None, Skipped(1, 5, 10, 4)])) == []
    (ended,) = list(abort_batch([prepared(0), None]))
    assert isinstance(ended, op.EndAll)
    assert not ended.commit


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.sampled_from(["data", "commit", "abort"]))))
def test_last_decided_is_the_last_data_whose_producer_committed(entries: list[tuple[int, int, str]]) -> None:
    log = tuple(
        message(offset, pid, plan if kind == "data" else None, kind == "commit")
        for offset, (pid, plan, kind) in enumerate(entries)
    )
    expected = None
    for offset, (pid, _, kind) in enumerate(entries):
        if kind == "commit":
            before = [e for e in entries[:offset] if e[0] == pid]
            if before and before[-1][2] == "data":
                expected = before[-1][1]
    decided = last_decided(log)
    assert (None if decided is None else decided.plan) == expected


@pytest.mark.parametrize(
    ("rows", "cure"), [(10, "acceptReplay=2 to continue"), (30, "higher txnVersion.*without its new rows")]
)
def test_rejected_replay_with_other_rows_names_the_cost_of_acceptance(rows: int, cure: str) -> None:
    carried = Carried(DRIVER, Record(Source(APP, "app", 2), rows=20))
    tasking = Tasking(SINK, carried, Source(APP, "app", 2), Attempt(0, 0, 0), skip=True)
    message = replace(tasking, rows=op.Rows(op.RequestOutcome.DONE, rows, ())).message()
    assert message == Skipped(0, rows, 20, 2)
    with pytest.raises(SinkError, match=f"replayed with {rows}.*{cure}"):
        next(collect_reports(Committing(SINK, (message,))))


@pytest.mark.parametrize(("epoch", "again"), [(0, False), (32_765, False), (32_766, True)])
def test_no_rows_are_written_in_the_last_epoch(epoch: int, again: bool) -> None:
    phase = begin_transaction(Tasking(SINK, Carried(DRIVER, Record(plan=1)), STREAM_BATCH, Attempt(0, 0, 0)))
    asked = next(phase)
    owner, other = TASK._replace(epoch=epoch), TASK._replace(pid=9)
    if again:
        assert phase.send(owner) == asked
    with pytest.raises(StopIteration) as stopped:
        phase.send(other if again else owner)
    assert stopped.value.value.owner == (other if again else owner)


def test_commit_without_the_message_of_a_task_is_rejected() -> None:
    schema = StructType([StructField("value", StringType())])
    given = {"kafka.bootstrap.servers": "nowhere:1", "transactionalIdPrefix": "p", "topic": "out"}
    sink = StreamSink(given, schema, overwrite=False)
    with pytest.raises(NotDecidedError, match="1 of 2 tasks"):
        sink.commit([SinkMessage(Skipped(0, 1, 1, 4)), None], 0)


@pytest.mark.parametrize("outcome", [op.RequestOutcome.DONE, op.RequestOutcome.DENIED])
def test_hanging_rows_that_may_not_be_ended_fail_the_plan(outcome: op.RequestOutcome) -> None:
    out = TopicPartition("out", 0)
    left, stray = Owner("p/0/1/0.0", 2, 0), op.OpenProducer(out, 3, 0, 7)
    lost = op.OpenProducer(out, 2, 0, 5)
    sink = replace(SINK, targets=(out,))
    phase = abort_leftovers(Planning(sink, left=(left,), strays=(stray,), driver=DRIVER, record=Record()))
    assert next(phase) == op.EndAll((left,), commit=False)
    assert phase.send((op.RequestOutcome.DONE,)) == op.AwaitEnded((left,))
    assert phase.send(None) == op.DescribeProducers((out,))
    assert phase.send((lost, stray)) == op.WriteTxnMarkers(out, 2, 0, commit=False)
    assert phase.send(outcome) == op.WriteTxnMarkers(out, 3, 0, commit=False)
    if outcome is op.RequestOutcome.DENIED:
        with pytest.raises(NotVerifiedError, match="ClusterAction; ask an operator"):
            phase.send(outcome)
    else:
        with pytest.raises(StopIteration):
            phase.send(outcome)


STREAM_BATCH = Source(STREAM, "q", 4)
PLACE = op.FindMarkers((op.Place(SPAN.at, TASK.pid, SPAN.last),))
HANGS = op.OpenProducer(SPAN.at, TASK.pid, TASK.epoch, SPAN.first)
ABORTS = op.WriteTxnMarkers(SPAN.at, TASK.pid, TASK.epoch, commit=False)


def decided(source: Source = STREAM_BATCH) -> Planning:
    record = Record(source, 7, 1, 100, False, (TaskTransaction(TASK, (SPAN,)),), ("out",))
    return Planning(SINK, driver=DRIVER, record=record)


def lost_marker(answer: op.Marker, source: Source = STREAM_BATCH) -> Steps[Planning]:
    """Return an undo up to its first check: the coordinator says CompleteCommit, the partition says `answer`."""
    phase = take_back(decided(source))
    assert next(phase) == op.DescribeTransactions((TASK.id,))
    assert phase.send((op.Described(TASK.id, TASK.pid, TASK.epoch, op.TxnState.COMPLETE, 0),)) == op.AwaitEnded((TASK,))
    assert phase.send(None) == PLACE
    if answer is op.Marker.MISSING:
        assert phase.send((answer,)) == op.DescribeProducers((SPAN.at,))
    return phase


def test_batch_that_may_not_be_ended_is_not_undone() -> None:
    phase = lost_marker(op.Marker.MISSING)
    assert phase.send((HANGS,)) == ABORTS
    with pytest.raises(NotVerifiedError, match=r"out-0.*ClusterAction"):
        phase.send(op.RequestOutcome.DENIED)


@pytest.mark.parametrize("opened", [(), (HANGS._replace(epoch=1),)], ids=["nothing open", "another epoch"])
def test_batch_whose_marker_stays_missing_is_not_undone(opened: tuple[op.OpenProducer, ...]) -> None:
    phase = lost_marker(op.Marker.MISSING)
    assert phase.send(opened) == PLACE
    assert phase.send((op.Marker.MISSING,)) == op.FindEnds((SPAN.at,))
    with pytest.raises(NotVerifiedError, match="no marker in out-0"):
        phase.send((op.End(SPAN.at, 10),))


@pytest.mark.parametrize(("marker", "error"), [(op.Marker.COMMIT, TornBatchError), (op.Marker.GONE, NotVerifiedError)])
def test_batch_that_is_or_was_visible_is_not_undone(marker: op.Marker, error: type[SinkError]) -> None:
    with pytest.raises(error, match="oncelog sink settle p"):
        lost_marker(marker).send((marker,))
    phase = lost_marker(op.Marker.MISSING)
    assert phase.send((HANGS,)) == ABORTS
    assert phase.send(op.RequestOutcome.DONE) == PLACE
    with pytest.raises(error):  # another driver's repair, or the retention, was earlier
        phase.send((marker,))


@pytest.mark.parametrize(
    ("source", "before"),
    [
        (Source(STREAM, "q", 4), Source(STREAM, "q", 3)),
        (Source(STREAM, "q", 4, start="s", end="e"), Source(STREAM, "q", 3, end="s")),
        (Source(STREAM, "q", 0), Source(STREAM, "q", -1)),
        (Source(APP, "app", 4), Source(APP, "app", 3)),
        (Source(WRITE, "u", 0), Source(WRITE, "u", 0)),
        (Source(EACH, "q", 4, call="a"), Source(EACH, "q", 3, call="a")),
    ],
)
def test_undone_batch_is_written_again_and_none_before_it(source: Source, before: Source) -> None:
    phase = lost_marker(op.Marker.MISSING, source)
    assert phase.send((HANGS,)) == ABORTS
    assert phase.send(op.RequestOutcome.DONE) == PLACE
    with pytest.raises(StopIteration) as stopped:
        phase.send((op.Marker.ABORT,))
    record = stopped.value.value.record
    assert record.source == before
    assert already_committed("p", record, source, Permission()) is False
    if source.kind == APP:
        assert already_committed("p", record, before, Permission()), "committed, or its loss accepted"
    with pytest.raises(MisuseError, match="takeOver"):
        already_committed("p", record, Source(APP, "another", 9), Permission())


@pytest.mark.parametrize("kind", [STREAM, APP, WRITE, EACH])
def test_only_messages_for_streams_mention_checkpoints(kind: str) -> None:
    with pytest.raises(MisuseError) as refused:
        already_committed("p", Record(Source(APP, "one", 4)), Source(kind, "another", 0), Permission())
    assert "takeOver=true" in str(refused.value)
    assert ("startingOffsets" in str(refused.value)) == (kind == STREAM)
    assert ("txnAppId and txnVersion" in str(refused.value)) == (kind == WRITE)


@pytest.mark.parametrize(
    ("outcome", "after"),
    [(op.RequestOutcome.DENIED, ()), (op.RequestOutcome.FENCED, (HANGS,)), (op.RequestOutcome.DONE, ())],
    ids=str,
)
def test_loss_is_not_accepted_while_rows_hang(outcome: op.RequestOutcome, after: tuple[op.OpenProducer, ...]) -> None:
    phase = accept_loss(decided())
    assert next(phase) == op.EndAll((TASK,), commit=False)
    assert phase.send((op.RequestOutcome.INVALID_STATE,)) == op.AwaitEnded((TASK,))
    assert phase.send(None) == PLACE
    assert phase.send((op.Marker.MISSING,)) == op.DescribeProducers((SPAN.at,))
    assert phase.send((HANGS,)) == ABORTS
    if outcome is op.RequestOutcome.DENIED:
        with pytest.raises(NotVerifiedError, match="ClusterAction"):
            phase.send(outcome)
        return
    assert phase.send(outcome) == op.DescribeProducers((SPAN.at,))
    if after:
        with pytest.raises(NotVerifiedError, match="still open in out-0"):
            phase.send(after)
    else:
        with pytest.raises(StopIteration):
            phase.send(after)
