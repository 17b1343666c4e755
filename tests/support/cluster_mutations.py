"""Bugs in the brokers of a cluster, each put into the running code by a patch, and the worlds that find them.

`python -m support.cluster_mutations [SEEDS]`, in tests/, prints for each bug the violated invariant, and the first seed
that finds it. The bugs of the state machines are those of `replica_mutations`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from oncelog.broker.coordinators import marker_outbox
from oncelog.broker.coordinators import terms as coordinator_terms
from oncelog.broker.coordinators.record_batches import replay_batch
from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.handlers import delete_records
from oncelog.broker.metadata.registration import Registration
from oncelog.broker.replication import in_sync
from oncelog.broker.replication.fetchers import Replication, _Followed
from oncelog.broker.storage import log_cleaner
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.log_offsets import LogOffsetReader
from oncelog.broker.storage.roles import Roles
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.controller import reconcile
from oncelog.cluster.follower import Following
from oncelog.cluster.leader import Leadership
from oncelog.cluster.replica import Replica
from oncelog.cluster.state_writes import StateWrite
from oncelog.cluster.store import StoreError
from oncelog.coordinator.groups import commits
from oncelog.log import retention
from oncelog.log.cleaning.batches import CleanedTransactions
from oncelog.log.cleaning.offsets import OffsetMap
from oncelog.log.cleaning.plan import make_plan
from oncelog.log.log import Log
from oncelog.log.producer_state import ProducerEntry, ProducerState
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.records import BatchHeader
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support import replica_mutations as pure
from support.checked_patch import CheckedPatch, Patch, Patching, StalePatchError
from support.cluster_plans import expand
from support.cluster_world import run_plan
from support.replica_invariants import InvariantError


def answer_before_replication(patch: Patching) -> None:
    def when_committed(_replica: Replica, _offset: int, callback: Any, _term: Any = None) -> None:
        callback(ErrorCode.NONE)

    patch.setattr(Replica, "when_committed", when_committed)


def min_isr_is_one(patch: Patching) -> None:
    patch.setattr(Roles, "min_insync_replicas", lambda _self, _topic: 1)


def joining_unchecked(patch: Patching) -> None:
    def write(proposed: Any) -> StateWrite:
        return original(proposed._replace(proposal=proposed.proposal._replace(joining=())))

    original = in_sync._Proposed.write
    patch.setattr(in_sync._Proposed, "write", write)


def joins_at_the_high_watermark(patch: Patching) -> None:
    """A follower joins with all records before the leader's high watermark, which may be too low (KAFKA-7128).

    Two other rules would hide that: the high watermark counts a follower that has caught up but has not joined yet, and
    a follower joins only if it keeps up.
    """

    def may_join(term: Leadership, follower: Any) -> bool:
        return (
            follower.broker not in term.isr
            and term._is_eligible(follower)
            and bool(follower.log_end >= term.high_watermark)
        )

    def advance(term: Leadership) -> bool:
        live, term._live = term._live, {}
        try:
            return original(term)
        finally:
            term._live = live

    original = Leadership._advance
    patch.setattr(Leadership, "_may_join", may_join)
    patch.setattr(Leadership, "_advance", advance)


def joins_without_fetching(patch: Patching) -> None:
    def may_join(term: Leadership, follower: Any) -> bool:
        before, follower.fetched_ms = follower.fetched_ms, term._now_ms
        try:
            return original(term, follower)
        finally:
            follower.fetched_ms = before

    original = Leadership._may_join
    patch.setattr(Leadership, "_may_join", may_join)


def lost_data_is_ignored(patch: Patching) -> None:
    def states(self: LogDirectories) -> Any:
        return [each._replace(is_new=True) for each in original(self)]

    original = LogDirectories.states
    patch.setattr(LogDirectories, "states", states)


def registration_is_published_early(patch: Patching) -> None:
    """The image may show the registration before the broker knows its epoch. No renewal repeats what it has missed."""

    async def enter(self: Registration, info: Any, *, first: bool = False) -> None:
        self._own.info = await self._workers.write_store(self._register, info, first)

    async def repeat(self: Registration) -> None:
        if self._own.epoch >= 0:
            await self._forget_lost_logs()
            with suppress(StoreError):
                await self.update()

    patch.setattr(Registration, "_enter", enter)
    patch.setattr(Registration, "_repeat", repeat)


def controller_epoch_unchecked(patch: Patching) -> None:
    def write(*arguments: Any) -> StateWrite:
        found = original(*arguments)
        return found._replace(operations=found.operations[1:])

    original = reconcile._write
    patch.setattr(reconcile, "_write", write)


def session_unchecked(patch: Patching) -> None:
    def write(log: ChangeLog, operations: Any, *touched: str, session: int | None = None) -> None:
        del session
        original(log, operations, *touched)

    original = ChangeLog.write
    patch.setattr(ChangeLog, "write", write)


def restarted_process_leads_unelected(patch: Patching) -> None:
    patch.setattr(Roles, "_is_leader", lambda self, info: bool(info.leader == self.node_id))


def former_leader_is_followed(patch: Patching) -> None:
    """A follower still appends what a former leader sends, under the epoch in which it has led."""

    def role_changed(replication: Replication, replica: Replica) -> None:
        fetchers, replication._fetchers = replication._fetchers, {}
        original(replication, replica)
        replication._fetchers = fetchers | replication._fetchers

    original = Replication.role_changed
    patch.setattr(Replication, "role_changed", role_changed)
    patch.setattr(_Followed, "is_current", property(lambda self: self.replica.term is None))


def verifications_outlive_their_term(patch: Patching) -> None:
    patch.setattr(Log, "void_verifications", lambda _self: None)


def coordinator_outlives_its_term(patch: Patching) -> None:
    patch.setattr(CoordinatorTerms, "resign", lambda _self, _partition, _epoch=None: None)
    patch.setattr(CoordinatorTerms, "replica", _any_replica)


def _any_replica(terms: Any, term: Any) -> Any:
    return terms._partitions.get(terms.topic, term.partition)


def replies_of_lost_records_are_sent(patch: Patching) -> None:
    def deliver(shell: Any, _replica: Any, _term: Any, effects: Any) -> None:
        shell._deliver(effects)

    patch.setattr(CoordinatorShell, "_deliver_later", deliver)


def unsent_marker_counts_as_written(patch: Patching) -> None:
    def results(markers: Any, found: Any) -> Any:
        original(markers, found)
        return dict.fromkeys(markers.partitions, ErrorCode.NONE)

    original = marker_outbox._results
    patch.setattr(marker_outbox, "_results", results)


def retry_is_written_again(patch: Patching) -> None:
    patch.setattr(ProducerEntry, "find_duplicate", lambda _self, _header: None)


def truncation_keeps_producers(patch: Patching) -> None:
    def replace(state: ProducerState, rebuilt: ProducerState) -> None:
        state._verifications.clear()
        state.end_offset = rebuilt.end_offset

    patch.setattr(ProducerState, "replace", replace)


def sequences_start_anew(patch: Patching) -> None:
    """A new leader forgets the producers."""

    def lead(replica: Replica, *arguments: Any, **options: Any) -> Leadership:
        replica.log._state.entries.clear()
        return original(replica, *arguments, **options)

    original = Replica.lead
    patch.setattr(Replica, "lead", lead)


def dead_member_is_kept(patch: Patching) -> None:
    patch.setattr(Leadership, "_lags", lambda _self, _member: False)


def offline_leader_stays(patch: Patching) -> None:
    def wanted(view: Any, partition: Any, prefer: bool) -> Any:
        found = original(view, partition, prefer)
        return None if found is not None and partition.info.leader not in view.brokers else found

    original = reconcile._wanted
    patch.setattr(reconcile, "_wanted", wanted)


def elected_without_isr(patch: Patching) -> None:
    def elected(view: Any, partition: Any) -> Any:
        everyone = structs.replace(partition.info.state, isr=partition.info.replicas)
        return original(view, replace(partition, info=replace(partition.info, state=everyone)))

    original = reconcile._elected
    patch.setattr(reconcile, "_elected", elected)


def deletion_is_not_replicated(patch: Patching) -> None:
    """A follower ignores the start offset of the leader's log."""

    def received(following: Following, fetch: Any, response: Any) -> Any:
        return original(following, fetch, response._replace(log_start=0))

    original = Following.received
    patch.setattr(Following, "received", received)


