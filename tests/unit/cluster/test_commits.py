"""One request waits for its records in several partitions: one call with the error of each."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from oncelog.cluster.commits import Commits
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replica import Replica
from oncelog.cluster.waits import WAITS_A_PART
from oncelog.protocol.errors import ErrorCode
from support.logs import NOW, batch, new_log


def appended(isr: tuple[int, ...] = (1, 2)) -> Replica:
    """Return a replica whose leader has just appended a record."""
    replica = Replica("t", 0, UUID(int=1), new_log()[1])
    replica.lead(1, [1, 2], PartitionState(1, 0, isr, 4))
    replica.append(memoryview(batch()), now_ms=NOW)
    return replica


def fetch(replica: Replica) -> None:
    assert replica.term is not None
    replica.term.fetched(2, 0, 1, log_start=0, now_ms=0)


def test_each_partition_has_its_error() -> None:
    first, second, third = (appended() for _ in range(3))
    found: list[list[ErrorCode]] = []
    commits = Commits(4, found.append)
    for replica in (first, second, third):
        commits.add(replica, 0, replica.term)
    commits.add(first, 0, stored=True)
    second.fail()
    third.follow(2, PartitionState(2, 1, (1, 2), 5))
    assert found == []
    fetch(first)
    assert found == [[ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]]


def test_partitions_that_are_committed_already_need_no_wait() -> None:
    found: list[list[ErrorCode]] = []
    Commits(1, found.append).add(appended((1,)), 0)
    Commits(0, found.append)
    assert found == [[ErrorCode.NONE], []]


def test_what_is_given_up_has_timed_out_and_ends_in_parts() -> None:
    replica = appended()
    found: list[list[ErrorCode]] = []
    later: list[Callable[[], None]] = []
    commits = Commits(WAITS_A_PART + 1, found.append)
    for _ in range(WAITS_A_PART + 1):
        commits.add(replica, 0)
    commits.give_up()
    assert found == [[ErrorCode.REQUEST_TIMED_OUT] * (WAITS_A_PART + 1)]
    commits.close(later.append)
    assert replica.term is not None
    (rest,) = later
    rest()
    assert len(replica.term.waits) == 0
    fetch(replica)
    assert len(found) == 1


def test_request_that_ends_early_is_not_called() -> None:
    replica = appended()
    found: list[list[ErrorCode]] = []
    commits = Commits(1, found.append)
    commits.add(replica, 0)
    commits.close(list)
    fetch(replica)
    assert found == []
