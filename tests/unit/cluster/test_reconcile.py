"""The controller: which leader it elects, and which states it leaves alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.cluster.brokers import BrokerInfo, epoch_path
from oncelog.cluster.controller.placement import place
from oncelog.cluster.controller.reconcile import ClusterView, Partition, reconcile, unbalanced
from oncelog.cluster.partition_state import PartitionState, state_path
from oncelog.cluster.store import Check, Set
from oncelog.cluster.topics import PartitionInfo, topic_id_path
from oncelog.protocol.errors import ErrorCode, ProtocolError

NONE = -1
TOPIC_ID = UUID(int=1)


def view_of(
    state: PartitionState,
    brokers: dict[int, BrokerInfo],
    *,
    unclean: bool = False,
    offline: set[int] | None = None,
    replicas: tuple[int, ...] = (1, 2, 3),
    least: int = 1,
) -> ClusterView:
    partition = Partition("t", TOPIC_ID, 0, PartitionInfo(replicas, state), unclean, least)
    failed = {
        broker: replace(brokers[broker], offline=frozenset({("t", 0)})) for broker in (offline or set()) & set(brokers)
    }
    return ClusterView(4, 9, brokers | failed, [partition])


def in_state(view: ClusterView, state: PartitionState) -> ClusterView:
    partition = view.partitions[0]
    return replace(view, partitions=[replace(partition, info=replace(partition.info, state=state))])


def alive(*brokers: int) -> dict[int, BrokerInfo]:
    return {broker: BrokerInfo(broker * 10) for broker in brokers}


def led(leader: int, *isr: int, epoch: int = 5, elr: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(leader, epoch, isr, 7, leader * 10 if leader > 0 else NONE, 4, elr)


def decided(view: ClusterView, *, prefer: bool = False) -> tuple[int, tuple[int, ...], int] | None:
    """Return leader, ISR and leader epoch of the state to write."""
    writes = reconcile(view, {("t", 0)} if prefer else ())
    return (writes[0].state.leader, writes[0].state.isr, writes[0].state.leader_epoch) if writes else None


LOST = {2: BrokerInfo(20, lost_unsynced=True)}
HEALTHY = {2: BrokerInfo(20, lost_unsynced=True, intact=frozenset({("t", 0)}))}
"""Broker 2 has lost another log directory."""
OTHER_HEALTHY = {2: BrokerInfo(20, lost_unsynced=True, intact=frozenset({("t", 1), ("u", 0)}))}
STOPPING = {1: BrokerInfo(10, shutting_down=True)}
BOTH_STOPPING = {**STOPPING, 2: BrokerInfo(20, shutting_down=True)}
LOST_LOG = {2: BrokerInfo(21, lost_logs=frozenset({("t", 0)}))}
"""Broker 2 has started again after the loss of the disk that held its replica."""
STARTING = {2: BrokerInfo(21, starting=True)}
INCOMPLETE = {2: BrokerInfo(21, incomplete=frozenset({("t", 0)}))}


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (view_of(led(1, 1, 2, 3), alive(1, 2, 3)), None),
        (view_of(led(1, 1, 2, 3), alive(1, 2)), None),  # the leader removes a dead follower
        (view_of(led(1, 1, 2, 3), alive(2, 3)), (2, (2, 3), 6)),
        (view_of(led(1, 1, 3), alive(2, 3)), (3, (3,), 6)),
        (view_of(led(1, 1), alive(2, 3)), (NONE, (1,), 6)),
        (view_of(led(1, 1, 2), alive(3)), (NONE, (1, 2), 6)),  # each of them may come back
        (view_of(led(NONE, 1, 2), alive(3)), None),
        (view_of(led(NONE, 1, 2), alive(2, 3)), (2, (2,), 6)),
        (view_of(led(1, 1), alive(2, 3), unclean=True), (2, (2,), 6)),
        (view_of(led(1, 1, 2), alive(2, 3), unclean=True), (2, (2,), 6)),
        # the leader's process is another one
        (view_of(led(1, 1, 2), {**alive(2), 1: BrokerInfo(11)}), (1, (1, 2), 6)),
        # a partition with one replica needs no election when its broker starts again
        (view_of(led(1, 1), {1: BrokerInfo(11)}, replicas=(1,)), None),
        (view_of(led(1, 1), alive(2), replicas=(1,)), (NONE, (1,), 6)),
        (view_of(led(NONE, 1), {1: BrokerInfo(11)}, replicas=(1,)), (1, (1,), 6)),
        # a failed log directory
        (view_of(led(1, 1, 2, 3), alive(1, 2, 3), offline={1}), (2, (2, 3), 6)),
        (view_of(led(1, 1), alive(1, 2, 3), offline={1}), (NONE, (1,), 6)),
        # a machine has crashed
        (view_of(led(1, 1, 2, 3), {**alive(1, 3), **LOST}), (1, (1, 3), 5)),
        (view_of(led(1, 1, 2), {**alive(3), **LOST}), (NONE, (1,), 6)),
        (view_of(led(NONE, 2), {**alive(3), **LOST}), (2, (2,), 6)),
        (view_of(led(1, 1, 2, 3), {**alive(1, 3), **HEALTHY}), None),
        (view_of(led(1, 1, 2), {**alive(3), **HEALTHY}), (2, (2,), 6)),
        (view_of(led(1, 1, 2), {**alive(3), **OTHER_HEALTHY}), (NONE, (1,), 6)),
        (view_of(led(NONE, 1, 2, 3), {1: BrokerInfo(11, lost_unsynced=True), **HEALTHY}), (2, (2,), 6)),
        (view_of(led(2, 1, 2, 3), {**alive(1, 3), **LOST}), (1, (1, 3), 6)),  # it leaves all ISRs before it joins any
        (view_of(led(2, 2), {**alive(1, 3), **LOST}), None),
        # controlled shutdown
        (view_of(led(1, 1, 2, 3), {**alive(2, 3), **STOPPING}), (2, (2, 3), 6)),
        (view_of(led(1, 1), {**alive(2, 3), **STOPPING}), None),
        (view_of(led(1, 1), {**alive(2, 3), **STOPPING}, unclean=True), None),
        (view_of(led(2, 1, 2), {**alive(2, 3), **STOPPING}), (2, (2,), 5)),
        (view_of(led(2, 1, 2), {**alive(3), **STOPPING}), (NONE, (1, 2), 6)),
        (view_of(led(1, 1, 2, 3), {**alive(3), **BOTH_STOPPING}), (3, (3,), 6)),
        (view_of(led(1, 1, 2), {**alive(3), **BOTH_STOPPING}), None),  # each of them may come back first
        (view_of(led(1, 1, 2), BOTH_STOPPING), None),
        # a lost disk
        (view_of(led(1, 1, 2, 3), LOST_LOG), (NONE, (1, 3), 6)),  # the others have complete copies
        (view_of(led(2, 1, 2, 3), LOST_LOG), (NONE, (1, 3), 6)),
        (view_of(led(1, 1, 2, 3), {**alive(1, 3), **LOST_LOG}), (1, (1, 3), 5)),
        (view_of(led(2, 1, 2, 3), {**alive(1, 3), **LOST_LOG}), (1, (1, 3), 6)),
        (view_of(led(2, 2), {**alive(1, 3), **LOST_LOG}), (NONE, (2,), 6)),  # only its lost disk had all records
        (view_of(led(NONE, 2), {**alive(1, 3), **LOST_LOG}), None),
        (view_of(led(NONE, 2), {**alive(3), **LOST_LOG}, unclean=True), (3, (3,), 6)),
        (view_of(led(NONE, 2), LOST_LOG, unclean=True), (2, (2,), 6)),
        (view_of(led(NONE, 1, 2), {**LOST_LOG, 1: BrokerInfo(11, lost_unsynced=True)}), (NONE, (1,), 6)),
        (view_of(led(NONE, 2, 1), {**LOST_LOG, 1: BrokerInfo(11, lost_unsynced=True)}), (NONE, (1,), 6)),
        # a broker that has not opened its logs
        (view_of(led(1, 1, 2, 3), {**alive(3), **STARTING}), (3, (2, 3), 6)),
        (view_of(led(NONE, 1, 2), {**alive(3), **STARTING}), None),
        (view_of(led(NONE, 1, 2), STARTING, unclean=True), None),
        (view_of(led(NONE, 2), STARTING, replicas=(2,)), (2, (2,), 6)),
        (view_of(led(2, 1, 2), {**alive(1), **STARTING}), (1, (1, 2), 6)),
        # a log that is open and lacks records
        (view_of(led(1, 1, 2, 3), INCOMPLETE), (NONE, (1, 3), 6)),
        (view_of(led(2, 1, 2, 3), {**alive(3), **INCOMPLETE}), (3, (3,), 6)),
        (view_of(led(NONE, 2), {**alive(1, 3), **INCOMPLETE}), (2, (2,), 6)),
        (view_of(led(NONE, 2, 3), {**INCOMPLETE, 3: BrokerInfo(31, lost_unsynced=True)}), (NONE, (3,), 6)),
        (view_of(led(NONE, 1), {**alive(3), **INCOMPLETE}, unclean=True, replicas=(2, 3, 1)), (3, (3,), 6)),
    ],
)
def test_decisions(view: ClusterView, expected: tuple[int, tuple[int, ...], int] | None) -> None:
    assert decided(view) == expected


@pytest.mark.parametrize(
    ("state", "brokers", "expected"),
    [
        # members that leave are eligible while fewer than min.insync.replicas are in sync
        (led(1, 1, 2), alive(2, 3), (2, (2,), (1,))),
        (led(1, 1, 2, 3), alive(2, 3), (2, (2, 3), ())),
        (led(2, 1, 2), {**alive(2, 3), **STOPPING}, (2, (2,), (1,))),
        # they lead if no member of the ISR can
        (led(1, 1, elr=(2,)), alive(2, 3), (2, (2,), (1,))),
        (led(1, 1, elr=(2, 3)), alive(3), (3, (3,), (1, 2))),
        (led(NONE, 2, elr=(1,)), alive(1, 2), (2, (2,), (1,))),
        (led(1, 1, elr=(2,)), alive(3), (NONE, (1,), (2,))),
        (led(1, 1, elr=(2,)), alive(1, 2, 3), None),
        (led(1, 1, elr=(2,)), {**alive(2, 3), **STOPPING}, (2, (2,), (1,))),
        # a replica that may lack records is not eligible
        (led(1, 1, 2), {**alive(1, 3), **LOST}, (1, (1,), ())),
        (led(1, 1, elr=(2, 3)), {**alive(1), **LOST}, (1, (1,), (3,))),
        (led(1, 1, elr=(2, 3)), INCOMPLETE, (NONE, (1,), (3,))),
        (led(1, 1, elr=(2, 3)), LOST_LOG, (NONE, (1,), (3,))),
        # the last member of the ISR lacks records: it waits for an eligible one, and then leaves
        (led(NONE, 2, elr=(1,)), {**alive(3), **LOST}, None),
        (led(NONE, 2, elr=(1,)), {**alive(3), **LOST_LOG}, None),
        (led(NONE, 2, elr=(1,)), {**alive(3), **INCOMPLETE}, None),
        (led(NONE, 2, elr=(1,)), {**alive(1, 3), **INCOMPLETE}, (1, (1,), ())),
        (led(2, 2, elr=(1,)), {**alive(1, 3), **LOST}, (1, (1,), ())),
        (led(NONE, 2, elr=(1,)), {**alive(3), **LOST, 1: BrokerInfo(11, lost_unsynced=True)}, (NONE, (2,), ())),
        (led(NONE, 2, elr=(1,)), {**LOST_LOG, 1: BrokerInfo(11, lost_unsynced=True)}, (NONE, (2,), ())),
    ],
)
def test_eligible_leader_replicas(
    state: PartitionState, brokers: dict[int, BrokerInfo], expected: tuple[int, tuple[int, ...], tuple[int, ...]] | None
) -> None:
    writes = reconcile(view_of(state, brokers, least=2))
    found = [(write.state.leader, write.state.isr, write.state.elr) for write in writes]
    assert found == ([] if expected is None else [expected])


def test_unclean_election_leaves_no_eligible_replicas() -> None:
    """The leader may expose less than was committed, so former members may have other records."""
    (write,) = reconcile(view_of(led(NONE, 1, elr=(2,)), alive(3), unclean=True, least=2))
    assert (write.state.leader, write.state.isr, write.state.elr) == (3, (3,), ())


@pytest.mark.parametrize(
    ("state", "brokers", "seen", "expected"),
    [
        (led(1, 1, 2, 3), alive(2, 3), {2, 3}, None),  # broker 1 may start soon
        (led(1, 1, 2, 3), alive(2, 3), {1, 2, 3}, (2, (2, 3), 6)),  # it has run, and then died
        (led(1, 1, 2, 3), alive(2, 3), None, (2, (2, 3), 6)),  # it has not come in time
        (led(NONE, 2, 3), alive(2, 3), {2, 3}, (2, (2, 3), 6)),  # it does not belong to the ISR
        (led(2, 1, 2, 3), alive(2, 3), {2, 3}, None),  # the leader has not died
        (led(NONE, 1, 2), {2: BrokerInfo(20, lost_unsynced=True)}, {2}, None),  # the others may be worse
    ],
)
def test_election_waits_while_members_of_the_isr_may_start(
    state: PartitionState,
    brokers: dict[int, BrokerInfo],
    seen: set[int] | None,
    expected: tuple[int, tuple[int, ...], int] | None,
) -> None:
    view = replace(view_of(state, brokers), seen=None if seen is None else frozenset(seen))
    assert decided(view) == expected
    alone = replace(view_of(led(NONE, 2), brokers, replicas=(2,)), seen=frozenset())
    assert decided(alone) == (2, (2,), 6)  # no other replica can come


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (view_of(led(2, 1, 2), alive(1, 2, 3)), (1, (1, 2), 6)),
        (view_of(led(2, 2, 3), alive(1, 2, 3)), None),
        (view_of(led(2, 1, 2), {**alive(2), **STOPPING}), (2, (2,), 5)),
        (view_of(led(1, 1, 2), alive(1, 2)), None),
        (view_of(led(1, 1, 2), {**alive(1), **LOST_LOG}, replicas=(2, 1)), (1, (1,), 5)),
    ],
)
def test_preferred_leader_leads_if_it_is_in_sync(
    view: ClusterView, expected: tuple[int, tuple[int, ...], int] | None
) -> None:
    assert decided(view, prefer=True) == expected


def test_brokers_that_lead_too_few_of_their_partitions_are_found() -> None:
    """Broker 1 leads 9 of its 10 partitions, broker 2 none of its two, and broker 3 is not in sync."""
    states = [led(1, 1, 2)] * 9 + [led(2, 1, 2)]
    mine = [Partition("a", TOPIC_ID, index, PartitionInfo((1, 2), state)) for index, state in enumerate(states)]
    others = [Partition("b", TOPIC_ID, index, PartitionInfo((2, 1), led(1, 1, 2))) for index in range(2)]
    late = [Partition("c", TOPIC_ID, 0, PartitionInfo((3, 1), led(1, 1)))]
    view = ClusterView(4, 9, alive(1, 2, 3), [*mine, *others, *late])
    assert unbalanced(view, 10) == [("b", 0), ("b", 1)]
    assert unbalanced(view, 9) == [("a", 9), ("b", 0), ("b", 1)]
    assert unbalanced(view, 100) == []
    assert unbalanced(replace(view, brokers=alive(1, 3)), 10) == []  # a dead broker cannot lead
    assert [write.state.leader for write in reconcile(view, unbalanced(view, 9))] == [1, 2, 2]


def test_a_write_requires_the_controller_the_topic_the_state_and_the_new_leader() -> None:
    (write,) = reconcile(view_of(led(1, 1, 2), alive(2)))
    *checks, change = write.operations
    assert checks == [Check("/controller_epoch", 9), Check(epoch_path(2), 20), Check(topic_id_path(TOPIC_ID))]
    assert isinstance(change, Set)
    assert (change.path, change.version, write.state.controller_epoch) == (state_path("t", 0), 7, 4)


BROKERS = st.dictionaries(
    st.integers(1, 4),
    st.builds(
        BrokerInfo,
        st.integers(10, 12),
        st.just({}),
        st.none(),
        st.booleans(),
        st.booleans(),
        intact=st.sampled_from([frozenset(), frozenset({("t", 0)}), frozenset({("t", 1)})]),
        lost_logs=st.sampled_from([frozenset(), frozenset({("t", 0)})]),
        starting=st.booleans(),
        incomplete=st.sampled_from([frozenset(), frozenset({("t", 0)})]),
    ),
)
STATES = st.builds(
    PartitionState,
    st.sampled_from([-1, 1, 2, 3]),
    st.integers(0, 5),
    st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(0, 9),
    st.integers(10, 12),
    elr=st.sets(st.sampled_from([1, 2, 3])).map(sorted).map(tuple),
).filter(lambda state: state.leader in (-1, *state.isr) and not {*state.isr} & {*state.elr})


@given(STATES, BROKERS, st.booleans(), st.booleans(), st.sets(st.integers(1, 3), max_size=2), st.integers(1, 3))
def test_properties_of_each_decision(
    state: PartitionState, brokers: dict[int, BrokerInfo], unclean: bool, prefer: bool, offline: set[int], least: int
) -> None:
    view = view_of(state, brokers, unclean=unclean, offline=offline, least=least)
    for write in reconcile(view, {("t", 0)} if prefer else ()):
        new = write.state
        assert new != state
        assert new.isr
        assert set(new.isr) <= set(state.isr) or (new.isr == (new.leader,) and (unclean or new.leader in state.elr))
        assert set(new.elr) <= set(state.complete) - set(new.isr)
        assert not new.elr or len(new.isr) < least
        assert not any(member in brokers and brokers[member].is_unfit("t", 0) for member in new.elr)
        moved = (new.leader, new.leader_broker_epoch) != (state.leader, state.leader_broker_epoch)
        assert new.leader_epoch == state.leader_epoch + moved
        if new.leader >= 0:
            assert new.leader in brokers
            assert new.leader not in offline
            assert new.leader in new.isr
            assert new.leader_broker_epoch == brokers[new.leader].epoch
        if moved and not unclean and new.leader >= 0 and brokers[new.leader].may_lack("t", 0):
            assert len(state.complete) == 1
        if moved and not unclean and new.leader >= 0:
            assert not brokers[new.leader].lost_logs
            assert not brokers[new.leader].shutting_down
        settled = in_state(view, new)
        for _ in range(3):  # a lost member leaves first, then the last one may lead
            again = reconcile(settled, {("t", 0)} if prefer else ())
            if not again:
                break
            settled = in_state(view, again[0].state)
        assert not reconcile(settled, {("t", 0)} if prefer else ())
        last = settled.partitions[0].info.state
        for member in set(last.isr) - {last.leader} if len(last.isr) > 1 else ():  # the last one may have to wait
            assert member not in brokers or not brokers[member].lost_logs


# --- placement ---


def test_replicas_go_to_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = place(12, 3, racks)
    assert all(len({racks[broker] for broker in replicas}) == 3 for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {2}
    assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {6}


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7),
    st.integers(1, 30),
    st.integers(0, 9),
    st.data(),
)
def test_each_partition_uses_as_many_racks_as_possible(
    racks: dict[int, str | None], partitions: int, first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    kinds = {rack or broker for broker, rack in racks.items()}
    placed = place(partitions, factor, racks, first=first)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[broker] or broker for broker in replicas}) == min(factor, len(kinds))
    leaders = Counter(dict.fromkeys(racks, 0))
    leaders.update(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_replicas_go_to_brokers_that_are_down_only_if_too_few_are_running() -> None:
    """As in Kafka, where brokers that are down are fenced, but registered."""
    for replicas in place(6, 2, {1: None, 2: None}, down={3: None}):
        assert set(replicas) == {1, 2}
    for replicas in place(6, 3, {1: None, 2: None}, down={3: None}):
        assert replicas[2] == 3
        assert set(replicas) == {1, 2, 3}
    for replicas in place(6, 2, {1: "a", 2: "a"}, down={3: "b"}):
        assert replicas[1] == 3  # Kafka prefers another rack to a running broker
    for running in ({}, {1: None}):
        with pytest.raises(ProtocolError) as error:
            place(1, 2 + len(running), running, down={3: None, 4: None} if not running else {3: None})
        assert error.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("factor", [0, 4])
def test_replication_factor_is_limited_to_the_registered_brokers(factor: int) -> None:
    with pytest.raises(ProtocolError) as error:
        place(1, factor, {1: None, 2: None, 3: None})
    assert error.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
