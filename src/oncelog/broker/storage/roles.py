"""Decide which partitions this broker leads or follows, and begin and end its terms as leader.

The newest metadata image decides, so a change may be applied late, twice, or together with the next one. A state that
is older than the one already applied is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.topics import effective
from oncelog.broker.events import Event
from oncelog.broker.membership import Membership
from oncelog.cluster.brokers import BrokerInfo
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.cluster.partition_state import UNKNOWN_BROKER_EPOCH
from oncelog.cluster.replica import Replica
from oncelog.cluster.topics import NO_LEADER, PartitionInfo, TopicInfo
from oncelog.log.recovery import Holes
from oncelog.protocol.topics import TopicPartition


class Roles:
    """The roles of this broker's replicas."""

    def __init__(self, cache: MetadataCache, config: DynamicConfig, membership: Membership) -> None:
        self._cache = cache
        self._config = config
        self.membership = membership
        """What this broker is. It leads a partition with several replicas only if elected in its present epoch."""
        self.node_id = membership.node_id
        self.term_ended: Event[[str, int]] = Event()
        """The term of a (topic, partition) has ended, and its log does not follow another leader yet."""
        self.changed: Event[[Replica]] = Event()
        """The role or the leader epoch of a replica has changed."""
        self.isr_change_due: Event[[Replica]] = Event()
        """The in-sync replicas may have to change: a follower has caught up, or a broker has died."""
        self._live_of: MetadataImage | None = None
        self._live: dict[int, int] = {}

    def hosts(self, topic: str, partition: int) -> bool:
        """Return whether this broker has a replica of the partition."""
        info = self._cache.image.partition(topic, partition)
        return info is not None and (self.node_id == info.leader or self.node_id in info.replicas)

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this broker leads the partition, according to the newest image."""
        info = self._cache.image.partition(topic, partition)
        return info is not None and self._is_leader(info)

    def holes(self, topic: str, partition: int) -> Holes:
        """Return what recovery does if the log has a hole. If it led, the others would truncate what it lacks."""
        info = self._cache.image.partition(topic, partition)
        if info is None or len(info.replicas) == 1 or info.complete == (self.node_id,):
            return Holes.KEEP
        return Holes.REFUSE if self.node_id in info.complete else Holes.DROP

    def _is_leader(self, info: PartitionInfo) -> bool:
        """Return whether the image makes this process the leader.

        A process that starts again must be elected again: it may write other records at offsets that followers have.
        With one replica, there are no followers.
        """
        return info.leader == self.node_id and (
            len(info.replicas) <= 1 or UNKNOWN_BROKER_EPOCH != info.state.leader_broker_epoch == self.membership.epoch
        )

    def apply(self, replica: Replica) -> None:
        """Let the replica lead, follow, or do neither, as the newest image says.

        While the log is being truncated, its role remains. The end of the truncation applies the role again.
        """
        topic = self._cache.image.topic(replica.topic)
        if topic is None or topic.topic_id != replica.topic_id or replica.offline or replica.log.closed:
            return  # the deletion of the topic drops the replica
        if replica.truncating:
            return
        info = topic.partitions[replica.partition]
        term, leads = replica.term, self._is_leader(info)
        if info.state.version < (replica.state_version if term is None else term.state.version):
            return
        if term is not None:
            if leads and info.leader_epoch == term.leader_epoch:
                replica.state_written(info.state)
                return
            self.end_term(replica)
        elif not leads and (info.leader, info.leader_epoch) == (replica.leader, replica.leader_epoch):
            replica.state_version = info.state.version
            return
        if leads:
            replica.lead(
                self.node_id,
                info.replicas,
                info.state,
                min_insync_replicas=self.min_insync_replicas(topic),
                max_lag_ms=self._config.static.replica_lag_time_max_ms,
                live=self.live(replica),
                now_ms=steady_ms(),
            )
        else:
            replica.follow(info.leader if info.leader != self.node_id else NO_LEADER, info.state)
        self.changed(replica)

    def end_term(self, replica: Replica) -> None:
        """End the replica's term, if there is one, and report it."""
        if replica.end_term():
            self.term_ended(replica.topic, replica.partition)

    def min_insync_replicas(self, topic: TopicInfo) -> int:
        """Return `min.insync.replicas` of the topic."""
        return int(effective(self._config.current, topic.configs, "min.insync.replicas"))

    def reconfigure(self, replica: Replica, least: int) -> None:
        """Apply a new `min.insync.replicas` to the replica's term."""
        term = replica.term
        if term is not None:
            term.min_insync_replicas = min(least, max(len(term.replicas), 1))
            term.passed(steady_ms())
            self.isr_change_due(replica)  # if it is lower, the eligible leader replicas no longer count

    def brokers_changed(self, replica: Replica) -> None:
        """Apply the brokers of the newest image to the replica's term."""
        if replica.term is not None and len(replica.term.replicas) > 1:
            replica.term.live_changed(self.live(replica), steady_ms())
            replica.wake()  # DeleteRecords waits for live followers
            self.isr_change_due(replica)

    def live(self, replica: Replica) -> Mapping[int, int]:
        """Return the brokers that may join the in-sync replicas, with their broker epochs.

        A replica that may lack records must leave the ISR first. If it joined again before its broker knows that it has
        left, the controller would remove it, and the leader would add it again, repeatedly.
        """
        image = self._cache.image
        if self._live_of is not image:
            self._live_of = image
            self._live = {id_: info.epoch for id_, info in image.brokers.items() if not info.shutting_down}
        key = replica.topic, replica.partition
        # Keep the leader itself. Otherwise, the result could be empty, and a term treats that as unknown.
        unfit = [id_ for id_, info in image.brokers.items() if id_ != self.node_id and _is_unfit(info, key)]
        if unfit:
            return {id_: epoch for id_, epoch in self._live.items() if id_ not in unfit}
        return self._live


def _is_unfit(broker: BrokerInfo, key: TopicPartition) -> bool:
    """Return whether a broker's replica of a partition is offline, lost, or may lack records."""
    return key in broker.offline or broker.is_unfit(*key)


def steady_ms() -> int:
    """Return the time of the event loop in ms. A change of the wall clock must not let followers lag."""
    return int(asyncio.get_running_loop().time() * 1000)