def deletion_is_answered_at_once(patch: Patching) -> None:
    """DeleteRecords does not wait until the followers have deleted the records."""

    async def replicated(_replica: Any, _answer: Any, _timeout_ms: int, _ctx: Any) -> None:
        pass

    patch.setattr(delete_records, "_replicated", replicated)


def deletion_is_not_written(patch: Patching) -> None:
    """The start offsets of logs are not in the checkpoint, so a restart brings deleted records back."""

    def offsets(reader: LogOffsetReader, directory: Any) -> Any:
        found = yield from original(reader, directory)
        return found._replace(start_offsets={})

    original = LogOffsetReader.all
    patch.setattr(LogOffsetReader, "all", offsets)


def deletion_exceeds_the_offset(patch: Patching) -> None:
    """DeleteRecords deletes ten records more than it should."""

    def delete(image: Any, partitions: Any, topic: str, partition: int, offset: int) -> Replica:
        log = partitions.require(topic, partition).log
        return original(image, partitions, topic, partition, -1 if offset + 10 > log.high_watermark else offset + 10)

    original = delete_records._delete
    patch.setattr(delete_records, "_delete", delete)


def retention_keeps_nothing(patch: Patching) -> None:
    """Retention by size deletes all segments but the active one."""

    def retained_from(log: Log, _now_ms: int) -> int:
        limited = log.config.delete and log.config.retention_bytes >= 0
        return min(log.segments.active.base_offset, log.high_watermark) if limited else log.log_start_offset

    patch.setattr(retention, "retained_from", retained_from)


