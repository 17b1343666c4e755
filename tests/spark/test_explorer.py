"""The sink's protocol against every interleaving within bounds, and without single rules.

ONCELOG_EXPLORE=deep also explores the larger bounds (minutes; up to MOST_STATES each, which take about 3 GB).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

import pytest

from oncelog.spark.commit.steps import Sink
from spark.explorer.altered import without_task_attempt
from spark.explorer.explorer import Explorer
from spark.explorer.kafka import Cluster
from spark.explorer.mutants import MUTANTS, NEEDLESS, Mutant
from spark.explorer.walks import walk
from spark.explorer.worlds import (
    APPLICATION,
    CHECKPOINT,
    FOREACH_BATCH,
    ID,
    KINDS,
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
    Bounds,
    Query,
    Rules,
)

MOST_STATES = 3_000_000

GENERATIONS = pytest.mark.parametrize("new", [True, False], ids=["new protocol", "old protocol"])


def bounds(
    batches: int,
    faults: dict[str, int],
    begin: str = "",
    split: int = 0,
    queries: tuple[Query, ...] = (QUERY,),
    untouched: bool = False,
    copy: int = OWN,
) -> Bounds:
    limits, total = {kind: faults.get(kind, 0) for kind in KINDS}, sum(faults.values())
    return Bounds(batches, total, limits, begin=begin, split=split, queries=queries, untouched=untouched, copy=copy)


class Case(NamedTuple):
    """A world of its own kind: its queries, faults and Kafka."""

    faults: dict[str, int]
    batches: int = 1
    queries: tuple[Query, ...] = (QUERY,)
    begin: str = ""
    max_epoch: int = 1000
    first_epoch: int = 0
    apart: bool = False
    split: int = 0
    every: int = 50
    deep: bool = False
    untouched: bool = False
    part_bytes: int = SINK.part_bytes
    copy: int = OWN
    two_phase: bool = False


def identified(*queries: Query, by: str = ID) -> tuple[Query, ...]:
    """Return the same case, whose plans know their query."""
    return tuple(query._replace(known_by=by) for query in queries)


IN_PARTS = 215
"""Size in bytes of a record in two parts."""

CASES = {
    "a record in parts": Case({"dup": 1}, 2, every=5, part_bytes=IN_PARTS),
    "a record in parts, two drivers": Case({"driver": 1}, begin="commit", part_bytes=IN_PARTS),
    "a record in parts, markers lost": Case({"lose": 2}, begin="commit", part_bytes=IN_PARTS, every=1),
    "a record in parts, timeout": Case({"dup": 1, "timeout": 1}, begin="commit", part_bytes=IN_PARTS),
    "a record in parts, too late": Case({"late": 1, "slow": 1}, begin="commit", part_bytes=IN_PARTS),
    "a record in parts, compacted": Case({"compact": 2}, 2, every=5, part_bytes=IN_PARTS),
    "a record in parts, compacted, a copy comes late": Case(
        {"compact": 1, "dup": 1}, 2, every=20, part_bytes=IN_PARTS, deep=True
    ),
    "the decision topic is compacted, two drivers": Case({"compact": 1, "driver": 1}, begin="commit", every=500),
    "a record in parts, compacted, two drivers": Case(
        {"compact": 1, "driver": 1}, 2, begin="commit", every=50, part_bytes=IN_PARTS, deep=True
    ),
    "an older high watermark": Case({"stale": 1}, 2, every=5),
    "an older high watermark, two drivers": Case({"stale": 1, "driver": 1}, begin="commit"),
    "an older high watermark, two queries": Case(
        {"stale": 1, "other": 1}, queries=identified(QUERY, SUCCESSOR), begin="commit", every=500
    ),
    "a record that is rejected": Case({"reject": 1, "dup": 1}, 2, every=5),
    "a record in parts, rejected": Case({"reject": 1, "driver": 1}, begin="commit", part_bytes=IN_PARTS, every=5),
    "a record in parts, taken back": Case({"lose": 1, "undo": 1}, begin="commit", part_bytes=IN_PARTS),
    "a log cut below the ends": Case({"twin": 1, "cut": 1}, begin="stage", every=10),
    "a log cut below the ends, markers lost": Case(
        {"twin": 1, "cut": 1, "lose": 1}, begin="stage", every=50, deep=True
    ),
    "a log cut below the ends, taken back": Case({"twin": 1, "cut": 1, "undo": 1}, begin="stage", every=50, deep=True),
    "the output topic is created again": Case({"remake": 1}, 2, every=5),
    "the output topic is created again, record in parts": Case({"remake": 1}, 2, every=5, part_bytes=IN_PARTS),
    "the output topic is created again, taken back": Case({"remake": 1, "undo": 1}, begin="commit", every=2),
    "the output topic is created again, two drivers": Case(
        {"remake": 1, "driver": 1}, begin="commit", every=20, deep=True
    ),
    "coordinator moves": Case({"move": 2}, 2, split=2, every=2),
    "coordinator moves, a marker lost": Case({"move": 1, "lose": 1}, 2, split=2, every=5),
    "coordinator moves, the old one's copy comes late": Case({"move": 1, "dup": 1}, 2, split=2),
    "coordinator moves, two drivers": Case({"move": 1, "driver": 1}, begin="commit", split=2),
    "a coordinator that does not list": Case({"hide": 1, "kill": 1}, 2, split=2, every=1),
    "a coordinator that does not list, two drivers": Case({"hide": 1, "driver": 1}, begin="commit"),
    "answers at different times": Case({"lose": 1}, 2, apart=True, split=2, every=1),
    "answers at different times, two drivers": Case({"driver": 1}, begin="commit", apart=True),
    "epochs used up": Case({"dup": 1}, 2, max_epoch=1, every=5),
    "epochs used up, a marker lost": Case({"lose": 1}, 2, max_epoch=1, every=1),
    "epochs used up, a marker of a killed task lost": Case(
        {"kill": 1, "lose": 1}, 2, max_epoch=1, first_epoch=1, split=2, every=1
    ),
    "epochs used up, timeout": Case({"stage": 1, "timeout": 1}, 2, max_epoch=1, every=2),
    "epochs used up, two drivers": Case({"driver": 1}, begin="commit", max_epoch=1, first_epoch=1),
    "epochs used up in the middle, two drivers": Case({"driver": 1}, begin="commit", max_epoch=2),
    "two queries": Case({"other": 1}, queries=(QUERY, SUCCESSOR), begin="commit"),
    "two queries, distinguished": Case(
        {"other": 1}, 2, queries=identified(QUERY, SUCCESSOR), begin="commit", untouched=True, every=2
    ),
    "two queries, distinguished by their checkpoints": Case(
        {"other": 1}, 2, queries=identified(QUERY, SUCCESSOR, by=CHECKPOINT), begin="commit", untouched=True, every=2
    ),
    "two queries, distinguished before a first row": Case(
        {"other": 1}, queries=identified(QUERY, SUCCESSOR, by=CHECKPOINT), begin="stage", untouched=True, every=5
    ),
    "a distinguished query, restarted before its first row": Case(
        {"driver": 1}, queries=identified(QUERY, by=CHECKPOINT), begin="stage"
    ),
    "two prefixes": Case({"other": 1}, queries=TWO_PREFIXES, begin="stage", untouched=True, every=1),
    "two prefixes, two batches": Case(
        {"other": 1}, 2, queries=(QUERY, SUCCESSOR._replace(prefix="r")), begin="commit", untouched=True, every=5
    ),
    "two queries, distinguished from the start": Case({"other": 1}, queries=identified(QUERY, SUCCESSOR), deep=True),
    "a distinguished query, restarted": Case({"driver": 1}, queries=identified(QUERY, by=CHECKPOINT), begin="commit"),
    "an older checkpoint, or a copy": Case({"older": 1}, begin="commit"),
    "an older checkpoint, or a copy, two batches": Case(
        {"older": 1}, 2, queries=identified(QUERY), begin="log", deep=True
    ),
    "an older checkpoint, or a copy, two batches from the commit": Case({"older": 1}, 2, begin="commit", deep=True),
    "an older checkpoint, or a copy, from the start": Case({"older": 1}, deep=True),
    "an older checkpoint and a lost marker": Case({"older": 1, "lose": 1}, 2, begin="commit", deep=True),
    "a copy of a checkpoint, and the original a batch ahead": Case(
        {"leap": 1}, 2, begin="log", copy=PLANNED_AGAIN, every=5
    ),
    "a copy of a checkpoint, and the original a batch ahead, from the commit": Case(
        {"leap": 1}, 2, begin="commit", copy=PLANNED_AGAIN, every=20, deep=True
    ),
    "a checkpoint that has lost its id": Case({"renamed": 1}, 2, begin="log"),
    "an older checkpoint, and one that has lost its id": Case({"older": 1, "renamed": 1}, begin="commit", deep=True),
    "takeOver, distinguished": Case({"other": 1}, queries=identified(QUERY, SUCCESSOR_TAKER), begin="commit"),
    "takeOver": Case({"other": 1}, queries=(QUERY, SUCCESSOR_TAKER), begin="commit"),
    "takeOver, restarted": Case({"driver": 1}, queries=(TAKER,), begin="commit"),
    "takeOver by a query that is ahead": Case(
        {"other": 1, "leap": 1}, 2, queries=(QUERY, SUCCESSOR_TAKER), begin="commit", deep=True
    ),
    "a checkpoint ahead": Case({"leap": 1}, 2),
    "adoptCheckpoint": Case({"leap": 1}, 2, queries=(MOVED,), begin="commit"),
    "adoptCheckpoint, old checkpoint": Case({"rewind": 1}, 2, queries=(MOVED,)),
    "first batch not here": Case({}, queries=(QUERY._replace(first=1),)),
    "adoptCheckpoint, first batch not here": Case({"rewind": 1}, 2, queries=(MOVED._replace(first=1),), every=20),
    "txnVersion": Case({"driver": 1}, queries=(APPLICATION,), begin="commit"),
    "txnVersion, an older one": Case({"rewind": 1}, 2, queries=(APPLICATION,)),
    "txnVersion, one left out": Case({"leap": 1}, 2, queries=(APPLICATION,), begin="commit"),
    "foreachBatch": Case({"driver": 1}, 2, queries=(FOREACH_BATCH,), begin="commit"),
    "foreachBatch, a marker lost": Case({"driver": 1, "lose": 1}, queries=(FOREACH_BATCH,), begin="commit", every=5),
    "foreachBatch, an older checkpoint": Case({"rewind": 1}, 2, queries=(FOREACH_BATCH,)),
    "foreachBatch, a batch that writes nothing": Case({"leap": 1}, 2, queries=(FOREACH_BATCH,), begin="commit"),
    "a write without a name after foreachBatch": Case(
        {"other": 1}, queries=(FOREACH_BATCH, WRITES[0]), begin="commit", every=5
    ),
    "writes without a name": Case({"other": 1}, queries=WRITES, begin="commit"),
    "a write without a name after a query": Case({"other": 1}, queries=(QUERY, *WRITES), begin="commit"),
    "a query after a write without a name": Case({"other": 1}, queries=(WRITES[0], QUERY), begin="commit"),
    "loss accepted": Case({"accept": 1, "lose": 1}),
    "two-phase commit, a driver that is away": Case({"timeout": 1, "late": 2, "slow": 1}, two_phase=True),
    "two-phase commit, a zombie driver": Case({"late": 1, "driver": 1}, begin="commit", two_phase=True),
    "two-phase commit, twins and late copies": Case({"late": 1, "twin": 1, "dup": 1}, two_phase=True, deep=True),
    "loss accepted after a timeout": Case({"accept": 1, "late": 1}, begin="commit"),
    "moved at any time, two drivers": Case({"move": 1, "driver": 1}, split=2, deep=True),
    "not listed at any time, two drivers": Case({"hide": 1, "driver": 1}, deep=True),
    "answers at different times, two drivers, from the start": Case({"driver": 1}, apart=True, deep=True),
    "epochs used up at any time, two drivers": Case({"driver": 1}, max_epoch=1, deep=True),
    "two queries, from the start": Case({"other": 1}, queries=(QUERY, SUCCESSOR), deep=True),
    "takeOver, from the start": Case({"other": 1}, queries=(QUERY, SUCCESSOR_TAKER), deep=True),
    "takeOver by a query that restarts": Case(
        {"other": 1, "lose": 1}, queries=(QUERY, SUCCESSOR_TAKER), begin="stage", deep=True
    ),
    "adoptCheckpoint, from the start": Case({"leap": 1}, 3, queries=(MOVED,), deep=True),
    "txnVersion, one left out at any time": Case({"leap": 1}, 3, queries=(APPLICATION,), deep=True),
    "txnVersion, from the start": Case({"driver": 1}, queries=(APPLICATION,), deep=True),
    "writes without a name, from the start": Case({"other": 1}, queries=WRITES, deep=True),
    "loss accepted, or taken back": Case({"accept": 1, "undo": 1}, begin="commit", deep=True),
    "loss accepted, from another driver": Case({"accept": 1, "driver": 1}, begin="commit", deep=True),
    "loss accepted, two batches": Case({"accept": 1}, 2, deep=True),
}


QUICK: list[tuple[int, dict[str, int]]] = [
    (1, {"driver": 1}),
    (2, {"settle": 1}),
    (2, {"undo": 1}),
    (2, {"twin": 1}),
    (2, {"dup": 1}),
    (2, {"dup": 2}),
    (1, {"dup": 1, "twin": 1}),
    (2, {"rewind": 1}),
    (2, {"lose": 2}),
    (2, {"kill": 1, "lose": 1}),
    (2, {"stage": 1, "timeout": 1}),
    (1, {"dup": 1, "timeout": 1}),
    (1, {"late": 1, "slow": 2}),
    (1, {"kill": 1, "twin": 1}),
    (1, {"lose": 1, "deny": 1, "undo": 1}),
]
DEEP: list[tuple[int, dict[str, int]]] = [
    (2, {"driver": 1}),
    (1, {"driver": 1, "lose": 1}),
    (1, {"driver": 1, "dup": 1}),
    (1, {"driver": 1, "twin": 1}),
    (1, {"driver": 1, "settle": 1}),
    (1, {"driver": 1, "late": 1}),
    (2, {"twin": 1, "lose": 1}),
    (2, {"dup": 1, "lose": 1}),
    (1, {"driver": 1, "undo": 1}),
]
EXPLORE_DEEP = os.environ.get("ONCELOG_EXPLORE") == "deep"
CHOSEN = QUICK + (DEEP if EXPLORE_DEEP else [])


@GENERATIONS
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("batches", "faults"), CHOSEN, ids=lambda value: str(value))
def test_no_interleaving_loses_or_duplicates_a_row(batches: int, faults: dict[str, int], new: bool) -> None:
    limits = replace(bounds(batches, faults), states=MOST_STATES)
    report = Explorer(Cluster(new=new), limits).run(recover_every=50)
    print(f"{batches} batches, {faults}: {report}, {report.recoveries:,} recoveries")
    assert report.complete or (batches, faults) in DEEP
    assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
@pytest.mark.parametrize("faults", [{"lose": 2, "deny": 1, "undo": 1}, {"slow": 3, "deny": 1, "undo": 1}], ids=str)
def test_batch_with_an_unknown_outcome_is_not_undone(faults: dict[str, int], new: bool) -> None:
    report = Explorer(Cluster(new=new), bounds(1, faults, "commit")).run(recover_every=5)
    print(f"{faults}: {report}, {report.recoveries:,} recoveries")
    assert report.complete
    assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if EXPLORE_DEEP or not case.deep])
def test_worlds_of_every_kind(name: str, new: bool) -> None:
    case = CASES[name]
    limits = bounds(case.batches, case.faults, case.begin, case.split, case.queries, case.untouched, case.copy)
    cluster = Cluster(new=new, max_epoch=case.max_epoch, first_epoch=case.first_epoch, apart=case.apart)
    sink = replace(SINK, last_epoch=case.max_epoch, part_bytes=case.part_bytes, two_phase=case.two_phase)
    report = Explorer(cluster, replace(limits, states=MOST_STATES), sink=sink).run(recover_every=case.every)
    print(f"{name}: {report}, {report.recoveries:,} recoveries")
    assert report.complete or case.deep
    assert not report.violation, "\n".join((report.violation, *report.trace))


@pytest.mark.parametrize("name", MUTANTS)
def test_violation_is_found_without_each_rule(name: str) -> None:
    mutant = MUTANTS[name]
    for new in mutant.generations:
        report = _explore(mutant, mutant.rules, new)
        print(f"{name}, {'new' if new else 'old'} protocol: {report}")
        assert report.violation


@pytest.mark.parametrize("name", NEEDLESS)
def test_no_violation_is_found_without_rules_that_are_only_defensive(name: str) -> None:
    mutant = NEEDLESS[name]
    for new in mutant.generations:
        report = _explore(mutant, mutant.rules, new)
        print(f"{name}, {'new' if new else 'old'} protocol: {report}")
        assert report.complete
        assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
def test_rows_of_a_lost_abort_marker_are_found_at_the_commit(new: bool) -> None:
    mutant = MUTANTS["C1b no offsets"]
    report = _explore(mutant, Rules(name=mutant.rules.name), new)
    assert report.complete
    assert not report.violation, "\n".join((report.violation, *report.trace))


def _explore(mutant: Mutant, rules: Rules, new: bool):  # type: ignore[no-untyped-def]
    sink = SINK if mutant.targets else Sink(SINK.prefix, SINK.decision)
    sink = replace(sink, last_epoch=mutant.max_epoch, part_bytes=mutant.part_bytes, two_phase=mutant.two_phase)
    limits = bounds(mutant.batches, mutant.faults, mutant.begin, mutant.split, mutant.queries, mutant.untouched)
    limits = replace(limits, copy=mutant.copy)
    cluster = Cluster(new=new, max_epoch=mutant.max_epoch, first_epoch=mutant.first_epoch)
    return Explorer(cluster, limits, rules, sink).run(recover_every=mutant.every)


@GENERATIONS
def test_attempts_that_share_an_id_may_tear_a_batch_but_lose_and_duplicate_nothing(new: bool) -> None:
    """A retried stage may have attempts with equal numbers. `names` selects when two of them share an id."""
    limits = replace(bounds(1, {"twin": 1}), torn=True)
    report = Explorer(Cluster(new=new), limits, Rules(name=without_task_attempt)).run(recover_every=1)
    print(f"{report}, {report.recoveries:,} recoveries")
    assert report.complete
    assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
def test_random_walks_with_many_faults_find_no_violation(new: bool) -> None:
    seed = int(os.environ.get("ONCELOG_SEED", "20261121"))
    number = 10_000 if EXPLORE_DEEP else 500
    for part_bytes in (SINK.part_bytes, IN_PARTS):
        explorer = Explorer(Cluster(new=new), Bounds(batches=2, faults=6), sink=replace(SINK, part_bytes=part_bytes))
        report = walk(explorer, seed, number)
        print(f"seed {seed}: {number:,} walks, {report}")
        assert not report.violation, "\n".join((f"seed {seed}", report.violation, *report.trace))


@GENERATIONS
@pytest.mark.parametrize(
    ("queries", "max_epoch"),
    [
        ((QUERY, SUCCESSOR), 1000),
        ((QUERY, SUCCESSOR_TAKER), 1000),
        ((APPLICATION,), 1000),
        ((MOVED,), 1000),
        ((QUERY, *WRITES), 1000),
        ((FOREACH_BATCH, WRITES[0]), 1000),
        ((QUERY,), 1),
    ],
    ids=["two queries", "takeOver", "txnVersion", "adoptCheckpoint", "writes without a name", "foreachBatch", "epochs"],
)
def test_random_walks_of_every_kind_find_no_violation(queries: tuple[Query, ...], max_epoch: int, new: bool) -> None:
    seed = int(os.environ.get("ONCELOG_SEED", "20261121"))
    number = 5_000 if EXPLORE_DEEP else 25
    cluster = Cluster(new=new, max_epoch=max_epoch, apart=True)
    limits = Bounds(batches=2, faults=6, queries=queries, split=2)
    report = walk(Explorer(cluster, limits, sink=replace(SINK, last_epoch=max_epoch)), seed, number)
    print(f"seed {seed}: {number:,} walks, {report}")
    assert not report.violation, "\n".join((f"seed {seed}", report.violation, *report.trace))
