"""The states of a classic group and which may follow which (Kafka's `ClassicGroupState`)."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """A state; its value is the name that ListGroups and DescribeGroups give."""

    EMPTY = "Empty"
    """No members; there may be offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting until every member has sent JoinGroup."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member has, or can fetch, its assignment."""
    DEAD = "Dead"
    """Deleted."""


_S = GroupState

PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
    _S.PREPARING_REBALANCE: frozenset({_S.STABLE, _S.COMPLETING_REBALANCE, _S.EMPTY}),
    _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
    _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
    _S.DEAD: frozenset(_S),
}
"""From which states each state may be entered."""


class IllegalTransitionError(RuntimeError):
    """A bug: the group was about to go where its state does not lead."""


def check_transition(group_id: str, old: GroupState, new: GroupState) -> None:
    """Raises IllegalTransitionError unless `new` may follow `old`."""
    if old not in PREVIOUS[new]:
        raise IllegalTransitionError(f"group {group_id} cannot go from {old.value} to {new.value}")
