"""Features that only some worlds with three brokers have: deleted records, a compacted topic, members of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from oncelog.sim.world import World
from support.cluster_clients import Client, Producer, Routes
from support.cluster_compaction import Compaction
from support.cluster_deletions import TRIMMED, Deletions
from support.cluster_members import Team
from support.cluster_plans import MEMBERS, Membership, Put, Trim, Work
from support.cluster_watch import COMPACTED, DiskWatch

Check = Callable[[tuple[str, int], int, bytes], None]
"""Check an acknowledged record: its partition, offset and value."""


class Features:
    """Carry out the steps of a plan that belong to a feature. `own(producer_id, name)` records new producer ids."""

    def __init__(
        self,
        world: World,
        routes: Routes,
        disks: DiskWatch,
        outcomes: Counter[str],
        own: Callable[[int, str], None],
        check: Check,
    ) -> None:
        self.topics: dict[str, UUID] = {}
        """The topics with records that consumers read by offset."""
        self._world = world
        self._routes = routes
        self._own = own
        self._check = check
        self._deletions = Deletions(world, routes, disks, outcomes)
        self._compaction = Compaction(world, routes, disks, outcomes)
        self._team = Team(routes, outcomes)
        self._kinds: set[type[Work]] = set()

    async def create(self, workload: list[Work], retention_bytes: int) -> None:
        """Create the topics that the plan uses."""
        self._kinds = {type(work) for work in workload}
        if Trim in self._kinds:
            await self._deletions.create(retention_bytes)
            self.topics[TRIMMED] = self._deletions.topic_id
        if Put in self._kinds:
            await self._compaction.create()

    def tasks(self, workload: list[Work]) -> list[Coroutine[Any, Any, None]]:
        """Return the clients."""
        found: list[Coroutine[Any, Any, None]] = []
        if Trim in self._kinds:
            found.append(self._trim(workload))
        if Put in self._kinds:
            found.append(self._put(workload))
        if Membership in self._kinds:
            rng = self._world.stream
            found += [self._team.live(index, workload, rng(f"member {index}")) for index in range(MEMBERS)]
        return found

    def end(self) -> None:
        """Let the clients finish."""
        self._deletions.over = self._compaction.over = self._team.over = True

    async def finish(self) -> None:
        """Write once more, after the faults. Wait until nothing else writes."""
        if Trim in self._kinds:
            await self._deletions.write(await self._producer(TRIMMED, "last trimmed"), b"last", self._check)
        if Put in self._kinds:
            await self._compaction.finish()
        if Membership in self._kinds:
            await self._team.end()

    async def check(self, reader: Client, living: list[int]) -> None:
        """Check at the end what consumers see."""
        if Trim in self._kinds:
            await self._deletions.check()
        if Put in self._kinds:
            await self._compaction.check()
        if Membership in self._kinds:
            await self._team.check(reader, living)

    def check_disks(self, living: list[int]) -> None:
        """Check the disks after a clean stop."""
        for number in living:
            if Trim in self._kinds:
                self._deletions.check_start(number)
            if Put in self._kinds:
                self._compaction.check_disk(number)

    async def _producer(self, topic: str, name: str) -> Producer:
        topic_id = self._deletions.topic_id if topic == TRIMMED else self._compaction.topic_id
        producer = Producer(self._routes, topic_id, 0, self._world.stream(name), self._world.now_ms, topic)
        await producer.start()
        self._own(producer.producer_id, name)
        return producer

    async def _trim(self, workload: list[Work]) -> None:
        await self._deletions.run(workload, await self._producer(TRIMMED, "trimmed"), self._check)

    async def _put(self, workload: list[Work]) -> None:
        await self._compaction.run(workload, await self._producer(COMPACTED, "compacted"))
