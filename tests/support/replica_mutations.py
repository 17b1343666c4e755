"""Mutations of the state machines of replication: each reintroduces a bug, by patching one function.

Mutations of the log are in `tests/mutation/bugs.py`, because its modules may be compiled.

`SEEDS` has, for each mutation that random worlds catch, the first seed and the invariant. `python -m
support.replica_mutations 1000`, in tests/, finds them again after a change of `ReplicaWorld`.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from oncelog.cluster.controller import reconcile
from oncelog.cluster.follower import Following, Signal, Truncate
from oncelog.cluster.leader import IsrProposal, Leadership
from oncelog.cluster.state_writes import StateWrite
from oncelog.cluster.store import ANY, Set
from oncelog.cluster.waits import Outcome, Waits
from oncelog.protocol.errors import ProtocolError
from support.checked_patch import CheckedPatch, Patch, Patching
from support.replica_invariants import InvariantError
from support.replica_world import ReplicaWorld


def high_watermark_is_log_end(patch: Patching) -> None:
    def advance(term: Leadership) -> bool:
        followers, term._followers = term._followers, {}
        try:
            return original(term)
        finally:
            term._followers = followers

    original = Leadership._advance
    patch.setattr(Leadership, "_advance", advance)


def answer_before_replication(patch: Patching) -> None:
    def produce(world: ReplicaWorld, process: Any) -> None:
        original(world, process)
        if process.term is not None:
            for _, _, wait in process.term.waits._heap:
                wait.finish(Outcome.COMMITTED)

    original = ReplicaWorld.produce
    patch.setattr(ReplicaWorld, "produce", produce)


def no_truncation(patch: Patching) -> None:
    patch.setattr(Following, "_truncate", lambda _self, _diverging: Signal.RETRY)


def divergence_unchecked(patch: Patching) -> None:
    def check(term: Leadership, **fetch: int) -> Any:
        return original(term, **{**fetch, "last_fetched_epoch": -1})

    original = Leadership.check_fetch
    patch.setattr(Leadership, "check_fetch", check)


def truncation_by_high_watermark(patch: Patching) -> None:
    def init(following: Following, leader: int, epoch: int, log: Any) -> None:
        original(following, leader, epoch, log)
        log.truncate_to(log.high_watermark, 0)

    original = Following.__init__
    patch.setattr(Following, "__init__", init)


def truncation_to_the_leaders_end(patch: Patching) -> None:
    def truncate(following: Following, diverging: Any) -> Any:
        end = following._log.log_end_offset
        return Truncate(diverging.end_offset) if diverging.end_offset < end else Signal.RETRY

    patch.setattr(Following, "_truncate", truncate)


def joins_before_the_start_of_the_epoch(patch: Patching) -> None:
    def may_join(term: Leadership, follower: Any) -> bool:
        start, term.epoch_start = term.epoch_start, 0
        try:
            return original(term, follower)
        finally:
            term.epoch_start = start

    original = Leadership._may_join
    patch.setattr(Leadership, "_may_join", may_join)


def joining_unchecked(patch: Patching) -> None:
    def write(world: ReplicaWorld, process: Any, incarnation: int, term: Leadership, proposal: IsrProposal) -> None:
        original(world, process, incarnation, term, proposal._replace(joining=()))

    original = ReplicaWorld.write_isr
    patch.setattr(ReplicaWorld, "write_isr", write)


def old_isr_does_not_count(patch: Patching) -> None:
    def count(term: Leadership) -> None:
        term._maximal = term._pending or term.isr

    patch.setattr(Leadership, "_count", count)


def unknown_outcome_is_failure(patch: Patching) -> None:
    patch.setattr(Leadership, "unknown", Leadership.refused)


def diverging_fetch_counts(patch: Patching) -> None:
    def check(term: Leadership, **fetch: int) -> Any:
        diverging = original(term, **fetch)
        if diverging is not None:
            for follower in term._followers.values():
                if follower.log_end < fetch["offset"]:
                    follower.log_end = fetch["offset"]
        return diverging

    original = Leadership.check_fetch
    patch.setattr(Leadership, "check_fetch", check)


def fetch_epoch_unchecked(patch: Patching) -> None:
    patch.setattr(Leadership, "_check_epoch", lambda _self, _epoch: None)


def waits_outlive_their_term(patch: Patching) -> None:
    def end(term: Leadership) -> None:
        term.over = True
        kept[term.broker] = term.waits

    def init(term: Leadership, broker: int, *arguments: Any, **options: Any) -> None:
        original(term, broker, *arguments, **options)
        term.waits = kept.pop(broker, term.waits)

    kept: dict[int, Waits] = {}
    original = Leadership.__init__
    patch.setattr(Leadership, "end", end)
    patch.setattr(Leadership, "__init__", init)


def any_replica_is_elected(patch: Patching) -> None:
    def elected(view: Any, partition: Any) -> Any:
        return original(view, replace(partition, unclean=True))

    original = reconcile._elected
    patch.setattr(reconcile, "_elected", elected)


def restarted_leader_keeps_its_epoch(patch: Patching) -> None:
    def next_state(view: Any, state: Any) -> Any:
        wanted = original(view, state)
        again = [broker.epoch for number, broker in view.brokers.items() if number == state.leader]
        return state if again and again[0] != state.leader_broker_epoch else wanted

    original = reconcile._next
    patch.setattr(reconcile, "_next", next_state)


def lost_data_is_ignored(patch: Patching) -> None:
    def live(world: ReplicaWorld) -> Any:
        return {number: replace(broker, lost_unsynced=False) for number, broker in original(world).items()}

    original = ReplicaWorld.live
    patch.setattr(ReplicaWorld, "live", live)


def high_watermark_advances_under_min_isr(patch: Patching) -> None:
    def advance(term: Leadership) -> bool:
        least, state = term.min_insync_replicas, term.state
        term.min_insync_replicas, term.state = 1, structs.replace(state, elr=())
        try:
            return original(term)
        finally:
            term.min_insync_replicas, term.state = least, state

    original = Leadership._advance
    patch.setattr(Leadership, "_advance", advance)


def replaced_process_counts(patch: Patching) -> None:
    def fetched(term: Leadership, broker: int, broker_epoch: int, offset: int, **options: int) -> bool:
        return original(term, broker, max(broker_epoch, term._live.get(broker, -1)), offset, **options)

    def check_follower(term: Leadership, broker: int, broker_epoch: int) -> Any:
        return check(term, broker, max(broker_epoch, term._live.get(broker, -1)))

    original, check = Leadership.fetched, Leadership.check_follower
    patch.setattr(Leadership, "fetched", fetched)
    patch.setattr(Leadership, "check_follower", check_follower)


def epoch_is_not_incremented(patch: Patching) -> None:
    patch.setattr(reconcile, "_next", lambda _view, state: state)


def state_version_is_ignored(patch: Patching) -> None:
    def write(*arguments: Any) -> StateWrite:
        found = original(*arguments)
        *checks, change = found.operations
        assert isinstance(change, Set)
        return found._replace(operations=(*checks, replace(change, version=ANY)))

    original = reconcile._write
    patch.setattr(reconcile, "_write", write)


def violation(seed: int) -> int | None:
    """Run one world. Return the violated invariant, 0 for another error, or None."""
    try:
        ReplicaWorld(seed).run()
    except InvariantError as error:
        return error.number
    except ProtocolError:
        return 0
    return None


SEEDS: dict[Patch, tuple[int, int]] = {
    high_watermark_is_log_end: (2, 2),
    answer_before_replication: (2, 5),
    no_truncation: (2, 12),
    divergence_unchecked: (2, 1),
    truncation_by_high_watermark: (10, 2),
    truncation_to_the_leaders_end: (359, 12),
    old_isr_does_not_count: (96, 2),
    unknown_outcome_is_failure: (14654, 2),
    diverging_fetch_counts: (359, 2),
    fetch_epoch_unchecked: (5, 0),
    waits_outlive_their_term: (40, 5),
    any_replica_is_elected: (8, 2),
    restarted_leader_keeps_its_epoch: (1, 3),
    lost_data_is_ignored: (8, 2),
    epoch_is_not_incremented: (1, 3),
    high_watermark_advances_under_min_isr: (5, 2),
    state_version_is_ignored: (27, 12),
}
RARE = (joins_before_the_start_of_the_epoch, joining_unchecked, replaced_process_counts)
"""Mutations that random worlds catch rarely. A scenario of `test_replica_scenarios` catches each."""


def main(count: int) -> None:
    """Print the first seed that catches each mutation."""
    logging.disable()
    for mutation in (*SEEDS, *RARE):
        with pytest.MonkeyPatch.context() as patch:
            mutation(CheckedPatch(patch))
            found = ((seed, violation(seed)) for seed in range(count))
            print(mutation.__name__, next((pair for pair in found if pair[1] is not None), None), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
