"""The sink's protocol against every interleaving within bounds, and against itself with single rules taken out.

ONCELOG_EXPLORE=deep explores the bigger bounds as well (minutes; up to MOST_STATES each, which take about 3 GB).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from oncelog.spark.commit.steps import Sink
from spark.explorer.explorer import Explorer
from spark.explorer.kafka import Cluster
from spark.explorer.mutants import MUTANTS, NEEDLESS, Mutant
from spark.explorer.walks import walk
from spark.explorer.worlds import KINDS, SINK, Bounds, Rules

MOST_STATES = 3_000_000

GENERATIONS = pytest.mark.parametrize("new", [True, False], ids=["new protocol", "old protocol"])


def bounds(batches: int, faults: dict[str, int], begin: str = "", split: int = 0) -> Bounds:
    limits = {kind: faults.get(kind, 0) for kind in KINDS}
    return Bounds(batches, sum(faults.values()), limits, begin=begin, split=split)


QUICK: list[tuple[int, dict[str, int]]] = [
    (1, {"driver": 1}),
    (2, {"settle": 1}),
    (2, {"undo": 1}),
    (2, {"twin": 1}),
    (2, {"dup": 1}),
    (2, {"rewind": 1}),
    (2, {"lose": 2}),
    (2, {"kill": 1, "lose": 1}),
    (2, {"stage": 1, "timeout": 1}),
    (1, {"late": 1, "slow": 1}),
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
CHOSEN = QUICK + (DEEP if os.environ.get("ONCELOG_EXPLORE") == "deep" else [])


@GENERATIONS
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("batches", "faults"), CHOSEN, ids=lambda value: str(value))
def test_no_interleaving_loses_or_doubles_a_row(batches: int, faults: dict[str, int], new: bool) -> None:
    limits = replace(bounds(batches, faults), states=MOST_STATES)
    report = Explorer(Cluster(new=new), limits).run(recover_every=50)
    print(f"{batches} batches, {faults}: {report}, {report.recoveries:,} recoveries")
    assert report.complete or (batches, faults) in DEEP
    assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
@pytest.mark.parametrize("faults", [{"lose": 2, "deny": 1, "undo": 1}, {"slow": 2, "deny": 1, "undo": 1}], ids=str)
def test_a_batch_whose_end_is_unknown_is_not_taken_back(faults: dict[str, int], new: bool) -> None:
    report = Explorer(Cluster(new=new), bounds(1, faults, "commit")).run(recover_every=5)
    print(f"{faults}: {report}, {report.recoveries:,} recoveries")
    assert report.complete
    assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
def test_exhausted_epochs_change_the_producer_id_and_nothing_else(new: bool) -> None:
    report = Explorer(Cluster(new=new, max_epoch=1), bounds(2, {"dup": 1})).run(recover_every=50)
    print(report)
    assert report.complete
    assert not report.violation, "\n".join((report.violation, *report.trace))


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_missed_when_it_is_taken_out(name: str) -> None:
    mutant = MUTANTS[name]
    for new in mutant.generations:
        report = _explore(mutant, mutant.rules, new)
        print(f"{name}, {'new' if new else 'old'} protocol: {report}")
        assert report.violation


@pytest.mark.parametrize("name", NEEDLESS)
def test_some_rules_are_defence_only(name: str) -> None:
    mutant = NEEDLESS[name]
    for new in mutant.generations:
        report = _explore(mutant, mutant.rules, new)
        print(f"{name}, {'new' if new else 'old'} protocol: {report}")
        assert report.complete
        assert not report.violation, "\n".join((report.violation, *report.trace))


@GENERATIONS
def test_rows_left_by_a_lost_abort_marker_are_seen_at_the_commit(new: bool) -> None:
    mutant = MUTANTS["C1b no offsets"]
    report = _explore(mutant, Rules(name=mutant.rules.name), new)
    assert report.complete
    assert not report.violation, "\n".join((report.violation, *report.trace))


def _explore(mutant: Mutant, rules: Rules, new: bool):  # type: ignore[no-untyped-def]
    sink = SINK if mutant.targets else Sink(SINK.prefix, SINK.decision)
    limits = bounds(mutant.batches, mutant.faults, mutant.begin, mutant.split)
    return Explorer(Cluster(new=new), limits, rules, sink).run(recover_every=20 if mutant.recover else 0)


@GENERATIONS
def test_random_walks_with_many_faults_find_nothing(new: bool) -> None:
    seed = int(os.environ.get("ONCELOG_SEED", "20261121"))
    number = 20_000 if os.environ.get("ONCELOG_EXPLORE") == "deep" else 1_000
    explorer = Explorer(Cluster(new=new), Bounds(batches=2, faults=6))
    report = walk(explorer, seed, number)
    print(f"seed {seed}: {number:,} walks, {report}")
    assert not report.violation, "\n".join((f"seed {seed}", report.violation, *report.trace))
