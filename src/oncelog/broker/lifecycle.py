"""Start a broker and stop it. The order of the steps protects acknowledged records.

Each part orders its own steps: the member of the cluster, the network, the logs and the coordinators. `Lifecycle`
orders the parts. What a change of a role causes is in `coordinators/coordinators.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from oncelog.broker.coordinators.coordinators import Coordinators
from oncelog.broker.metadata.cluster_member import ClusterMember
from oncelog.broker.network import Network
from oncelog.broker.replication.in_sync import InSyncReplicas
from oncelog.broker.requests.dispatch import import_record_handlers
from oncelog.broker.storage.all_logs import AllLogs
from oncelog.broker.workers import Workers
from oncelog.protocol.topics import TopicPartition


class Lifecycle(NamedTuple):
    """The order of the steps of one broker's start and stop."""

    member: ClusterMember
    network: Network
    logs: AllLogs
    coordinators: Coordinators
    in_sync: InSyncReplicas
    workers: Workers

    async def start(self, prepare: Callable[[], Awaitable[None]] | None) -> None:
        """Enter the cluster, register, and accept requests. See `Broker.start`."""
        lost = await self.member.enter()
        endpoints = await self.network.bind()
        suspects = self.logs.suspects()
        await self.member.register(endpoints, lost, starting=bool(suspects))
        if prepare is not None:
            await prepare()
        await self.network.serve()
        self.in_sync.start()
        self.workers.spawn(self._warm_up(suspects), "open logs")
        self.logs.start_upkeep()

    async def _warm_up(self, suspects: Sequence[TopicPartition]) -> None:
        """Open the logs that this broker may have to lead, and say that it may be elected.

        Then load the coordinators, because clients wait for them. Open all other logs at the end.
        """
        await self.logs.open_suspects(suspects)
        await self.member.registration.opened()
        await self.coordinators.load()
        await self.logs.open_all(self.member.image)
        import_record_handlers()

    async def stop(self, *, together: bool) -> None:
        """Hand over the partitions, answer the requests in progress, and close all logs. See `Broker.stop`."""
        if together:
            self.member.controller.close()
            self.in_sync.close()
        elif self.network.is_bound:
            await self.member.hand_over()
        await self.network.close()
        await self.workers.close()
        await self.member.leave()
        self.coordinators.close()
        await self.logs.close(self.member.registration.note_at_stop)
