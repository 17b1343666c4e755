"""The series of the coordinators of one broker: their groups, transactions and partitions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oncelog.broker.coordinators.groups import GroupService
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.durations import Durations
from oncelog.broker.metrics import catalog as names
from oncelog.broker.metrics.exposition import Lines, Metric, counted, single
from oncelog.coordinator.groups.classic.group import ClassicGroup
from oncelog.coordinator.groups.registry import GroupStatistics
from oncelog.coordinator.transactions.metadata import TransactionState

AGES_S = (0, 10, 60, 300, 900, 3600)
"""The ages of open transactions that are counted, in seconds."""
LOADS_S = 30
"""How long a load of a partition counts, in seconds, as in Kafka."""


@dataclass(frozen=True, slots=True)
class CoordinatorLines:
    """What the series are read from."""

    groups: GroupService
    transactions: TransactionService
    statistics: GroupStatistics
    now_ms: Callable[[], int]
    loop_time: Callable[[], float]
    """The event loop's clock, in seconds."""

    def lines(self) -> Lines[None]:
        """Yield all lines."""
        yield from self._groups()
        yield from self._transactions()

    def _groups(self) -> Lines[None]:
        states: Counter[str] = Counter()
        consumer_states = Counter(dict.fromkeys(("assigning", "empty", "reconciling", "stable"), 0))
        protocols: Counter[str] = Counter()
        offsets = 0
        terms = self.groups.shell.terms
        for _, shard in tuple(terms.shards()):
            for group_id in list(shard.groups):
                yield ""
                group = shard.groups.get(group_id)
                if group is None:
                    continue
                offsets += len(shard.offsets.committed(group_id))
                protocols[group.KIND] += 1
                if group.KIND == ClassicGroup.KIND:
                    states[group.listed().group_state] += 1
                else:
                    consumer_states[group.listed().group_state.lower()] += 1
        yield from counted(names.GROUPS, protocols)
        yield from single(names.OFFSETS, offsets)
        yield from single(names.CLASSIC_GROUPS, states.total())
        for state, metric in names.CLASSIC_GROUPS_BY_STATE.items():
            yield from single(metric, states[state])
        yield from counted(names.GROUPS_BY_STATE, states)
        yield from counted(names.CONSUMER_GROUPS, consumer_states)
        for attribute, metric in names.GROUP_COUNTS.items():
            yield from single(metric, getattr(self.statistics, attribute))
        yield from counted(names.GROUP_PARTITIONS, _states(terms))
        yield from self._loads(names.GROUP_LOADS, terms.loads)

    def _transactions(self) -> Lines[None]:
        ids: Counter[str] = Counter()
        open_s: list[float] = []
        now = self.now_ms()
        terms = self.transactions.shell.terms
        for _, coordinator in tuple(terms.shards()):
            for transaction in list(coordinator.transactions.values()):
                yield ""
                ids[transaction.state.text] += 1
                if transaction.state is TransactionState.ONGOING:
                    open_s.append(max(now - transaction.start_ms, 0) / 1000)
        yield from counted(names.TRANSACTIONS, ids)
        yield from single(names.OLDEST_TRANSACTION, max(open_s, default=0.0))
        yield names.OPEN_TRANSACTIONS.head()
        for seconds in AGES_S:
            yield names.OPEN_TRANSACTIONS.sample(sum(age >= seconds for age in open_s), (str(seconds),))
            yield None if len(open_s) > 1000 else ""
        yield from counted(names.TRANSACTION_PARTITIONS, _states(terms))
        yield from self._loads(names.TRANSACTION_LOADS, terms.loads)

    def _loads(self, metrics: Sequence[Metric], loads: Durations) -> Lines[None]:
        recent = loads.since(self.loop_time() - LOADS_S)
        average, longest = metrics
        yield from single(average, 1000 * sum(recent) / len(recent) if recent else math.nan)
        yield from single(longest, 1000 * max(recent) if recent else math.nan)


def _states(terms: CoordinatorTerms[Any]) -> Counter[str]:
    """Count the terms by the states of Kafka's coordinators."""
    counts = Counter(dict.fromkeys(("loading", "active", "failed"), 0))
    counts.update(terms.states())
    return counts
