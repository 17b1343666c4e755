"""Read a cluster turn by turn, within limits, for `oncelog top` and the traffic of brokers in the console.

A turn asks each broker for at most `Limits`, in requests about many keys. What is asked:

| Request | To | When |
|---|---|---|
| DescribeCluster | any broker | each turn |
| Metadata of all topics | any broker | each turn, but at most 500 partitions per second; also if a leader has moved |
| ListOffsets, twice (high watermark, last stable offset) | leaders | each turn |
| DescribeLogDirs, of the same partitions | leaders | each turn |
| DescribeProducers | leaders | if a last stable offset is below the high watermark |
| ListTransactions of open ones; DescribeTransactions | coordinators | each turn, at most 500 ids per second in lists |
| ListGroups | coordinators | each turn, but at most 500 groups per second |
| OffsetFetch | coordinators | each turn |

A broker that does not answer is a `Trouble` (`asking`); what it answered before stays in the picture.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

from oncelog.client.admin.hanging import all_coordinators
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import LEADER_MOVED, Topic
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.asking import ANSWER_WAIT_S, Asker
from oncelog.watch.readings import (
    OPEN_STATES,
    WITHOUT_OFFSETS,
    Ends,
    GroupReading,
    GroupReadings,
    Holder,
    PartitionReading,
    PartitionReadings,
    Picture,
    Requests,
    Trouble,
    WatchedBroker,
    WatchedGroup,
    WatchedTransaction,
)
from oncelog.watch.rows import distance, lag_of
from oncelog.watch.turns import LIVE, Limits, pick, seconds_until_next_list

SUBJECTS = ("topics", "groups", "transactions", "brokers")
COORDINATOR_MOVED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.GROUP_ID_NOT_FOUND}
)


class Reader:
    """Read a cluster through `cluster` (`oncelog.aio.Admin(...).cluster` is one). Call `turn()` again and again.

    `subjects` are some of `SUBJECTS`: the reader asks only for what they need. `clock` returns monotonic seconds,
    `wall` seconds since the epoch. Use it in the event loop of the client.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        subjects: Collection[str] = SUBJECTS,
        limits: Limits = LIVE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._wants = frozenset(subjects)
        self._limits = limits
        self._clock = clock
        self._wall = wall
        self._controller = -1
        self._cluster_id = ""
        self._brokers: dict[int, WatchedBroker] = {}
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[TopicPartition, PartitionReadings] = {}
        self._unanswered: dict[TopicPartition, str] = {}
        self._holders: dict[TopicPartition, Holder] = {}
        self._groups: dict[str, WatchedGroup] = {}
        self._group_readings: dict[str, GroupReadings] = {}
        self._committed: dict[str, dict[TopicPartition, int]] = {}
        self._transactions: dict[str, WatchedTransaction] = {}
        self._all_transactions_known = False
        self._listed_at = float("-inf")
        self._metadata_valid_until = self._groups_valid_until = self._transactions_valid_until = float("-inf")
        self._asker = Asker(cluster)

    async def turn(self) -> Picture:
        """Read within the limits, and return what is known now. Errors are in the picture's `troubles`."""
        before = self._counts()
        self._asker = Asker(self._cluster)
        reachable = await self._read_cluster()
        if reachable:
            await asyncio.gather(self._read_groups(), self._read_transactions())
            await self._read_partitions()
            await self._read_holders()
        after = self._counts()
        turn = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
        return Picture(
            at=self._clock(),
            time_ms=int(self._wall() * 1000),
            reachable=reachable,
            cluster_id=self._cluster_id,
            controller=self._controller,
            brokers=dict(self._brokers),
            topics=dict(self._topics),
            partitions=dict(self._partitions),
            unanswered=dict(self._unanswered),
            holders=dict(self._holders),
            groups=dict(self._groups),
            group_readings=dict(self._group_readings),
            transactions=tuple(self._transactions.values()),
            all_transactions_known=self._all_transactions_known,
            listed_at=self._listed_at,
            troubles=tuple(dict.fromkeys(self._asker.troubles)),
            requests=Requests(turn, sum(after.values())),
        )

    def _counts(self) -> dict[str, int]:
        """Return the number of requests that were answered since the start, by API."""
        return {name: each.request_total for name, each in self._cluster.metrics().requests.items()}

    # -- cluster ----------------------------------------------------------------------------------------------

    async def _read_cluster(self) -> bool:
        """Read brokers and, if it is time, all topics. Return whether a broker answered."""
        within_ms = ANSWER_WAIT_S * 1000
        call = self._cluster.call_any(DescribeClusterRequest(), timeout_ms=within_ms)
        found = await self._asker.ask("brokers", call)
        if found is None:
            return False
        if found.error_code:
            self._asker.troubles.append(Trouble("brokers", requests.failed(found.error_code).text))
            return True
        brokers = {b.broker_id: WatchedBroker(b.broker_id, b.host, b.port, b.rack) for b in found.brokers}
        if brokers.keys() != self._brokers.keys():
            self._metadata_valid_until = self._groups_valid_until = float("-inf")
            self._transactions_valid_until = float("-inf")
        self._brokers, self._controller, self._cluster_id = brokers, found.controller_id, found.cluster_id
        if self._clock() >= self._metadata_valid_until:
            await self._asker.ask("topics", self._read_topics())
        return True

    async def _read_topics(self) -> None:
        await self._cluster.refresh(None)
        self._topics = dict(self._cluster.topology.topics)
        count = sum(len(topic.partitions) for topic in self._topics.values())
        self._metadata_valid_until = self._clock() + seconds_until_next_list(count)
        self._partitions = {tp: each for tp, each in self._partitions.items() if self._exists(tp)}
        self._holders = {tp: each for tp, each in self._holders.items() if self._exists(tp)}

    def _exists(self, tp: TopicPartition) -> bool:
        topic = self._topics.get(tp[0])
        return topic is not None and tp[1] in topic.partitions

    # -- groups -----------------------------------------------------------------------------------------------

    async def _read_groups(self) -> None:
        if "groups" not in self._wants:
            return
        if self._clock() >= self._groups_valid_until:
            for node, listed in (await self._asker.each("groups", self._brokers, requests.groups)).items():
                self._groups = {name: each for name, each in self._groups.items() if each.coordinator != node}
                self._groups.update((group.group_id, group) for group in listed)
            self._groups_valid_until = self._clock() + seconds_until_next_list(len(self._groups))
            for name in [name for name in self._group_readings if name not in self._groups]:
                del self._group_readings[name]
        names = [name for name, group in self._groups.items() if group.type not in WITHOUT_OFFSETS]
        chosen = pick(names, self._group_read_at, self._is_group_urgent, self._limits.groups)
        places = {name: self._groups[name].coordinator for name in chosen}
        for name, answer in (await self._asker.by_node("groups", places, requests.committed)).items():
            if not isinstance(answer, requests.Failed):
                self._committed[name] = answer
            elif answer.code in COORDINATOR_MOVED:
                self._groups_valid_until = float("-inf")
            else:
                self._group_readings[name] = GroupReadings(GroupReading(self._clock(), None, None, answer.text))

    def _group_read_at(self, name: str) -> float | None:
        found = self._group_readings.get(name)
        return None if found is None else found.newest.at

    def _is_group_urgent(self, name: str) -> bool:
        found = self._group_readings.get(name)
        if found is None or found.newest.lag is None:
            return False
        return found.before is None or found.before.lag != found.newest.lag

    def _compute_lags(self) -> None:
        """Keep the lag of the groups that were read in this turn, and drop their offsets."""
        now = self._clock()
        for name, committed in self._committed.items():
            ends = {tp: self._partitions[tp].newest for tp in committed if tp in self._partitions}
            new = GroupReading(now, lag_of(committed, ends), len(committed))
            earlier = self._group_readings.get(name)
            self._group_readings[name] = GroupReadings(new, earlier and earlier.newest)
        self._committed = {}

    # -- transactions -----------------------------------------------------------------------------------------

    async def _read_transactions(self) -> None:
        if not self._wants & {"topics", "transactions"}:
            return
        if self._clock() >= self._transactions_valid_until:
            self._listed_at = self._clock()
            listed = await self._asker.each("transactions", self._brokers, _open_transactions)
            complete = bool(listed) and listed.keys() >= self._brokers.keys()
            if complete and self._holders:  # a later holder cannot be in these lists
                complete = await self._asker.ask("transactions", all_coordinators(self._cluster)) is not None
            self._all_transactions_known = complete
            known = self._transactions
            self._transactions = {
                name: item
                for name, item in known.items()
                if item.coordinator in self._brokers and item.coordinator not in listed
            }
            for item in (item for each in listed.values() for item in each):
                old = known.get(item.transactional_id)
                same = old is not None and old.producer_id == item.producer_id
                self._transactions[item.transactional_id] = (
                    old._replace(state=item.state, coordinator=item.coordinator) if old is not None and same else item
                )
            valid_s = seconds_until_next_list(len(self._transactions))
            self._transactions_valid_until = self._clock() + valid_s
        await self._describe_transactions()

    async def _describe_transactions(self) -> None:
        """Describe the new transactions, then the oldest: an id may have begun the next one meanwhile."""

        def order(item: WatchedTransaction) -> tuple[bool, int]:
            return item.started_ms is not None, item.started_ms or 0

        chosen = sorted(self._transactions.values(), key=order)[: self._limits.transactions]
        places = {item.transactional_id: item.coordinator for item in chosen}
        for name, item in (await self._asker.by_node("transactions", places, requests.described)).items():
            if isinstance(item, WatchedTransaction):
                if item.state not in OPEN_STATES:  # it has ended since the list
                    self._transactions.pop(name, None)
                else:
                    self._transactions[name] = item
            elif item.code in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR):
                self._transactions.pop(name, None)
            else:
                self._asker.troubles.append(Trouble("transactions", f"{name}: {item.text}"))

    # -- partitions -------------------------------------------------------------------------------------------

    async def _read_partitions(self) -> None:
        """Read offsets and sizes, of all topics or only of those that groups read."""
        of_groups = {tp for each in self._committed.values() for tp in each if self._exists(tp)}
        keys: Collection[TopicPartition] = of_groups
        if self._wants & {"topics", "transactions", "brokers"}:
            keys = [(name, index) for name, topic in self._topics.items() for index in topic.partitions]
        self._unanswered = {}
        places = {}
        for tp in pick(keys, self._read_at, lambda tp: self._is_urgent(tp, of_groups), self._limits.partitions):
            places[tp] = self._leader(tp)
            if places[tp] < 0:
                self._unanswered[tp] = "the partition has no leader"
        ends, sizes = await asyncio.gather(
            self._asker.by_node("topics", places, requests.ends), self._read_sizes(places)
        )
        self._keep(places, ends, sizes)
        self._compute_lags()

    def _leader(self, tp: TopicPartition) -> int:
        """Return the node id of a partition's leader, or a number below 0."""
        return self._topics[tp[0]].partitions[tp[1]].leader

    def _read_at(self, tp: TopicPartition) -> float | None:
        found = self._partitions.get(tp)
        return None if found is None else found.newest.at

    def _is_urgent(self, tp: TopicPartition, of_groups: Collection[TopicPartition]) -> bool:
        found = self._partitions.get(tp)
        if found is None or tp in of_groups:
            return tp in of_groups
        before = found.before
        return before is None or before.high_watermark != found.newest.high_watermark or distance(found.newest) > 0

    async def _read_sizes(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | requests.Failed]:
        if not self._wants & {"topics", "brokers"}:
            return {}
        return await self._asker.by_node("sizes", places, requests.sizes, alone=True)

    def _keep(
        self,
        places: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, Ends | requests.Failed],
        sizes: Mapping[TopicPartition, int | requests.Failed],
    ) -> None:
        """Keep what the leaders have answered, and why the other partitions have no new reading."""
        at = self._clock()
        reasons = {each.node: each.text for each in self._asker.troubles}
        for tp, node in places.items():
            answer, size = ends.get(tp), sizes.get(tp)
            if isinstance(answer, Ends):
                earlier = self._partitions.get(tp)
                new = PartitionReading(at, *answer, size if isinstance(size, int) else None)
                self._partitions[tp] = PartitionReadings(new, earlier and earlier.newest)
            elif node >= 0:
                silent = reasons.get(node, f"the response of broker {node} does not contain it")
                self._unanswered[tp] = silent if answer is None else answer.text
                if answer is None or answer.code in LEADER_MOVED:
                    self._metadata_valid_until = float("-inf")

    async def _read_holders(self) -> None:
        if not self._wants & {"topics", "transactions"}:
            return
        held = {tp: each.newest for tp, each in self._partitions.items() if distance(each.newest)}
        chosen = sorted(held, key=lambda tp: -distance(held[tp]))[: self._limits.holders]
        self._holders = {tp: each for tp, each in self._holders.items() if tp in held}
        found = await self._asker.by_node("producers", {tp: self._leader(tp) for tp in chosen}, requests.producers)
        before = {tp: self._holders.pop(tp, None) for tp in found}
        for tp, producers in self._asker.known("producers", found).items():
            for each in producers:
                if each.transaction_start == held[tp].last_stable_offset:
                    old = before[tp]
                    same = old is not None and old[:2] == (each.producer_id, each.producer_epoch)
                    since = old.since if old is not None and same else self._clock()
                    self._holders[tp] = Holder(each.producer_id, each.producer_epoch, each.last_timestamp, since)


async def _open_transactions(cluster: ClusterClient, node: int) -> list[WatchedTransaction]:
    return await requests.transactions(cluster, node, OPEN_STATES)
