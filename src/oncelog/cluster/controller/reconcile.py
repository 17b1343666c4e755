"""Decide which partition states must change, from one view of the cluster. No I/O, no state, no clock.

`reconcile` is level-triggered: it looks at the present state, not at past events, so a restarted controller needs no
history. Each write requires the controller epoch, the topic's id, the version of the state, and the registration of the
elected leader. Sources: KIP-841, KIP-858, KIP-966; Kafka's `PartitionChangeBuilder`, `ReplicationControlManager`,
`ClusterControlManager.isActive`; KAFKA-6082.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from msgspec.structs import replace

from oncelog.cluster.brokers import BrokerInfo, epoch_path
from oncelog.cluster.partition_state import UNKNOWN_BROKER_EPOCH, PartitionState, eligible
from oncelog.cluster.state_writes import StateWrite, state_write
from oncelog.cluster.store import Check
from oncelog.cluster.topics import NO_LEADER, PartitionInfo
from oncelog.protocol.topics import TopicPartition

CONTROLLER_EPOCH = "/controller_epoch"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, as the controller sees it."""

    topic: str
    topic_id: UUID
    index: int
    info: PartitionInfo
    unclean: bool = False
    """Whether a replica that is not in sync may lead if no other can (`unclean.leader.election.enable`)."""
    min_insync_replicas: int = 1
    """`min.insync.replicas`, but never more than the number of replicas."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The controller's knowledge of the cluster."""

    controller_epoch: int
    controller_epoch_version: int
    brokers: Mapping[int, BrokerInfo]
    partitions: Sequence[Partition]
    seen: frozenset[int] | None = None
    """The brokers that have opened their logs since the controller started. None: do not wait for other brokers.

    Until then, no leader is elected for a partition with a member of the ISR that is not among them. That member may
    have more records than the others.
    """


def reconcile(view: ClusterView, preferred: Container[TopicPartition] = ()) -> list[StateWrite]:
    """Return the changes that the view requires, at most one for each partition.

    `preferred` are partitions whose preferred leader should lead, if it is in sync. If a change fails because of a
    version, ignore the failure: the next view shows which changes are still needed.
    """
    writes = []
    for partition in view.partitions:
        wanted = _wanted(view, partition, (partition.topic, partition.index) in preferred)
        if wanted is not None:
            writes.append(_write(view, partition, wanted))
    return writes


def unbalanced(view: ClusterView, percentage: int) -> list[TopicPartition]:
    """Return the partitions whose preferred leaders should be elected, because brokers lead too few partitions.

    A broker should lead the partitions of which it is the first replica. If others lead more than `percentage` percent
    of them, the result has those that the broker can lead now. Source: `KafkaController`, up to Kafka 3; later
    controllers ignore the percentage.
    """
    by_broker: dict[int, list[Partition]] = {}
    for partition in view.partitions:
        by_broker.setdefault(partition.info.replicas[0], []).append(partition)
    found = []
    for broker, preferred in by_broker.items():
        others = [partition for partition in preferred if partition.info.leader != broker]
        if 100 * len(others) > percentage * len(preferred):
            found += [(each.topic, each.index) for each in others if _preferred(view, each) is not None]
    return found


def _wanted(view: ClusterView, partition: Partition, prefer: bool) -> PartitionState | None:
    """Return the state that the partition should have, or None if it has it."""
    state = partition.info.state
    if _is_awaiting(view, partition):
        return None
    leader = _leader(view, partition, prefer)
    if leader == NO_LEADER:
        isr = _without_lost(view, partition, state.isr, None)
        wanted = replace(state, isr=isr, elr=_elr(view, partition, isr))
        if wanted == replace(state, leader=NO_LEADER):
            return None
        return replace(_next(view, wanted), leader=NO_LEADER, leader_broker_epoch=UNKNOWN_BROKER_EPOCH)
    registration = view.brokers[leader].epoch
    if leader == state.leader and _is_elected(view, partition):
        isr = _without_lost(view, partition, state.isr, leader)
        wanted = replace(state, isr=isr, elr=_elr(view, partition, isr))
        return None if wanted == state else replace(wanted, controller_epoch=view.controller_epoch)
    isr = state.isr if leader in state.isr else (leader,)
    isr = tuple(member for member in isr if member == leader or _is_online(view, partition, member))
    isr = _without_lost(view, partition, isr, leader)
    is_clean = leader in state.complete and not _lacks(view, partition, leader)
    elr = _elr(view, partition, isr) if is_clean else ()
    return replace(_next(view, state), leader=leader, isr=isr, elr=elr, leader_broker_epoch=registration)


def _is_awaiting(view: ClusterView, partition: Partition) -> bool:
    """Return whether the election of a leader waits for members of the ISR that may start soon."""
    if view.seen is None or len(partition.info.replicas) == 1 or _still_leads(view, partition):
        return False
    return not view.seen.issuperset(partition.info.isr)


def _leader(view: ClusterView, partition: Partition, prefer: bool) -> int:
    """Return the broker that should lead, or NO_LEADER. The first rule that applies decides.

    1. The present leader may continue: the preferred leader if it is wanted and can lead, else the present one.
    2. A member of the ISR can lead: the first of them, in the order of the replicas. If none can, one of the ELR.
    3. The present leader is shutting down or may lack records: it continues, because no other broker can lead.
    4. Unclean elections are allowed: the first replica that can start. A replica that has a log comes first, then one
       that is not known to lack records.
    """
    leader = partition.info.leader
    if _still_leads(view, partition) and not _must_go(view, partition):
        preferred = _preferred(view, partition) if prefer else None
        return leader if preferred is None else preferred
    return _elected(view, partition)


