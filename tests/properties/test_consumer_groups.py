"""Groups of the consumer protocol against clients that do whatever they may: no partition has two owners.

The clients use the consumer protocol or the classic one, so that the group moves between both. They lose responses,
leave, fall silent, return and change their topics; topics come and go; appends fail, and the coordinator moves to
another broker, which loads it from its records.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.messages.consumer_group_heartbeat import TopicPartitions
from oncelog.protocol.messages.consumer_protocol import (
    AssignedPartition,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from oncelog.protocol.schema import encode_versioned
from support.fixed_topics import topic_id
from support.group_driver import GROUP, START_MS, GroupDriver, Waiting

TOPICS = ("a", "ab", "b")
PATTERNS = ("", "a.*", "ab?", "nothing")
SESSION_MS = {"consumer": 45_000, "classic": 10_000}
Partition = tuple[str, int]
LOST = (
    E.FENCED_MEMBER_EPOCH,
    E.UNKNOWN_MEMBER_ID,
    E.UNRELEASED_INSTANCE_ID,
    E.FENCED_INSTANCE_ID,
    E.GROUP_ID_NOT_FOUND,
)
clients = st.sampled_from(["m0", "m1", "m2", "m3"])
topics = st.lists(st.sampled_from(TOPICS), unique=True)


class LateCommit(NamedTuple):
    """A commit that is on the way while its client goes on. `owners`: see `Coordinator.owners`."""

    epoch: int
    partition: Partition
    offset: int
    owners: int


@dataclass
class Client:
    """A consumer: what it subscribes to, and what it believes that it owns."""

    kind: str
    instance: str | None
    names: list[str]
    pattern: str
    member_id: str
    heard_ms: int
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    positions: dict[Partition, int] = field(default_factory=dict)
    says_all: bool = True
    gives: bool = False
    """The last response has taken partitions from it."""
    sent: list[str] | None = None
    """The names in the last JoinGroup."""
    skipped: bool = False
    epochs: list[int] = field(default_factory=list)
    """The epochs that it has had since it joined."""
    late: list[LateCommit] = field(default_factory=list)
    waiting: Waiting | None = None
    step: str = "join"
    """What a classic client does next: join, sync or heartbeat."""

    def lose_all(self) -> None:
        self.owned, self.epoch, self.says_all, self.step, self.waiting = set(), 0, True, "join", None
        self.epochs, self.late = [], []
        if self.kind == "classic":
            self.member_id = ""


class Coordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver(GroupConfig())
        self.driver.set_clock(START_MS)
        self.driver.topics.counts["a"] = 3
        self.clients: dict[str, Client] = {}
        self.committed: dict[Partition, int] = {}
        self.last_owners: dict[Partition, Client] = {}
        self.owners: Counter[Partition] = Counter()
        """How often a partition has got an owner that is not the one before."""
        self.ids = 0

    @property
    def steady_ms(self) -> int:
        return self.driver.now.steady_ms

    # -- clients ------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    def step(self, client: Client, *, lost: bool = False, matches: bool = True) -> None:
        if client.kind == "consumer":
            self.consumer_step(client, lost=lost, matches=matches)
        else:
            self.classic_step(client, lost=lost)
        self.no_partition_has_two_owners()

    def own(self, client: Client, partitions: set[Partition]) -> None:
        for each in partitions - client.owned:
            client.positions[each] = self.committed.get(each, 0)
            if self.last_owners.get(each) is not client:
                self.last_owners[each] = client
                self.owners[each] += 1
        client.owned = partitions

    def consumer_step(self, client: Client, *, lost: bool, matches: bool) -> None:
        fields: dict[str, Any] = {"member_id": client.member_id, "member_epoch": client.epoch}
        fields["instance_id"] = client.instance
        if client.says_all:
            fields |= {"rebalance_timeout_ms": SESSION_MS["consumer"], "subscribed_topic_names": client.names}
            fields["subscribed_topic_regex"] = client.pattern
        owned: dict[str, list[int]] = {}
        for topic, partition in client.owned:
            owned.setdefault(topic, []).append(partition)
        fields["topic_partitions"] = [TopicPartitions(topic_id=topic_id(t), partitions=p) for t, p in owned.items()]
        answer = self.driver.consumer_heartbeat(**fields)
        if isinstance(answer, E):
            assert answer in LOST, answer
            client.lose_all()
            return
        if lost or answer.failed:
            client.says_all = True
            return
        client.heard_ms = self.steady_ms
        before, epoch, knew_all = client.epoch, answer.response.member_epoch, not client.says_all
        client.epoch, client.says_all = epoch, False
        if epoch not in client.epochs:
            client.epochs.append(epoch)
        if answer.response.assignment is not None:
            names = {topic_id(name): name for name in TOPICS}
            topics = answer.response.assignment.topic_partitions
            given = {(names[each.topic_id], p) for each in topics for p in each.partitions}
            assert all(t in client.names or re.fullmatch(client.pattern, t) for t, _ in given), "not subscribed"
            gives = bool(client.owned - given)
            if knew_all and gives:
                assert epoch - before in (0, client.gives), "a new epoch before the client has given partitions up"
            client.gives = gives
            self.own(client, given)
        self.match(matches)

    def send_late(self) -> None:
        """Deliver what was on the way: old heartbeats, and commits of partitions that have other owners by now."""
        for client in self.clients.values():
            if client.kind == "consumer" and len(client.epochs) > 2:  # the coordinator also accepts the previous epoch
                answer = self.driver.consumer_heartbeat(
                    member_id=client.member_id,
                    member_epoch=client.epochs[-3],
                    instance_id=client.instance,
                    topic_partitions=[],
                )
                assert answer in LOST, answer
            for each in client.late:  # again and again, because the partition may come back
                # As in Kafka, commits with the member's epoch are accepted, whatever it owns. While it gives
                # partitions up, its epoch rises, but not when it gives up a topic that it has unsubscribed from.
                known = each.epoch < client.epoch or each.partition[0] in client.names
                if known and self.owners[each.partition] != each.owners:
                    offset = {each.partition: each.offset}
                    refused = self.driver.commit(
                        offset, member_id=client.member_id, generation=each.epoch, instance=client.instance
                    )
                    assert isinstance(refused, E), "a former owner has committed an offset"

    def match(self, succeeds: bool) -> None:
        matches, now = self.driver.coordinator.consumer.matches, self.driver.now
        names = self.driver.topics.counts
        found = {each: [name for name in names if re.fullmatch(each, name)] for each in matches.begin(GROUP, now)}
        for pattern, topics in found.items() if succeeds else ():
            self.driver.apply(matches.found(GROUP, pattern, topics, now))
        if found:
            matches.end(GROUP, found if succeeds else None, now)

    def classic_step(self, client: Client, *, lost: bool) -> None:
        if client.step == "heartbeat" and client.sent != client.names:
            client.step = "join"
        if client.waiting is not None:
            self.answered(client)
        elif client.step == "join":
            client.owned = set()  # an eager consumer gives all up before it joins again
            client.sent = client.names
            subscription = encode_versioned(ConsumerProtocolSubscription(topics=client.names), 1)
            protocols = (("range", subscription),)
            client.waiting = self.driver.join(client.member_id, instance=client.instance, protocols=protocols)
        elif client.step == "sync":
            client.waiting = self.driver.sync(client.member_id, client.epoch, instance=client.instance)
        else:
            error = self.driver.heartbeat(client.member_id, client.epoch, client.instance)
            if lost:
                return
            if error is E.NONE:
                client.heard_ms = self.steady_ms
            elif error is E.REBALANCE_IN_PROGRESS:
                client.heard_ms = self.steady_ms
                client.owned, client.step = set(), "join"
            else:
                self.rejoin(client, error)
        if lost and client.waiting is not None:
            client.waiting, client.step = None, "join"

    def rejoin(self, client: Client, error: E) -> None:
        client.owned, client.step, client.waiting = set(), "join", None
        if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            client.member_id = ""

    def answered(self, client: Client) -> None:
        waiting = client.waiting
        assert waiting is not None
        if waiting.failed:
            self.rejoin(client, E.NONE)
            return
        response = waiting.response
        if response is None:
            return
        client.waiting = None
        client.heard_ms = self.steady_ms
        error = E(response.error_code)
        if error is E.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif error is not E.NONE:
            self.rejoin(client, error)
        elif client.step == "join":
            client.member_id, client.epoch, client.step = response.member_id, response.generation_id, "sync"
            client.skipped = response.skip_assignment
            if response.leader == client.member_id and response.members:
                given = self.lead(response.members)
                client.waiting = self.driver.sync(client.member_id, client.epoch, given, instance=client.instance)
        else:
            assignment, _ = ConsumerProtocolAssignment.decode_from(response.assignment[2:], 0, 1)
            client.step = "heartbeat"
            if client.skipped:  # a static leader that returned looks at the topics itself (KIP-814)
                client.sent, client.skipped = None, False
            self.own(client, {(each.topic, p) for each in assignment.assigned_partitions for p in each.partitions})

    def lead(self, members: list[Any]) -> dict[str, bytes]:
        """Assign the partitions as the leader of a classic group does."""
        topics = {}
        for each in members:
            subscription, _ = ConsumerProtocolSubscription.decode_from(each.metadata[2:], 0, 1)
            topics[each.member_id] = subscription.topics
        found: dict[str, list[AssignedPartition]] = {member_id: [] for member_id in topics}
        for name, count in self.driver.topics.counts.items():
            subscribers = sorted(member_id for member_id, names in topics.items() if name in names)
            for place, member_id in enumerate(subscribers):
                mine = list(range(place, count, len(subscribers)))
                found[member_id].append(AssignedPartition(topic=name, partitions=mine))
        return {
            member_id: encode_versioned(ConsumerProtocolAssignment(assigned_partitions=some), 1)
            for member_id, some in found.items()
        }

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(name=clients, classic=st.booleans(), static=st.booleans(), names=topics, pattern=st.sampled_from(PATTERNS))
    def join(self, name: str, classic: bool, static: bool, names: list[str], pattern: str) -> None:
        self.enter(name, classic, static, names, pattern)

    def enter(self, name: str, classic: bool, static: bool, names: list[str], pattern: str) -> None:
        if name not in self.clients:
            kind = "classic" if classic else "consumer"
            member_id = "" if classic else self.new_id()
            instance = f"i-{name}" if static else None
            self.clients[name] = Client(kind, instance, names, "" if classic else pattern, member_id, self.steady_ms)
        self.step(self.clients[name])

    @initialize(kinds=st.lists(st.booleans(), min_size=1, max_size=3), names=topics)
    def start(self, kinds: list[bool], names: list[str]) -> None:
        for number, classic in enumerate(kinds):
            self.enter(f"m{number}", classic, static=number == 1, names=["a", *names], pattern="")

    @rule(count=st.integers(1, 8))
    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.wait(1_100)
            for client in self.clients.values():
                self.step(client)
            self.send_late()

    @rule(some=st.lists(st.tuples(clients, st.booleans()), min_size=1, max_size=12), matches=st.booleans())
    def steps(self, some: list[tuple[str, bool]], matches: bool) -> None:
        for name, lost in some:
            if name in self.clients:
                self.step(self.clients[name], lost=lost, matches=matches)

    @rule(name=clients, names=topics, pattern=st.sampled_from(PATTERNS))
    def subscribe(self, name: str, names: list[str], pattern: str) -> None:
        client = self.clients.get(name)
        if client is None:
            return
        client.names, client.says_all = names, True
        if client.kind == "consumer":
            client.pattern = pattern
        self.step(client)

    @rule(name=clients, returns=st.booleans())
    def leave(self, name: str, returns: bool) -> None:
        client = self.clients.pop(name, None)
        if client is None:
            return
        if client.kind == "classic":
            if client.member_id:
                self.driver.leave((client.member_id, client.instance))
            return
        epoch = -2 if returns and client.instance else -1
        answer = self.driver.consumer_heartbeat(
            member_id=client.member_id, member_epoch=epoch, instance_id=client.instance
        )
        assert not isinstance(answer, E) or answer in LOST, answer

    @rule(name=clients)
    def crash(self, name: str) -> None:
        self.clients.pop(name, None)

    @rule(name=clients, late=st.booleans())
    def commit(self, name: str, late: bool) -> None:
        client = self.clients.get(name)
        for each in sorted(client.owned) if client is not None else ():
            assert client is not None
            offset = client.positions[each] + 1
            if late:
                client.late.append(LateCommit(client.epoch, each, offset, self.owners[each]))
                continue
            answer = self.driver.commit(
                {each: offset}, member_id=client.member_id, generation=client.epoch, instance=client.instance
            )
            if isinstance(answer, Waiting) and not answer.failed:
                assert offset > self.committed.get(each, 0), "a committed offset went back"
                self.committed[each] = client.positions[each] = offset

    @rule(name=st.sampled_from(TOPICS), count=st.integers(0, 5))
    def change_topic(self, name: str, count: int) -> None:
        counts = self.driver.topics.counts
        if count:
            counts[name] = max(count, counts.get(name, 0))
        else:
            counts.pop(name, None)
        self.driver.apply(self.driver.coordinator.topics_changed(frozenset({name}), self.driver.now))
        for client in self.clients.values():
            client.sent = None  # a classic client watches the topics, and joins again

    @rule(ms=st.sampled_from([1, 1_100, 6_000, 20_000, 50_000]))
    def wait(self, ms: int) -> None:
        self.driver.pass_time(ms)
        for client in self.clients.values():
            if self.steady_ms - client.heard_ms >= SESSION_MS[client.kind]:
                client.lose_all()
                client.heard_ms = self.steady_ms

    @rule()
    def fail_next_append(self) -> None:
        self.driver.refuse = E.NOT_ENOUGH_REPLICAS

    @rule(ahead_ms=st.sampled_from([0, -500_000, 500_000]))
    def move(self, ahead_ms: int) -> None:
        self.driver.set_clock(max(ahead_ms, START_MS - self.driver.now_ms))
        self.driver.fail_over()
        for client in self.clients.values():
            if client.waiting is not None:
                client.waiting, client.step = None, "join"

    @rule()
    def settle(self) -> None:
        self.driver.refuse = None
        for _ in range(100):
            self.wait(1_100)
            for client in tuple(self.clients.values()):
                self.step(client)
        wanted: set[Partition] = set()
        counts = self.driver.topics.counts
        for client in self.clients.values():
            matched = {name for name in counts if client.pattern and re.fullmatch(client.pattern, name)}
            wanted |= {(name, p) for name in matched | (set(client.names) & counts.keys()) for p in range(counts[name])}
        owned = Counter(each for client in self.clients.values() for each in client.owned)
        assert owned == Counter(wanted)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = Counter(each for client in self.clients.values() for each in client.owned)
        assert all(count == 1 for count in owned.values()), owned


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


# Chance finds these seldom.


def test_first_consumer_gets_what_classic_members_have_given_up() -> None:
    group = Coordinator()
    group.start(kinds=[True], names=[])
    group.settle()
    group.enter("m1", classic=False, static=False, names=["a"], pattern="")
    assert len(group.clients["m0"].owned) == 3
    for _ in range(10):
        group.step(group.clients["m1"])
    assert not group.clients["m1"].owned
    group.settle()


def test_static_member_that_returns_keeps_its_partitions() -> None:
    group = Coordinator()
    group.start(kinds=[False, False], names=[])
    group.settle()
    before = group.clients["m1"].owned
    assert before
    group.leave("m1", returns=True)
    group.enter("m1", classic=False, static=True, names=["a"], pattern="")
    assert group.clients["m1"].owned == before
    group.settle()
    assert group.clients["m1"].owned == before


def test_last_consumer_leaves_and_its_partitions_go_to_the_classic_members() -> None:
    group = Coordinator()
    group.start(kinds=[True, False], names=[])
    group.settle()
    assert all(client.owned for client in group.clients.values())
    group.leave("m1", returns=False)
    group.settle()


@pytest.mark.parametrize("names", [[], ["b"]])
def test_partitions_of_topics_that_a_member_no_longer_wants_are_given_up_at_once(names: list[str]) -> None:
    group = Coordinator()
    group.start(kinds=[False], names=[])
    assert group.clients["m0"].owned
    group.subscribe("m0", names, "")
    assert not group.clients["m0"].owned
    group.settle()


def test_others_get_the_partitions_of_a_member_whose_new_pattern_matches_nothing() -> None:
    group = Coordinator()
    group.start(kinds=[False], names=[])
    group.enter("m1", classic=False, static=False, names=[], pattern="a.*")
    group.settle()
    assert all(client.owned for client in group.clients.values())
    group.subscribe("m1", [], "nothing")
    group.settle()


def test_late_commit_is_refused_after_its_partition_was_another_members() -> None:
    group = Coordinator()
    group.start(kinds=[False], names=[])
    group.commit("m0", late=True)
    group.enter("m1", classic=False, static=False, names=["a"], pattern="")
    group.settle()
    group.commit("m1", late=False)
    assert group.committed
    group.leave("m1", returns=False)
    group.settle()
    assert len(group.clients["m0"].owned) == 3
    group.send_late()


def test_broker_whose_clock_is_behind_assigns_partitions() -> None:
    group = Coordinator()
    group.driver.set_clock(500_000)
    group.start(kinds=[False], names=[])
    group.move(ahead_ms=-500_000)
    group.enter("m1", classic=False, static=False, names=["a"], pattern="")
    group.settle()
