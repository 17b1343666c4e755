"""Ask the leaders of partitions where their readable records end, and which consumers read.

This broker answers for the partitions that it leads. The other leaders are asked at the same time, with ListOffsets
(see `requests.readers`). If a leader does not answer, its partitions have no ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from oncelog.broker.membership import Membership
from oncelog.broker.metrics.group_offsets import Client
from oncelog.broker.peers import Failure, Peers, Purpose
from oncelog.broker.requests.fetch_reads import READ_COMMITTED
from oncelog.broker.requests.readers import STEPS_A_TURN, Sessions, readable_ends, readers_of
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder, in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import NO_LEADER
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionReader,
    ReadableEnds,
)
from oncelog.protocol.topics import TopicPartition

TIMEOUT_MS = 3000
"""The maximum time for the answers of one leader."""
PARTITIONS_A_REQUEST = 1000
_LATEST = -1
_CONSUMER = -1


@dataclass(slots=True)
class Ends:
    """The answers of the leaders."""

    partitions: dict[TopicPartition, ReadableEnds] = field(default_factory=dict)
    levels: dict[Client, set[int]] = field(default_factory=dict)
    """The isolation levels with which each consumer reads. The leaders tell them only if they make a difference."""

    def add_readers(self, readers: Iterable[PartitionReader]) -> None:
        """Add the consumers of one broker."""
        for reader in readers:
            self.levels.setdefault((reader.client_id, reader.host), set()).add(reader.isolation_level)

    def all_read_committed(self, clients: Iterable[Client]) -> bool:
        """Return whether at least one of the clients reads, and all that read use `read_committed`."""
        found: set[int] = set()
        for client in clients:
            found |= self.levels.get(client, set())
        return found == {READ_COMMITTED}


class PartitionEnds:
    """Ask leaders."""

    def __init__(
        self,
        cache: MetadataCache,
        partitions: Partitions,
        membership: Membership,
        peers: Peers,
        sessions: Sessions,
    ) -> None:
        self._cache = cache
        self._partitions = partitions
        self._membership = membership
        self._peers = peers
        self._sessions = sessions

    async def of(self, wanted: Iterable[TopicPartition]) -> Ends:
        """Return the ends of the partitions whose leaders answer."""
        ends = Ends()
        mine, others = await in_turns(self._by_leader(wanted))
        asked = [self._ask(broker, named, ends) for broker, named in others.items()]
        await asyncio.gather(self._find(mine, ends), *asked)
        return ends

    def _by_leader(
        self, wanted: Iterable[TopicPartition]
    ) -> Steps[tuple[list[TopicPartition], dict[int, list[TopicPartition]]]]:
        """Return the partitions that this broker leads, and those of other leaders, by their ids."""
        mine: list[TopicPartition] = []
        others: dict[int, list[TopicPartition]] = {}
        image = self._cache.image
        for key in wanted:
            yield
            info = image.partition(*key)
            if info is None or info.leader == NO_LEADER:
                continue
            if info.leader == self._membership.node_id:
                mine.append(key)
            else:
                others.setdefault(info.leader, []).append(key)
        return mine, others

    async def _find(self, mine: list[TopicPartition], ends: Ends) -> None:
        """Find the ends of the partitions that this broker leads."""
        searches = Yielder(STEPS_A_TURN)
        for key in mine:
            replica = self._partitions.opened_replica(*key)
            if replica is None or replica.term is None:
                continue
            try:
                ends.partitions[key] = await readable_ends(replica, searches)
            except ProtocolError:  # the log was closed or has failed, which others report
                continue
        ends.add_readers(await in_turns(readers_of(self._sessions())))

    async def _ask(self, broker: int, named: list[TopicPartition], ends: Ends) -> None:
        """Ask another broker for the ends of the partitions that it leads."""
        for first in range(0, len(named), PARTITIONS_A_REQUEST):
            topics: dict[str, ListOffsetsTopic] = {}
            for topic, index in named[first : first + PARTITIONS_A_REQUEST]:
                asked = topics.get(topic) or topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[]))
                asked.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
            request = ListOffsetsRequest(
                replica_id=_CONSUMER, topics=list(topics.values()), timeout_ms=TIMEOUT_MS, readable_ends=True
            )
            answer = await self._peers.request(broker, Purpose.METRICS, request, ListOffsetsResponse, TIMEOUT_MS)
            if isinstance(answer, Failure):
                return
            yielder = Yielder()
            for found in answer.topics:
                for each in found.partitions:
                    await yielder.next()
                    if each.error_code == ErrorCode.NONE and each.readable is not None:
                        ends.partitions[found.name, each.partition_index] = each.readable
            ends.add_readers(answer.readers)