def _must_go(view: ClusterView, partition: Partition) -> bool:
    """Return whether another broker should lead, because the leader is shutting down or may lack records."""
    leader = view.brokers[partition.info.leader]
    return leader.shutting_down or leader.may_lack(partition.topic, partition.index)


def _elected(view: ClusterView, partition: Partition) -> int:
    """Apply the rules 2 to 4 of `_leader`."""
    state = partition.info.state
    for members in (state.isr, state.elr):
        for broker in partition.info.replicas:
            if broker in members and _may_lead(view, partition, broker):
                return broker
    if _still_leads(view, partition):
        return state.leader
    if not partition.unclean:
        return NO_LEADER
    found = (broker for broker in partition.info.replicas if _may_start(view, partition, broker))
    return min(found, key=lambda broker: _damage(view, partition, broker), default=NO_LEADER)


def _damage(view: ClusterView, partition: Partition, broker: int) -> tuple[bool, bool]:
    """Return a key by which the least damaged replica comes first."""
    found = view.brokers.get(broker)
    incomplete = found is not None and (partition.topic, partition.index) in found.incomplete
    return _has_lost_log(view, partition, broker), incomplete


def _next(view: ClusterView, state: PartitionState) -> PartitionState:
    return replace(state, leader_epoch=state.leader_epoch + 1, controller_epoch=view.controller_epoch)


def _is_online(view: ClusterView, partition: Partition, broker: int) -> bool:
    found = view.brokers.get(broker)
    return found is not None and (partition.topic, partition.index) not in found.offline


def _still_leads(view: ClusterView, partition: Partition) -> bool:
    """Return whether the leader's process may continue to lead, and has the partition's directory."""
    return _is_online(view, partition, partition.info.leader) and _is_elected(view, partition)


def _is_elected(view: ClusterView, partition: Partition) -> bool:
    """Return whether the leader's process is the one that was elected.

    A process that starts again must be elected again, because followers may have other records of its epoch. A
    partition with one replica has no followers, so a start with many such partitions writes nothing.
    """
    state = partition.info.state
    return len(partition.info.replicas) == 1 or view.brokers[state.leader].epoch == state.leader_broker_epoch


def _may_start(view: ClusterView, partition: Partition, broker: int) -> bool:
    """Return whether a broker is running, is not shutting down, has the partition's directory, and has opened its logs.

    A partition with one replica need not be open: no other replica could lead instead.
    """
    if not _is_online(view, partition, broker):
        return False
    found = view.brokers[broker]
    return not found.shutting_down and not (found.starting and len(partition.info.replicas) > 1)


def _may_lead(view: ClusterView, partition: Partition, broker: int) -> bool:
    """Return whether a member of the ISR or ELR may be elected.

    The last member may, even if it lacks records, but not if it has lost the log.
    """
    if not _may_start(view, partition, broker) or _has_lost_log(view, partition, broker):
        return False
    return not _lacks(view, partition, broker) or len(partition.info.complete) == 1


def _has_lost_log(view: ClusterView, partition: Partition, broker: int) -> bool:
    found = view.brokers.get(broker)
    return found is not None and (partition.topic, partition.index) in found.lost_logs


def _preferred(view: ClusterView, partition: Partition) -> int | None:
    first = partition.info.replicas[0]
    return first if first in partition.info.isr and _may_lead(view, partition, first) else None


def _lacks(view: ClusterView, partition: Partition, broker: int) -> bool:
    """Return whether a running broker is known to have lost the log, or records of it."""
    found = view.brokers.get(broker)
    return found is not None and found.is_unfit(partition.topic, partition.index)


def _elr(view: ClusterView, partition: Partition, isr: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ELR if the ISR becomes `isr`."""
    found = eligible(partition.info.state, isr, partition.min_insync_replicas)
    return tuple(broker for broker in found if not _lacks(view, partition, broker))


def _without_lost(view: ClusterView, partition: Partition, isr: tuple[int, ...], leader: int | None) -> tuple[int, ...]:
    """Return an ISR without members that may lack records or are shutting down.

    If all of them may lack records, keep the least damaged one. It leads if the ELR is empty. Otherwise, it remains
    until an eligible replica leads. So it keeps its records, in case only an unclean election can elect a leader.

    Dead members stay until an election, because while there is no leader, any of them may return and lead. A member
    that shuts down together with the leader stays, because it can lead if the leader then loses its disk.
    """
    if leader is not None:
        alone = view.brokers[leader].shutting_down
        return tuple(each for each in isr if each == leader or not _leaves(view, partition, each, alone)) or isr
    kept = [each for each in isr if not _leaves(view, partition, each, True)]
    return tuple(kept) or (min(isr, key=lambda each: _damage(view, partition, each)),)


def _leaves(view: ClusterView, partition: Partition, member: int, may_stop: bool) -> bool:
    found = view.brokers.get(member)
    stops = found is not None and found.shutting_down and not may_stop
    return stops or _lacks(view, partition, member)


def _write(view: ClusterView, partition: Partition, wanted: PartitionState) -> StateWrite:
    required = [Check(CONTROLLER_EPOCH, view.controller_epoch_version)]
    if wanted.leader != NO_LEADER:
        required.append(Check(epoch_path(wanted.leader), view.brokers[wanted.leader].epoch))
    return state_write(partition.topic, partition.topic_id, partition.index, wanted, *required)
