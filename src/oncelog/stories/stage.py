"""What a story uses: brokers, topics, faults, and the verdict from what is in the log."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from oncelog import Admin, Consumer, errors
from oncelog.faults.proxy import FaultProxy
from oncelog.stories.cluster import Cluster
from oncelog.testing.broker import Broker

SMALL = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
}
"""Settings of a broker for stories: it starts quickly, and groups begin at once."""
READ_S = 10.0
"""How long a read waits for records that are in the log."""


class Outcome(NamedTuple):
    """How a run of a story ended."""

    right: bool
    text: str


EXACTLY_ONCE = "exactly once"


class Stage:
    """The place of one run. Use it in a `with` block; it removes its topics and stops its brokers.

    `bootstrap` has the brokers to use. If it is empty, the run starts a broker of its own.
    """

    def __init__(self, say: Callable[[str], None], bootstrap: str = "") -> None:
        self.say = say
        self._given = bool(bootstrap)
        self._bootstrap = bootstrap
        self._stack = ExitStack()
        self._topics: list[str] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        if self._given and self._topics:
            try:
                with Admin(self.bootstrap) as admin:
                    admin.delete_topics(self._topics)
            except errors.OncelogError as failed:  # must not hide why the run ends
                self.say(f"cannot delete the topics {', '.join(self._topics)}: {failed}")
        self._stack.close()

    # -- brokers and topics -------------------------------------------------------------------------------------------

    @property
    def session_ms(self) -> int:
        """The shortest session of a group member that the brokers allow."""
        return 6_000 if self._given else 1_000

    @property
    def bootstrap(self) -> str:
        """The address of the brokers. The first use starts one if there are none yet."""
        if not self._bootstrap:
            self._bootstrap = self._stack.enter_context(Broker(SMALL)).bootstrap_servers
        return self._bootstrap

    def cluster(self, **settings: object) -> Cluster:
        """Start three brokers for this run, at `bootstrap` from now on."""
        cluster = self._stack.enter_context(Cluster({**SMALL, **settings}))
        self._bootstrap = cluster.bootstrap_servers
        return cluster

    def leader_address(self, topic: str) -> str:
        """Return the address of the broker that leads the only partition of a topic."""
        with Admin(self.bootstrap) as admin:
            (found,) = admin.describe_topics(topic)
            brokers = {broker.node_id: broker for broker in admin.describe_cluster().brokers}
        leader = brokers[found.partitions[0].leader]
        return f"{leader.host}:{leader.port}"

    def topic(self, partitions: int = 1, replicas: int = -1, **configs: object) -> str:
        """Create a topic, and return its name. `replicas` -1 is the default of the brokers."""
        name = f"story-{uuid.uuid4().hex[:8]}"
        texts = {key.replace("_", "."): str(value).lower() for key, value in configs.items()}
        with Admin(self.bootstrap) as admin:
            admin.create_topics(name, partitions, replicas, texts)
        self._topics.append(name)
        return name

    @contextmanager
    def faults(self, *rules: str) -> Iterator[FaultProxy]:
        """Run a proxy in front of the brokers, and say which faults it has made."""
        with FaultProxy(self.bootstrap, *rules) as faults:
            yield faults
            for request, fault in faults.made:
                self.say(f"fault: {fault.action}: {request}")

    # -- what is in the log -------------------------------------------------------------------------------------------

    def values(self, topic: str) -> list[str]:
        """Return the values that readers with read_committed see in a topic, by partition and offset."""
        options = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        with Consumer(self.bootstrap, options) as consumer:
            partitions = [(topic, number) for number in range(len(consumer.partitions_for(topic)))]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            found = []
            while any(consumer.position(*partition) < end for partition, end in ends.items()):
                found += consumer.poll(READ_S)
        found.sort(key=lambda record: (record.partition, record.offset))
        return [(record.value or b"").decode() for record in found]

    def verdict(self, topic: str, expected: Sequence[str]) -> Outcome:
        """Compare the values in a topic with those that should be there."""
        found = self.values(topic)
        self.say(f"in the log: {' '.join(found) or 'nothing'}")
        return judged(expected, found)


def stable_and_end(bootstrap: str, topic: str) -> tuple[int, int]:
    """Return the last stable offset and the high watermark of a topic with one partition."""
    found: list[int] = []
    for level in ("read_committed", "read_uncommitted"):
        with Consumer(bootstrap, isolation_level=level) as consumer:
            found += consumer.end_offsets([(topic, 0)]).values()
    return found[0], found[1]


def judged(expected: Sequence[str], found: Sequence[str]) -> Outcome:
    """Return what was lost, duplicated or reordered."""
    lost, doubled = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    faults = [
        *([f"lost: {' '.join(lost.elements())}"] if lost else []),
        *([f"duplicate: {' '.join(doubled.elements())}"] if doubled else []),
        *(["wrong order"] if not lost and not doubled and list(expected) != list(found) else []),
    ]
    return Outcome(not faults, "; ".join(faults) or EXACTLY_ONCE)
