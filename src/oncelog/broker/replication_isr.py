"""Write changes of the in-sync replicas (ISR) that the terms of this broker propose.

Each change requires the topic's id, the version of the partition's state, and the registration of each new member
(KIP-841, KIP-903). So a leader that was replaced, or that does not know it, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.roles import steady_ms
from oncelog.broker.workers import Workers
from oncelog.cluster.brokers import broker_path, epoch_path
from oncelog.cluster.changes import RETRY_S, ChangeLog
from oncelog.cluster.leader import IsrProposal, Term
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replica import Replica
from oncelog.cluster.state_writes import state_write
from oncelog.cluster.store import ANY, Check, MetadataStore, Operation, OutcomeUnknownError, StoreError
from oncelog.cluster.topic_nodes import read_state

LEAST_CHECK_MS = 10


class InSyncReplicas:
    """Propose and write the changes, one at a time."""

    def __init__(
        self,
        store: MetadataStore,
        partitions: Partitions,
        config: DynamicConfig,
        workers: Workers,
        *,
        session: Callable[[], int],
        logger: logging.Logger,
    ) -> None:
        """`session` returns this broker's session, without which nothing is written."""
        self._store = store
        self._changes = ChangeLog(store)
        self._partitions = partitions
        self._config = config
        self._workers = workers
        self._session = session
        self._logger = logger
        self._writes: deque[tuple[Replica, Term, IsrProposal]] = deque()
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Look for followers that lag, and write the proposals, in the background."""
        self._workers.spawn(self._watch(), "in-sync replicas")
        self._workers.spawn(self._write_all(), "write in-sync replicas")

    def check(self, replica: Replica) -> None:
        """Write the replica's proposal in the background, if its term has one."""
        term = replica.term
        proposal = None if term is None else term.proposal()
        if term is not None and proposal is not None:
            self._writes.append((replica, term, proposal))
            self._wake.set()

    async def _watch(self) -> None:
        while True:
            lag_ms = self._config.static.replica_lag_time_max_ms
            await asyncio.sleep(max(lag_ms / 2, LEAST_CHECK_MS) / 1000)
            for replica in tuple(self._partitions.opened()):
                term = replica.term
                if term is not None and len(term.replicas) > 1:
                    term.passed(steady_ms())
                    self.check(replica)
                    await asyncio.sleep(0)

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._writes:
                replica, term, proposal = self._writes.popleft()
                if term.over:
                    continue
                if term.state.version == proposal.state.version:  # otherwise, the image has shown a later state
                    live = self._partitions.roles.live(replica)
                    if any(live.get(broker) != epoch for broker, epoch in proposal.joining):  # it has died meanwhile
                        term.refused()
                        await asyncio.sleep(0)
                    elif not await self._write(replica, term, proposal):
                        await asyncio.sleep(RETRY_S)
                self.check(replica)

    async def _write(self, replica: Replica, term: Term, proposal: IsrProposal) -> bool:
        """Write a proposal, and report the outcome to the term. Return False if the caller must pause."""
        state = proposal.state
        required: list[Operation] = []
        for broker, epoch in proposal.joining:
            required += [Check(broker_path(broker), ANY), Check(epoch_path(broker), epoch)]
        write = state_write(replica.topic, replica.topic_id, replica.partition, state, *required)
        session = self._session()
        try:
            await self._workers.offload(lambda: self._changes.write(write.operations, write.path, session=session))
        except OutcomeUnknownError:
            if term.state.version == state.version:
                term.unknown()
        except StoreError as error:
            self._logger.info("%r: the in-sync replicas %s were not written: %r", replica, state.isr, error)
            if term.state.version == state.version:  # otherwise, the term may already have another proposal
                term.refused()
        else:
            self._logger.info("%r: the in-sync replicas are now %s", replica, state.isr)
            if not term.over:  # the image may have told the term already
                term.learned(replace(state, version=state.version + 1))
            return True
        try:
            newest: PartitionState = await self._workers.offload(
                read_state, self._store, replica.topic, replica.topic_id, replica.partition
            )
        except (StoreError, msgspec.MsgspecError):
            return False
        if replica.term is term and not term.learned(newest):
            self._partitions.roles.end_term(replica)
            replica.state_version = max(replica.state_version, newest.version)
        return newest.version > state.version
