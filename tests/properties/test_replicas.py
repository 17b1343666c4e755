"""Three replicas under random faults keep the invariants, and each mutation of the machines is caught by one.

`ReplicaWorld` has the invariants. Run one seed again with `ReplicaWorld(seed).run()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import oncelog.log.log_files
import oncelog.log.recovery
from oncelog.cluster.controller import reconcile
from oncelog.cluster.follower import Following, Signal, Truncate
from oncelog.cluster.leader import IsrProposal, Outcome, Term
from oncelog.cluster.store import ANY
from oncelog.log.epochs import LeaderEpochs
from oncelog.protocol.errors import ProtocolError
from support.replica_world import InvariantError, ReplicaWorld

SEEDS = 60
MOST_SEEDS = 1500


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_replicas_keep_the_invariants(first: int) -> None:
    worlds = [ReplicaWorld(seed) for seed in range(first, first + 20)]
    for world in worlds:
        try:
            world.run()
        except Exception as error:
            error.add_note(f"seed {world.seed}")
            raise
    faults = sum((world.faults for world in worlds), start=worlds[0].faults)
    assert sum(len(world.acknowledged) for world in worlds) > 20
    assert {"killed", "truncated", "power lost", "message lost", "session expired"} <= faults.keys()


Patch = Callable[[pytest.MonkeyPatch], None]


def high_watermark_is_log_end(patch: pytest.MonkeyPatch) -> None:
    def advance(term: Term) -> bool:
        followers, term._followers = term._followers, {}
        try:
            return original(term)
        finally:
            term._followers = followers

    original = Term._advance
    patch.setattr(Term, "_advance", advance)


def answer_before_replication(patch: pytest.MonkeyPatch) -> None:
    def produce(world: ReplicaWorld, process: Any) -> None:
        original(world, process)
        if process.term is not None:
            for _, _, wait in process.term._waits:
                wait.finish(Outcome.COMMITTED)

    original = ReplicaWorld.produce
    patch.setattr(ReplicaWorld, "produce", produce)


def no_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_truncate", lambda _self, _diverging: Signal.RETRY)


def divergence_unchecked(patch: pytest.MonkeyPatch) -> None:
    def check(term: Term, log: Any, **fetch: int) -> Any:
        return original(term, log, **{**fetch, "last_fetched_epoch": -1})

    original = Term.check_fetch
    patch.setattr(Term, "check_fetch", check)


def truncation_by_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def init(following: Following, leader: int, epoch: int, log: Any) -> None:
        original(following, leader, epoch, log)
        log.truncate_to(log.high_watermark, 0)

    original = Following.__init__
    patch.setattr(Following, "__init__", init)


def truncation_to_the_leaders_end(patch: pytest.MonkeyPatch) -> None:
    def truncate(following: Following, diverging: Any) -> Any:
        end = following._log.log_end_offset
        return Truncate(diverging.end_offset) if diverging.end_offset < end else Signal.RETRY

    patch.setattr(Following, "_truncate", truncate)


def joins_before_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def may_join(term: Term, follower: Any) -> bool:
        start, term.epoch_start = term.epoch_start, 0
        try:
            return original(term, follower)
        finally:
            term.epoch_start = start

    original = Term._may_join
    patch.setattr(Term, "_may_join", may_join)


def joining_unchecked(patch: pytest.MonkeyPatch) -> None:
    def write(world: ReplicaWorld, process: Any, incarnation: int, term: Term, proposal: IsrProposal) -> None:
        original(world, process, incarnation, term, proposal._replace(joining=()))

    original = ReplicaWorld.write_isr
    patch.setattr(ReplicaWorld, "write_isr", write)


def old_isr_does_not_count(patch: pytest.MonkeyPatch) -> None:
    def count(term: Term) -> None:
        term._maximal = term._pending or term.isr

    patch.setattr(Term, "_count", count)


def unknown_outcome_is_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Term, "unknown", Term.refused)


def diverging_fetch_counts(patch: pytest.MonkeyPatch) -> None:
    def check(term: Term, log: Any, **fetch: int) -> Any:
        diverging = original(term, log, **fetch)
        if diverging is not None:
            for follower in term._followers.values():
                if follower.log_end < fetch["offset"]:
                    follower.log_end = fetch["offset"]
        return diverging

    original = Term.check_fetch
    patch.setattr(Term, "check_fetch", check)


def fetch_epoch_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Term, "_check_epoch", lambda _self, _epoch: None)


def waits_outlive_their_term(patch: pytest.MonkeyPatch) -> None:
    def end(term: Term) -> None:
        term.over = True
        kept[term.broker] = term._waits

    def init(term: Term, broker: int, *arguments: Any, **options: Any) -> None:
        original(term, broker, *arguments, **options)
        term._waits = kept.pop(broker, [])

    kept: dict[int, Any] = {}
    original = Term.__init__
    patch.setattr(Term, "end", end)
    patch.setattr(Term, "__init__", init)


def any_replica_is_elected(patch: pytest.MonkeyPatch) -> None:
    def elected(view: Any, partition: Any) -> Any:
        return original(view, replace(partition, unclean=True))

    original = reconcile._elected
    patch.setattr(reconcile, "_elected", elected)


def restarted_leader_keeps_its_epoch(patch: pytest.MonkeyPatch) -> None:
    def next_state(view: Any, state: Any) -> Any:
        wanted = original(view, state)
        again = [broker.epoch for number, broker in view.brokers.items() if number == state.leader]
        return state if again and again[0] != state.leader_broker_epoch else wanted

    original = reconcile._next
    patch.setattr(reconcile, "_next", next_state)


def lost_data_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def live(world: ReplicaWorld) -> Any:
        return {number: replace(broker, lost_unsynced=False) for number, broker in original(world).items()}

    original = ReplicaWorld.live
    patch.setattr(ReplicaWorld, "live", live)


def producers_survive_truncation(patch: pytest.MonkeyPatch) -> None:
    def keep(state: Any, *arguments: Any, **_options: Any) -> None:
        state.end_offset = arguments[3]

    patch.setattr(oncelog.log.log_files, "rebuild_state", keep)


def producers_of_the_newest_snapshot(patch: pytest.MonkeyPatch) -> None:
    def rebuilding(*arguments: Any, high_watermark: int) -> Any:
        return original(*arguments, high_watermark=1 << 60)

    original = oncelog.log.recovery.rebuilding
    patch.setattr(oncelog.log.recovery, "rebuilding", rebuilding)


def epochs_survive_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "truncate_from_end", lambda _self, _end: None)


def epoch_is_not_incremented(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "_next", lambda _view, state: state)


def state_version_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def write(*arguments: Any) -> reconcile.Write:
        check, change, *rest = original(*arguments).operations
        return original(*arguments)._replace(operations=(check, replace(change, version=ANY), *rest))

    original = reconcile._write
    patch.setattr(reconcile, "_write", write)


class Mutation(NamedTuple):
    """A mutation, and the invariants that catch it."""

    patch: Patch
    invariants: tuple[int, ...]


MUTATIONS = [
    Mutation(high_watermark_is_log_end, (2, 4, 5)),
    Mutation(answer_before_replication, (5,)),
    Mutation(no_truncation, (12,)),
    Mutation(divergence_unchecked, (1,)),
    Mutation(truncation_by_high_watermark, (2, 5)),
    Mutation(truncation_to_the_leaders_end, (1, 12)),
    Mutation(joins_before_the_start_of_the_epoch, (2, 4, 5)),
    Mutation(joining_unchecked, (2,)),
    Mutation(old_isr_does_not_count, (2,)),
    Mutation(unknown_outcome_is_failure, (2,)),
    Mutation(diverging_fetch_counts, (2,)),
    Mutation(fetch_epoch_unchecked, (0, 1, 2)),
    Mutation(waits_outlive_their_term, (5,)),
    Mutation(any_replica_is_elected, (2,)),
    Mutation(restarted_leader_keeps_its_epoch, (3, 12)),
    Mutation(lost_data_is_ignored, (2,)),
    Mutation(producers_survive_truncation, (6,)),
    Mutation(producers_of_the_newest_snapshot, (7,)),
    Mutation(epochs_survive_truncation, (1, 12)),
    Mutation(epoch_is_not_incremented, (3, 12)),
    Mutation(state_version_is_ignored, (2, 3)),
]


def first_violation(seeds: int) -> tuple[int, int, str] | None:
    """Return the seed, the invariant (0 for another error) and the message of the first violation."""
    for seed in range(seeds):
        try:
            ReplicaWorld(seed).run()
        except InvariantError as error:
            return seed, error.number, str(error)
        except ProtocolError as error:
            return seed, 0, repr(error)
    return None
