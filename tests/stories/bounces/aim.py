"""Find the broker that has a role: the leader of a partition, the controller, or the coordinator of a client."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from oncelog.coordinator.partitioning import partition_for

ANY, LEADER, CONTROLLER, COORDINATOR = TARGETS = ("any", "leader", "controller", "coordinator")
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
ANSWER_S = 3.0
"""How long the brokers may take to answer. A suspended one does not."""


@dataclass
class Aim:
    """Find brokers by their roles, in the metadata."""

    bootstrap: str
    topics: Sequence[str]
    """The topics whose leaders are targets."""
    coordinated: Sequence[tuple[str, str]]
    """The topic of a coordinator, and a group or transactional id that it coordinates."""
    login: Mapping[str, str] = field(default_factory=dict)
    """Further options of librdkafka."""

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **self.login})

    def find(self, target: str, chance: random.Random) -> int | None:
        """Return the node id of a broker with the role. None: there is none now, or no broker answers in time."""
        try:
            known = self._admin.list_topics(timeout=ANSWER_S)
        except KafkaException:
            return None
        if target == CONTROLLER:
            node = known.controller_id
        elif target == LEADER:
            topic = known.topics.get(chance.choice(self.topics))
            leaders = [] if topic is None else [topic.partitions[each].leader for each in sorted(topic.partitions)]
            node = chance.choice(leaders) if leaders else -1
        else:
            node = _coordinator(known, *chance.choice(self.coordinated))
        return node if node > 0 else None


def _coordinator(known: ClusterMetadata, topic: str, name: str) -> int:
    found = known.topics.get(topic)
    if found is None or not found.partitions:
        return -1
    return int(found.partitions[partition_for(name, len(found.partitions))].leader)
