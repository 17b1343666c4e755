"""Write changes of the in-sync replicas (ISR) that the terms of this broker propose.

Each write requires the topic's id, the version of the partition's state, and the registration of each new member
(KIP-841, KIP-903). So a leader that was replaced without knowing it changes nothing. One change of the tree has up to
`BATCH` writes, so a few syncs are enough to remove a dead follower from many ISRs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.membership import Membership
from oncelog.broker.retrying import STORE_RETRY_S
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.roles import steady_ms
from oncelog.broker.workers import Runtime
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.controller.isr_log import IsrChange, isr_summary
from oncelog.cluster.leader import IsrProposal, Leadership
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replica import Replica
from oncelog.cluster.state_writes import BATCH, REJECTED, StateWrite, isr_write, write_states
from oncelog.cluster.store import MetadataStore, OutcomeUnknownError, StoreError
from oncelog.cluster.topic_nodes import read_state

LEAST_CHECK_MS = 10
LOG_AFTER_S = 1.0
"""How long changes are collected for one line of the log."""


class _Proposed(NamedTuple):
    replica: Replica
    term: Leadership
    proposal: IsrProposal

    @property
    def is_superseded(self) -> bool:
        """Return whether the term has ended, or knows a later state than the proposal requires."""
        return self.term.over or self.term.state.version != self.proposal.state.version

    def write(self) -> StateWrite:
        """Return the write of the proposal."""
        replica = self.replica
        return isr_write(replica.topic, replica.topic_id, replica.partition, self.proposal)


class InSyncReplicas:
    """Propose the changes, and write them in batches, one after the other."""

    def __init__(
        self,
        store: MetadataStore,
        partitions: Partitions,
        membership: Membership,
        config: DynamicConfig,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._changes = ChangeLog(store)
        self._partitions = partitions
        self._config = config
        self._workers = runtime.workers
        self._membership = membership
        self._logger = runtime.logger
        self._proposed: deque[_Proposed] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._unlogged: list[IsrChange] = []
        self.shrinks = 0
        """The partitions from whose in-sync replicas this leader has removed a broker."""
        self.expands = 0
        """The partitions to whose in-sync replicas this leader has added a broker."""

    def start(self) -> None:
        """Look for followers that lag, and write the proposals, in the background."""
        self._workers.spawn(self._watch(), "in-sync replicas")
        self._workers.spawn(self._write_all(), "write in-sync replicas")

    def close(self) -> None:
        """Propose no more changes, and drop the proposals that are not being written."""
        self._closed = True
        self._proposed.clear()
        self._log_changes()

    def check(self, replica: Replica) -> None:
        """Write the replica's proposal in the background, if its term has one."""
        term = None if self._closed else replica.term
        proposal = None if term is None else term.proposal()
        if term is not None and proposal is not None:
            self._proposed.append(_Proposed(replica, term, proposal))
            self._wake.set()

    async def _watch(self) -> None:
        while True:
            lag_ms = self._config.static.replica_lag_time_max_ms
            await asyncio.sleep(max(lag_ms / 2, LEAST_CHECK_MS) / 1000)
            for replica in tuple(self._partitions.opened()):
                term = replica.term
                if term is not None and len(term.replicas) > 1:
                    try:
                        term.passed(steady_ms())
                        self.check(replica)
                    except Exception:
                        self._logger.exception("%r: cannot check the in-sync replicas", replica)
                    await asyncio.sleep(0)

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._proposed:
                batch = self._take()
                try:
                    await self._write(batch)
                except Exception:
                    self._logger.exception("cannot write in-sync replicas")
                    self._unknown(batch)
                    await asyncio.sleep(STORE_RETRY_S)
                await asyncio.sleep(0)

    def _unknown(self, batch: Sequence[_Proposed]) -> None:
        """Request new proposals for a batch whose writes have an unknown outcome."""
        for each in batch:
            if not each.is_superseded:
                each.term.unknown()
            self.check(each.replica)

    def _take(self) -> list[_Proposed]:
        """Remove up to `BATCH` proposals from the queue.

        Return the valid ones, and request new proposals for the others.
        """
        batch = []
        for _ in range(min(BATCH, len(self._proposed))):
            proposed = self._proposed.popleft()
            replica = proposed.replica
            live = self._partitions.roles.live(replica)
            if proposed.is_superseded:  # the image has shown a later state
                self.check(replica)
            elif any(live.get(broker) != epoch for broker, epoch in proposed.proposal.joining):  # it has died meanwhile
                proposed.term.refused()
                self._partitions.roles.brokers_changed(replica)
            else:
                batch.append(proposed)
        return batch

    async def _write(self, batch: Sequence[_Proposed]) -> None:
        """Write the proposals, and report the outcomes to the terms. If the store has failed, wait."""
        if not batch:
            return
        session, writes = self._membership.session, [each.write() for each in batch]
        before = [frozenset(each.term.isr) for each in batch]
        results = await self._workers.write_store(lambda: list(write_states(self._changes, writes, session=session)))
        unwritten, failed = [], False
        for each, isr, (write, error) in zip(batch, before, results, strict=True):
            if error is None:
                self._note(IsrChange(each.replica.name, isr, frozenset(write.state.isr)))
                if not each.term.over:  # the term may already know this state from the image
                    each.replica.state_written(replace(write.state, version=write.state.version + 1))
                self.check(each.replica)
                continue
            unwritten.append(each)
            obsolete = isinstance(error, REJECTED)  # expected when the controller elects leaders at the same time
            failed |= not obsolete
            level = logging.DEBUG if obsolete else logging.INFO
            text = "%r: the in-sync replicas %s were not written: %r"
            self._logger.log(level, text, each.replica, write.state.isr, error)
            if not each.is_superseded:  # otherwise, the term may already have another proposal
                if isinstance(error, OutcomeUnknownError):
                    each.term.unknown()
                else:
                    each.term.refused()
        if unwritten:
            newest = await self._workers.read_store(lambda: [self._newest(each.replica) for each in unwritten])
            for each, state in zip(unwritten, newest, strict=True):
                self._rejected(each, state)
        if failed:
            await asyncio.sleep(STORE_RETRY_S)

    def _note(self, change: IsrChange) -> None:
        if not self._unlogged and not self._closed:
            asyncio.get_running_loop().call_later(LOG_AFTER_S, self._log_changes)
        self._unlogged.append(change)
        self.shrinks += not change.before <= change.after
        self.expands += not change.after <= change.before

    def _log_changes(self) -> None:
        changes, self._unlogged = self._unlogged, []
        if changes:
            self._logger.info("the in-sync replicas have changed: %s", isr_summary(changes))

    def _rejected(self, proposed: _Proposed, newest: PartitionState | None) -> None:
        """Apply the stored state, then request a new proposal.

        If the stored state is not newer than the proposed one, wait `STORE_RETRY_S` first: by then, the image shows why
        the store rejected the write.
        """
        replica, term = proposed.replica, proposed.term
        if newest is not None and replica.term is term and not replica.state_written(newest):
            self._partitions.roles.end_term(replica)
            replica.state_version = max(replica.state_version, newest.version)
        if newest is not None and newest.version > proposed.proposal.state.version:
            self.check(replica)
        else:
            asyncio.get_running_loop().call_later(STORE_RETRY_S, self.check, replica)

    def _newest(self, replica: Replica) -> PartitionState | None:
        """Read the state of a partition, or return None if that fails. Blocks."""
        try:
            return read_state(self._store, replica.topic, replica.topic_id, replica.partition)
        except (StoreError, msgspec.MsgspecError, ValueError):
            return None
