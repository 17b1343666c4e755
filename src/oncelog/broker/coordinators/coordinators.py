"""Load, end and close the coordinators of groups and transactions, as the roles of their partitions change."""

from __future__ import annotations

from typing import Any

from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.coordinators.markers import MarkerWriter
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.workers import Workers
from oncelog.cluster.replica import Replica


class Coordinators:
    """The coordinators of both kinds."""

    def __init__(
        self, transactions: TransactionService, groups: GroupService, markers: MarkerWriter, workers: Workers
    ) -> None:
        self._transactions = transactions
        self._markers = markers
        self._groups = groups
        self._workers = workers
        self._terms: dict[str, CoordinatorTerms[Any]] = {
            shell.topic: shell.terms for shell in (groups.shell, transactions.shell)
        }

    async def load(self) -> None:
        """Load the coordinators of the partitions that this broker leads."""
        await self._transactions.load()
        await self._groups.shell.terms.load()

    def check_loaded(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if a coordinator of this broker is not loaded yet."""
        for terms in self._terms.values():
            terms.check_loaded()

    def term_ended(self, topic: str, partition: int) -> None:
        """Resign the coordinator of a partition that this broker no longer leads."""
        if topic in self._terms:
            self._terms[topic].resign(partition)

    def role_changed(self, replica: Replica) -> None:
        """Load the coordinator of a replica that leads now, under the epoch of its term."""
        if terms := self._terms.get(replica.topic):
            terms.role_changed(replica)

    def on_truncation_ended(self, replica: Replica) -> None:
        """Load the coordinator of a partition whose truncation has ended.

        Before that, this broker could not lead the partition.
        """
        if terms := self._terms.get(replica.topic):
            self._workers.spawn(terms.load_partition(replica.partition), "load a coordinator after a truncation")

    def close(self) -> None:
        """Append nothing from now on."""
        self._transactions.close()
        self._markers.close()
        self._groups.shell.terms.close()