def undecided_records_are_compacted(patch: Patching) -> None:
    """Compaction does not stop at the last stable offset."""

    def plan(log: Log, checkpoint: int | None, now_ms: int) -> Any:
        found = make_plan(log, checkpoint, now_ms)
        active = log.segments.active.base_offset
        dirty = [each.size for each in log.segments if found.first_dirty <= each.base_offset < active]
        return found._replace(end=active, dirty_bytes=sum(dirty))

    patch.setattr(log_cleaner, "make_plan", plan)


def aborted_records_are_compacted_as_committed(patch: Patching) -> None:
    patch.setattr(CleanedTransactions, "is_aborted", lambda _self, _header: False)


def compaction_removes_the_last_value(patch: Patching) -> None:
    original = OffsetMap.get
    patch.setattr(OffsetMap, "get", lambda self, key: original(self, key) + 1)


def commit_is_answered_before_replication(patch: Patching) -> None:
    """The coordinator of groups answers as soon as a record is in its own log."""

    def deliver(shell: Any, replica: Any, term: Any, effects: Any) -> None:
        if shell.topic == CONSUMER_OFFSETS:
            shell._deliver(effects)
        else:
            original(shell, replica, term, effects)

    original = CoordinatorShell._deliver_later
    patch.setattr(CoordinatorShell, "_deliver_later", deliver)


def coordinator_loads_a_part(patch: Patching) -> None:
    """A new coordinator skips every fifth batch of its partition."""

    async def replay(shard: Any, decode_record: Any, header: BatchHeader, view: memoryview) -> None:
        if header.base_offset % 5:
            await replay_batch(shard, decode_record, header, view)

    patch.setattr(coordinator_terms, "replay_batch", replay)


def former_members_commit(patch: Patching) -> None:
    """The generation and the member of a commit are not checked."""
    patch.setattr(commits, "check_commit", lambda _group, _request, _version: None)


MUTATIONS: tuple[Patch, ...] = (
    answer_before_replication,
    pure.high_watermark_is_log_end,
    min_isr_is_one,
    pure.no_truncation,
    pure.divergence_unchecked,
    pure.truncation_by_high_watermark,
    pure.truncation_to_the_leaders_end,
    pure.diverging_fetch_counts,
    former_leader_is_followed,
    pure.waits_outlive_their_term,
    restarted_process_leads_unelected,
    joins_at_the_high_watermark,
    joining_unchecked,
    joins_without_fetching,
    pure.old_isr_does_not_count,
    pure.unknown_outcome_is_failure,
    pure.state_version_is_ignored,
    pure.replaced_process_counts,
    dead_member_is_kept,
    pure.any_replica_is_elected,
    elected_without_isr,
    pure.epoch_is_not_incremented,
    pure.restarted_leader_keeps_its_epoch,
    offline_leader_stays,
    lost_data_is_ignored,
    registration_is_published_early,
    controller_epoch_unchecked,
    session_unchecked,
    verifications_outlive_their_term,
    coordinator_outlives_its_term,
    replies_of_lost_records_are_sent,
    unsent_marker_counts_as_written,
    retry_is_written_again,
    truncation_keeps_producers,
    sequences_start_anew,
    deletion_is_not_replicated,
    deletion_is_answered_at_once,
    deletion_is_not_written,
    deletion_exceeds_the_offset,
    retention_keeps_nothing,
    undecided_records_are_compacted,
    aborted_records_are_compacted_as_committed,
    compaction_removes_the_last_value,
    commit_is_answered_before_replication,
    coordinator_loads_a_part,
    former_members_commit,
)


def violation(seed: int) -> str | None:
    """Run one world. Return the violated invariant, or the kind of another failure, or None."""
    try:
        run_plan(expand(seed))
    except InvariantError as error:
        return f"invariant {error.number}"
    except Exception as error:  # noqa: BLE001 - the failure may be of any kind
        return type(error).__name__
    return None


def first_found(mutation: Patch, seeds: range) -> tuple[int, str] | None:
    """Return the first seed that finds a bug, and what it finds. Raises StalePatchError if no world reaches the bug."""
    with pytest.MonkeyPatch.context() as patch:
        checked = CheckedPatch(patch)
        mutation(checked)
        found = next(_findings(seeds), None)
    if found is None and checked.unused:
        raise StalePatchError(f"{mutation.__name__}: no world has called {', '.join(checked.unused)}")
    return found


def _findings(seeds: range) -> Iterator[tuple[int, str]]:
    for seed in seeds:
        found = violation(seed)
        if found is not None:
            yield seed, found


def main(seeds: int, *names: str) -> int:
    """Print what finds each mutation, as a table. Return 1 if no world has called a mutation."""
    logging.disable()
    status = 0
    for mutation in MUTATIONS:
        if names and mutation.__name__ not in names:
            continue
        try:
            found = first_found(mutation, range(seeds))
        except StalePatchError as error:
            print(f"| {error} |", flush=True)
            status = 1
            continue
        seed, what = ("", f"not found by {seeds} seeds") if found is None else (found[0], found[1])
        print(f"| {mutation.__name__} | {what} | {seed} |", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
