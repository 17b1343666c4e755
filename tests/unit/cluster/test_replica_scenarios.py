"""Known ways to lose records: each scenario step by step, with real logs, terms, followers, tree and controller."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from oncelog.cluster.partition_state import encode_state
from oncelog.cluster.waits import Outcome
from oncelog.protocol.errors import ErrorCode
from support.checked_patch import CheckedPatch, Patch, can_be_patched
from support.logs import NOW, batch, values
from support.replica_mutations import (
    joining_unchecked,
    joins_before_the_start_of_the_epoch,
    replaced_process_counts,
)
from support.replica_world import MAX_LAG_MS, STATE, ReplicaWorld


class Cluster(ReplicaWorld):
    """Three replicas that do only what a test says."""

    def __init__(self) -> None:
        super().__init__(1)
        self.refresh()

    def refresh(self, *numbers: int) -> None:
        """Let the controller write, then let the living brokers read the metadata."""
        self.control()
        self.deliver()
        for number in numbers or (1, 2, 3):
            if self.processes[number].alive:
                self.read_metadata(self.processes[number])

    def put(self, value: bytes, leader: int, found: list[Outcome] | None = None) -> None:
        """Append a record at a leader, with acks=all if `found` is given."""
        process = self.processes[leader]
        assert process.term is not None
        log = process.open_log
        log.append_as_leader(batch(value=value), leader_epoch=process.term.leader_epoch, now_ms=NOW)
        process.term.appended()
        if found is not None:
            process.term.waits.add(log.log_end_offset - 1, found.append)

    def copy(self, *followers: int, rounds: int = 3) -> None:
        """Let followers fetch until they have everything, and know the high watermark."""
        for _ in range(rounds):
            for number in followers:
                self.fetch(self.processes[number])
            self.deliver()

    def change_isr(self, leader: int) -> None:
        self.propose(self.processes[leader])
        self.deliver()

    def lag(self, *followers: int) -> None:
        """Let followers leave the ISR, because they do not fetch."""
        self.now += MAX_LAG_MS - 1
        self.copy(*{1, 2, 3} - {*followers, self.state().leader}, rounds=1)
        self.now += 2
        self.change_isr(self.state().leader)

    def stop(self, number: int) -> None:
        self.kill(number)
        self.expire(number)

    def elect(self, number: int) -> None:
        """Let another member of the ISR lead."""
        state, epoch = self.state(), self.processes[number].epoch
        state = replace(state, leader=number, leader_epoch=state.leader_epoch + 1, leader_broker_epoch=epoch)
        self.tree.set(STATE, encode_state(state))
        self.refresh()

    def found(self, number: int) -> list[bytes]:
        log = self.processes[number].open_log
        return values(log, upto=log.log_end_offset)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    world = Cluster()
    monkeypatch.setattr(world.rng, "random", lambda: 0.5)
    monkeypatch.setattr(world.rng, "choice", max)
    return world


def test_hw_lost_on_restart(cluster: Cluster) -> None:
    """A follower that restarts before it knows the high watermark keeps its records (KIP-101)."""
    acknowledged: list[Outcome] = []
    cluster.put(b"a", 1, acknowledged)
    cluster.copy(2, 3, rounds=2)
    assert acknowledged == [Outcome.COMMITTED]
    assert cluster.processes[2].open_log.high_watermark == 0
    cluster.stop(2)
    cluster.start(2)
    cluster.refresh(2)
    cluster.copy(2)
    cluster.stop(1)
    cluster.refresh()
    assert (cluster.state().leader, cluster.found(2)) == (2, [b"a"])


def test_lagging_hw_join(cluster: Cluster) -> None:
    """A replica joins the ISR of a new leader only with all records before the new epoch (KAFKA-7128)."""
    cluster.put(b"a", 1)
    cluster.copy(2, 3)
    cluster.put(b"b", 1)
    cluster.copy(2, rounds=1)
    cluster.elect(2)
    new = cluster.processes[2]
    assert new.term is not None
    assert (new.term.high_watermark, new.term.epoch_start) == (1, 2)
    cluster.stop(3)
    cluster.refresh()
    cluster.change_isr(2)
    assert set(cluster.state().isr) == {1, 2}
    cluster.start(3)
    cluster.refresh()
    new.term.fetched(3, cluster.processes[3].epoch, 1, log_start=0, now_ms=cluster.now)
    cluster.change_isr(2)
    assert set(cluster.state().isr) == {1, 2}
    cluster.copy(3)
    cluster.change_isr(2)
    assert set(cluster.state().isr) == {1, 2, 3}


def test_bounced_disk(cluster: Cluster) -> None:
    """A replica that lost its disk while it was added to the ISR is not added (KIP-903, KAFKA-14617)."""
    cluster.lag(3)
    cluster.copy(3)
    cluster.propose(cluster.processes[1])
    (write,) = [message for _, message in cluster.messages]
    cluster.messages.clear()
    cluster.stop(3)
    cluster.start(3)
    write()
    assert set(cluster.state().isr) == {1, 2}


def test_fetch_from_the_dead(cluster: Cluster) -> None:
    """A fetch that a process sent before it was replaced does not count (KAFKA-15221)."""
    cluster.put(b"a", 1)
    cluster.copy(2, rounds=1)
    cluster.fetch(cluster.processes[2])
    cluster.processes[2].lost_unsynced = True
    cluster.stop(2)
    cluster.start(2)
    cluster.read_metadata(cluster.processes[1])
    leader = cluster.processes[1].term
    assert leader is not None
    cluster.deliver()
    follower = leader.follower(2)
    assert follower is not None
    assert follower.log_end == 0


def test_same_leader_new_epoch(cluster: Cluster) -> None:
    """A leader that restarts leads a new epoch, and its followers drop what it has lost (KAFKA-7164)."""
    cluster.put(b"a", 1)
    cluster.copy(2, 3)
    cluster.processes[1].flush()
    cluster.put(b"lost", 1)
    cluster.lag(2, 3)
    assert cluster.state().isr == (1,)
    cluster.copy(2, rounds=1)
    cluster.processes[1].disk.crash(lambda low, _high: low)
    cluster.kill(1)
    cluster.start(1)
    cluster.refresh()
    assert (cluster.state().leader, cluster.state().leader_epoch) == (1, 2)
    cluster.put(b"b", 1)
    cluster.copy(2, 3, rounds=5)
    assert cluster.found(1) == cluster.found(2) == cluster.found(3) == [b"a", b"b"]


def test_zombie_leader(cluster: Cluster) -> None:
    """A leader that is cut off from the tree only commits nothing after an election (KAFKA-2729, KAFKA-6880)."""
    outcomes: list[Outcome] = []
    cluster.expire(1)
    cluster.refresh(2, 3)
    assert cluster.state().leader == 2
    cluster.put(b"zombie", 1, outcomes)
    cluster.copy(3)
    cluster.now += 3 * MAX_LAG_MS
    cluster.change_isr(1)
    assert (cluster.processes[1].open_log.high_watermark, outcomes) == (0, [])
    cluster.put(b"new", 2)
    cluster.read_metadata(cluster.processes[1])
    assert outcomes == [Outcome.LOST]
    cluster.refresh()
    cluster.copy(1, 3, rounds=5)
    assert cluster.found(1) == cluster.found(3) == [b"new"]


def test_coordinator_term(cluster: Cluster) -> None:
    """A wait ends with its term, although another record gets the offset and is committed (KAFKA-20634)."""
    outcomes: list[Outcome] = []
    cluster.put(b"old", 1, outcomes)
    cluster.expire(1)
    cluster.refresh(2, 3)
    cluster.put(b"new", 2)
    cluster.refresh()
    cluster.copy(1, 3, rounds=5)
    assert cluster.found(1) == [b"new"]
    assert cluster.processes[1].open_log.high_watermark == 1
    assert outcomes == [Outcome.LOST]


@pytest.mark.parametrize(("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (9, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_diverging_fetch_counts_not(cluster: Cluster, epoch: int, code: ErrorCode) -> None:
    """A fetch that fails or diverges says nothing about the follower's log (KAFKA-13141)."""
    cluster.put(b"a", 1)
    leader = cluster.processes[1]
    assert leader.term is not None
    asked = cluster.processes[2].following
    assert asked is not None
    fetch = asked.next_fetch(0)
    assert fetch is not None
    registration = cluster.processes[2].epoch
    assert cluster.answer(leader, 2, registration, fetch._replace(leader_epoch=epoch)).error == code
    other = fetch._replace(offset=1, last_fetched_epoch=0)
    assert cluster.answer(leader, 2, registration, other).diverging is not None
    follower = leader.term.follower(2)
    assert follower is not None
    assert follower.log_end == -1


MUTATIONS = [
    (joins_before_the_start_of_the_epoch, test_lagging_hw_join),
    (joining_unchecked, test_bounced_disk),
    (replaced_process_counts, test_fetch_from_the_dead),
]


@pytest.mark.parametrize(("mutation", "scenario"), [each for each in MUTATIONS if can_be_patched(each[0])])
def test_scenario_catches_the_mutation(
    mutation: Patch, scenario: Callable[[Cluster], None], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(CheckedPatch(monkeypatch))
    with pytest.raises(AssertionError):
        scenario(cluster)
