"""Match the regular expressions of consumer groups with all topics, away from the requests (KIP-848).

The coordinator says when to match which expressions. The broker looks for the topics, in turns with other work, and
reports them for each expression. Source: Kafka's `GroupMetadataManager.maybeUpdateRegularExpressions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.transition import Transitions
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.timers import Now

INTERVAL_MS = 1000
"""The shortest time between two matches of a group. In Kafka: 10 s."""
SHARE = 10
"""A match that takes long is followed by a pause of this many times its duration."""


class Matches:
    """The matches of all groups of one coordinator. Each group has at most one at a time."""

    def __init__(self, registry: Registry, transitions: Transitions) -> None:
        self._registry = registry
        self._transitions = transitions

    def begin(self, group_id: str, now: Now) -> frozenset[str]:
        """Return the regular expressions of a group that must be matched now, or none.

        The caller reports the topics of each by `found`, and then calls `end`.
        """
        group = self._registry.find(group_id, ConsumerGroup)
        if group is None or not group.pattern_users or group.matching.is_running:
            return frozenset()
        state = group.matching
        if now.steady_ms < state.next_ms:
            return frozenset()
        asked = frozenset(pattern for pattern in group.pattern_users if pattern not in group.patterns)
        if state.has_new_topics or now.steady_ms >= state.refresh_ms:
            asked = frozenset(group.pattern_users)
            state.has_new_topics = False
            state.refresh_ms = now.steady_ms + self._registry.config.consumer_regex_refresh_interval_ms
        if asked:
            state.is_running, state.began_ms = True, now.steady_ms
        return asked

    def found(self, group_id: str, pattern: str, names: Iterable[str], now: Now) -> Effects:
        """Note the topics that match a regular expression. The next heartbeats assign their partitions."""
        group = self._registry.find(group_id, ConsumerGroup)
        topics = frozenset(names)
        if group is None or pattern not in group.pattern_users or topics == group.patterns.get(pattern):
            return Effects()
        matched = {**group.patterns, pattern: topics}
        used = group.names.union(*(matched.get(each, frozenset()) for each in group.pattern_users))
        # A member that has changed its regular expression may still be assigned the topics of the former one.
        changed = bool(topics or group.patterns.get(pattern)) or any(group.targets.values())
        _, epoch = self._transitions.epoch_after(group, used, changed=changed)
        return Effects([records.pattern_record(group_id, pattern, topics, now.wall_ms), *epoch])

    def end(self, group_id: str, found: Mapping[str, Iterable[str]] | None, now: Now) -> None:
        """End a match with all topics that it has found. None: it has failed, and is repeated."""
        group = self._registry.find(group_id, ConsumerGroup)
        if group is None:
            return
        state = group.matching
        state.is_running = False
        state.next_ms = now.steady_ms + max(INTERVAL_MS, SHARE * (now.steady_ms - state.began_ms))
        if found is None or any(
            frozenset(names) != group.patterns.get(pattern)
            for pattern, names in found.items()
            if pattern in group.pattern_users
        ):
            state.has_new_topics = True  # it was not written: repeat it
