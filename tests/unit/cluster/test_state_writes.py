"""Many writes of states: one change if all are accepted, and each write has its own outcome otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image_nodes import prepare
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.state_writes import BATCH, StateWrite, state_write, write_states
from oncelog.cluster.store import BadVersionError, NoNodeError, Set, UnavailableError
from oncelog.cluster.topic_nodes import erase_topic, write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from support.failing_store import FailingStore

TOPIC = TopicInfo("t", UUID(int=1), (PartitionInfo((1, 2), PartitionState(1, 0, (1, 2))),) * 200)


class Counting(FailingStore):
    """A tree that counts the attempted changes, and is away from a certain one on."""

    attempts = 0
    away_after = 1000

    def __init__(self) -> None:
        super().__init__(before=self._attempt)

    def _attempt(self, _: object) -> None:
        self.attempts += 1
        if self.attempts > self.away_after:
            raise UnavailableError("away")


@pytest.fixture
def store() -> Counting:
    store = Counting()
    prepare(store)
    write_topic(ChangeLog(store), TOPIC)
    store.attempts = 0
    return store


def writes(count: int) -> list[StateWrite]:
    return [state_write("t", TOPIC.topic_id, index, PartitionState(1, 0, (1,), 0)) for index in range(count)]


def outdate(store: Counting, *indexes: int) -> None:
    for index in indexes:
        store.multi([Set(state_path("t", index), encode_state(PartitionState(2, 9, (2,), 0)))])
    store.attempts = 0


def outcomes(store: Counting, wanted: Sequence[StateWrite]) -> list[type[Exception] | None]:
    found = list(write_states(ChangeLog(store), wanted, session=None))
    assert [write for write, _ in found] == list(wanted)
    for index, (_, error) in enumerate(found):
        state = decode_state(store.get(state_path("t", index)))
        assert (state.isr == (1,)) is (error is None)
    return [None if error is None else type(error) for _, error in found]


def test_accepted_writes_need_few_changes(store: Counting) -> None:
    assert outcomes(store, writes(200)) == [None] * 200
    assert store.attempts == -(-200 // BATCH)


@pytest.mark.parametrize("outdated", [{0}, {63}, {20}, {5, 40}])
def test_outdated_write_does_not_stop_the_others_of_its_batch(store: Counting, outdated: set[int]) -> None:
    outdate(store, *outdated)
    found = outcomes(store, writes(BATCH))
    assert {index for index, error in enumerate(found) if error is BadVersionError} == outdated
    assert found.count(None) == BATCH - len(outdated)
    assert store.attempts <= 20 * len(outdated)


def test_writes_that_are_all_outdated_are_tried_little_more_than_once_each(store: Counting) -> None:
    outdate(store, *range(BATCH))
    assert set(outcomes(store, writes(BATCH))) == {BadVersionError}
    assert store.attempts <= BATCH + 6


def test_store_that_fails_ends_all_remaining_writes(store: Counting) -> None:
    store.away_after = 1
    assert outcomes(store, writes(200)) == [None] * BATCH + [UnavailableError] * (200 - BATCH)
    assert store.attempts == 2


def test_later_topic_of_the_same_name_is_not_written(store: Counting) -> None:
    erase_topic(ChangeLog(store), TOPIC)
    write_topic(ChangeLog(store), TopicInfo("t", UUID(int=2), TOPIC.partitions))
    assert outcomes(store, writes(2)) == [NoNodeError] * 2
