"""Read a cluster turn by turn, within limits, for `oncelog top`.

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

A broker that does not answer within `ANSWER_WAIT_S` is a `Trouble`; what it answered before stays in the picture.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import LEADER_MOVED, Topic
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.readings import (
    OPEN_STATES,
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
from oncelog.watch.turns import LIVE, Limits, chunks, pick, seconds_until_next_list

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Ends = Mapping[TopicPartition, int | requests.Failed]

SUBJECTS = ("topics", "groups", "transactions", "brokers")
ANSWER_WAIT_S = 5.0
"""How long a turn waits for a broker."""
KEYS_A_REQUEST = 1_000
"""The most partitions or groups in one request."""
WITHOUT_OFFSETS = frozenset({"Share"})
"""Types of groups that have no committed offsets."""
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
        self._metadata_valid_until = self._groups_valid_until = self._transactions_valid_until = float("-inf")
        self._troubles: list[Trouble] = []

    async def turn(self) -> Picture:
        """Read within the limits, and return what is known now. Errors are in the picture's `troubles`."""
        before = self._counts()
        self._troubles = []
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
            troubles=tuple(dict.fromkeys(self._troubles)),
            requests=Requests(turn, sum(after.values())),
        )

    def _counts(self) -> dict[str, int]:
        """Return the number of requests that were answered since the start, by API."""
        return {name: each.request_total for name, each in self._cluster.metrics().requests.items()}

    def _trouble(self, about: str, error: errors.KafkaError, node: int | None = None) -> None:
        if not (node is not None and isinstance(error, errors.RetriableError)):
            node = None  # the broker did answer
        self._troubles.append(Trouble(about, f"{error.message.rstrip('.')} ({error.code.name})", node))

    async def _ask(self, about: str, awaited: Awaitable[T], node: int | None = None) -> T | None:
        """Return a response, or None after an error, which becomes a trouble."""
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                return await awaited
        except TimeoutError:
            who = "" if node is None else f" from broker {node}"
            error = errors.TimedOutError(f"no response{who} within {ANSWER_WAIT_S:g} s")
            self._trouble(about, error, node)
        except errors.KafkaError as error:
            self._trouble(about, error, node)
        return None

    async def _in_chunks(self, read: Callable[[int, list[K]], Awaitable[None]], node: int, keys: list[K]) -> None:
        """Send requests about a turn's keys to a broker, one after another."""
        for some in chunks(keys, KEYS_A_REQUEST):
            await read(node, some)

    # -- cluster ----------------------------------------------------------------------------------------------

    async def _read_cluster(self) -> bool:
        """Read brokers and, if it is time, all topics. Return whether a broker answered."""
        within_ms = ANSWER_WAIT_S * 1000
        found = await self._ask("brokers", self._cluster.call_any(DescribeClusterRequest(), timeout_ms=within_ms))
        if found is None:
            return False
        try:
            raise_for_error(found, "brokers")
        except errors.KafkaError as error:
            self._trouble("brokers", error)
            return True
        brokers = {b.broker_id: WatchedBroker(b.broker_id, b.host, b.port, b.rack) for b in found.brokers}
        if brokers.keys() != self._brokers.keys():
            self._metadata_valid_until = self._groups_valid_until = float("-inf")
            self._transactions_valid_until = float("-inf")
        self._brokers, self._controller, self._cluster_id = brokers, found.controller_id, found.cluster_id
        if self._clock() >= self._metadata_valid_until:
            await self._ask("topics", self._read_topics())
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
            await asyncio.gather(*map(self._list_groups, self._brokers))
            self._groups_valid_until = self._clock() + seconds_until_next_list(len(self._groups))
            for name in [name for name in self._group_readings if name not in self._groups]:
                del self._group_readings[name]
        names = [name for name, group in self._groups.items() if group.type not in WITHOUT_OFFSETS]
        chosen = pick(names, self._group_read_at, self._is_group_urgent, self._limits.groups)
        by_node: dict[int, list[str]] = {}
        for name in chosen:
            by_node.setdefault(self._groups[name].coordinator, []).append(name)
        await asyncio.gather(*(self._in_chunks(self._read_committed, node, mine) for node, mine in by_node.items()))

    async def _list_groups(self, node: int) -> None:
        listed = await self._ask("groups", requests.groups(self._cluster, node), node)
        if listed is None:
            return
        for name in [name for name, group in self._groups.items() if group.coordinator == node]:
            del self._groups[name]
        self._groups.update((group.group_id, group) for group in listed)

    def _group_read_at(self, name: str) -> float | None:
        found = self._group_readings.get(name)
        return None if found is None else found.newest.at

    def _is_group_urgent(self, name: str) -> bool:
        found = self._group_readings.get(name)
        if found is None or found.newest.lag is None:
            return False
        return found.before is None or found.before.lag != found.newest.lag

    async def _read_committed(self, node: int, names: list[str]) -> None:
        found = await self._ask("groups", requests.committed(self._cluster, node, names), node)
        for name, answer in (found or {}).items():
            if not isinstance(answer, requests.Failed):
                self._committed[name] = answer
            elif answer.code in COORDINATOR_MOVED:
                self._groups_valid_until = float("-inf")
            else:
                self._group_readings[name] = GroupReadings(GroupReading(self._clock(), None, None, answer.text))

    def _compute_lags(self) -> None:
        """Keep the lag of the groups that were read in this turn, and drop their offsets."""
        now = self._clock()
        for name, committed in self._committed.items():
            new = GroupReading(now, lag_of(committed, self._partitions), len(committed))
            earlier = self._group_readings.get(name)
            self._group_readings[name] = GroupReadings(new, earlier and earlier.newest)
        self._committed = {}

    # -- transactions -----------------------------------------------------------------------------------------

    async def _read_transactions(self) -> None:
        if not self._wants & {"topics", "transactions"}:
            return
        if self._clock() >= self._transactions_valid_until:
            listed = await asyncio.gather(*map(self._list_transactions, self._brokers))
            self._all_transactions_known = bool(listed) and all(each is not None for each in listed)
            silent = [node for node, each in zip(self._brokers, listed, strict=True) if each is None]
            kept = {name: item for name, item in self._transactions.items() if item.coordinator in silent}
            known = self._transactions
            self._transactions = kept
            for item in (item for each in listed if each is not None for item in each):
                old = known.get(item.transactional_id)
                same = old is not None and old.producer_id == item.producer_id
                self._transactions[item.transactional_id] = (
                    old._replace(state=item.state, coordinator=item.coordinator) if old is not None and same else item
                )
            valid_s = seconds_until_next_list(len(self._transactions))
            self._transactions_valid_until = self._clock() + valid_s
        await self._describe_transactions()

    async def _list_transactions(self, node: int) -> list[WatchedTransaction] | None:
        return await self._ask("transactions", requests.transactions(self._cluster, node), node)

    async def _describe_transactions(self) -> None:
        """Describe the new transactions, then the oldest: an id may have begun the next one meanwhile."""

        def order(item: WatchedTransaction) -> tuple[bool, int]:
            return item.started_ms is not None, item.started_ms or 0

        chosen = sorted(self._transactions.values(), key=order)[: self._limits.transactions]
        by_node: dict[int, list[str]] = {}
        for item in chosen:
            by_node.setdefault(item.coordinator, []).append(item.transactional_id)
        await asyncio.gather(*(self._describe(node, names) for node, names in by_node.items()))

    async def _describe(self, node: int, names: list[str]) -> None:
        found = await self._ask("transactions", requests.described(self._cluster, node, names), node)
        for name, item in (found or {}).items():
            if isinstance(item, WatchedTransaction):
                if item.state not in OPEN_STATES:  # it has ended since the list
                    self._transactions.pop(name, None)
                else:
                    self._transactions[name] = item
            elif item.code in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR):
                self._transactions.pop(name, None)
            else:
                self._troubles.append(Trouble("transactions", f"{name}: {item.text}"))

    # -- partitions -------------------------------------------------------------------------------------------

    async def _read_partitions(self) -> None:
        """Read offsets and sizes, of all topics or only of those that groups read."""
        if not self._wants & {"topics", "groups", "transactions"}:
            return
        of_groups = {tp for each in self._committed.values() for tp in each if self._exists(tp)}
        if self._wants & {"topics", "transactions"}:
            keys: Collection[TopicPartition] = [
                (name, index) for name, topic in self._topics.items() for index in topic.partitions
            ]
        else:
            keys = of_groups
        by_node: dict[int, list[TopicPartition]] = {}
        self._unanswered = {}
        for tp in pick(keys, self._read_at, lambda tp: self._is_urgent(tp, of_groups), self._limits.partitions):
            leader = self._topics[tp[0]].partitions[tp[1]].leader
            if leader >= 0:
                by_node.setdefault(leader, []).append(tp)
            else:
                self._unanswered[tp] = "the partition has no leader"
        await asyncio.gather(*(self._in_chunks(self._read_leader, node, mine) for node, mine in by_node.items()))
        self._compute_lags()

    def _read_at(self, tp: TopicPartition) -> float | None:
        found = self._partitions.get(tp)
        return None if found is None else found.newest.at

    def _is_urgent(self, tp: TopicPartition, of_groups: Collection[TopicPartition]) -> bool:
        found = self._partitions.get(tp)
        if found is None or tp in of_groups:
            return tp in of_groups
        before = found.before
        return before is None or before.high_watermark != found.newest.high_watermark or distance(found.newest) > 0

    async def _read_ends(self, node: int, mine: list[TopicPartition]) -> tuple[Ends | None, Ends | None, float]:
        """Read the high watermarks before the LSOs: so records that arrive meanwhile do not look uncommitted."""
        high = await self._ask("topics", requests.ends(self._cluster, node, mine, 0), node)
        at = self._clock()
        if high is None:
            return None, None, at
        return high, await self._ask("topics", requests.ends(self._cluster, node, mine, 1), node), at

    async def _read_sizes(self, node: int, mine: list[TopicPartition]) -> dict[TopicPartition, int]:
        if "topics" not in self._wants:
            return {}
        return await self._ask(f"sizes of broker {node}", requests.sizes(self._cluster, node, mine)) or {}

    async def _read_leader(self, node: int, mine: list[TopicPartition]) -> None:
        (high, stable, at), bytes_of = await asyncio.gather(self._read_ends(node, mine), self._read_sizes(node, mine))
        if high is None or stable is None:
            text = next((each.text for each in self._troubles if each.node == node), "no response")
            self._unanswered.update(dict.fromkeys(mine, text))
            self._metadata_valid_until = float("-inf")
            return
        for tp in mine:
            ends = high.get(tp, stable.get(tp)), stable.get(tp)
            failed = next((each for each in ends if isinstance(each, requests.Failed)), None)
            if isinstance(ends[0], int) and isinstance(ends[1], int):
                earlier = self._partitions.get(tp)
                new = PartitionReading(at, ends[0], ends[1], bytes_of.get(tp))
                self._partitions[tp] = PartitionReadings(new, earlier and earlier.newest)
                continue
            self._unanswered[tp] = failed.text if failed else f"the response of broker {node} does not contain it"
            if failed and failed.code in LEADER_MOVED:
                self._metadata_valid_until = float("-inf")

    async def _read_holders(self) -> None:
        if not self._wants & {"topics", "transactions"}:
            return
        held = {tp: each.newest for tp, each in self._partitions.items() if distance(each.newest)}
        chosen = sorted(held, key=lambda tp: -distance(held[tp]))[: self._limits.holders]
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in chosen:
            by_node.setdefault(self._topics[tp[0]].partitions[tp[1]].leader, []).append(tp)
        by_node.pop(-1, None)
        self._holders = {tp: each for tp, each in self._holders.items() if tp in held}
        asked = ((node, {tp: held[tp].last_stable_offset for tp in mine}) for node, mine in by_node.items())
        await asyncio.gather(*(self._read_producers(node, wanted) for node, wanted in asked))

    async def _read_producers(self, node: int, wanted: dict[TopicPartition, int]) -> None:
        answer = await self._ask("producers", requests.holders(self._cluster, node, wanted), node)
        if answer is None:
            return
        found, failed = answer
        for tp in wanted:
            self._holders.pop(tp, None)
        self._holders.update(found)
        self._troubles += _once_each("producers", failed.values())


def _once_each(about: str, failed: Iterable[requests.Failed]) -> list[Trouble]:
    """Return a trouble for each kind of error, because all partitions of a topic have the same."""
    return [Trouble(about, text) for text in dict.fromkeys(each.text for each in failed)]
