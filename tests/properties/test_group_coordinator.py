"""Run random members against one group coordinator.

Members join, sync, leave, fall silent and restart; they commit inside and outside of transactions; appends are lost,
and coordinators fail over. The model does not know how the coordinator decides: it watches the members' answers and the
log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from oncelog.coordinator.groups.classic.group import ClassicGroup
from oncelog.coordinator.groups.classic.group import GroupState as S
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode as E
from support.group_driver import GROUP, SESSION_MS, GroupDriver, Waiting, subscription

PROTOCOLS = (
    (("range", subscription("t")),),
    (("range", subscription("t", "u")),),
    (("sticky", subscription("t")), ("range", subscription("t"))),
)
PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
PRODUCERS = (1, 2)
ROUNDS_TO_REST = 100
ROUNDS_AT_REST = 40
"""Rounds of a quarter of a session each: longer than any remaining timeout."""
# Written again here instead of imported, because the test checks the coordinator's own table.
LEGAL = {
    (S.EMPTY, S.PREPARING_REBALANCE),
    (S.PREPARING_REBALANCE, S.EMPTY),
    (S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE),
    (S.COMPLETING_REBALANCE, S.PREPARING_REBALANCE),
    (S.COMPLETING_REBALANCE, S.STABLE),
    (S.STABLE, S.PREPARING_REBALANCE),
    (S.EMPTY, S.DEAD),
}


@dataclass(eq=False)
class Consumer:
    """One client process and the last answer that it got."""

    instance: str | None
    protocols: tuple[tuple[str, bytes], ...]
    member_id: str = ""
    generation: int = -1
    joining: Waiting | None = None
    syncing: Waiting | None = None
    members: list[str] = field(default_factory=list)
    since_heard_ms: int = 0


class Groups(RuleBasedStateMachine):
    consumers = Bundle("consumers")

    @initialize(delay=st.sampled_from((0, 3000)), size=st.sampled_from((3, 2**31 - 1)))
    def start(self, delay: int, size: int) -> None:
        self.driver = GroupDriver(
            GroupConfig(
                initial_rebalance_delay_ms=delay,
                max_size=size,
                offsets_retention_ms=20 * SESSION_MS,
                retention_check_interval_ms=5 * SESSION_MS,
            )
        )
        self.alive: list[Consumer] = []
        self.given: dict[tuple[int, str], bytes] = {}
        self.leaders: dict[int, str] = {}
        self.highest = 0
        self.model: dict[tuple[str, int], int] = {}
        self.pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        self.written: dict[tuple[str, int], int] = {}
        self.commits = 0
        self.watch()

    def watch(self) -> None:
        """Check every transition of every group."""
        seen = ClassicGroup.transition_to

        def transition_to(group: ClassicGroup, state: S, now_ms: int) -> None:
            assert (group.state, state) in LEGAL, (group.state, state)
            seen(group, state, now_ms)

        self.undo = seen
        ClassicGroup.transition_to = transition_to  # type: ignore[method-assign]

    def teardown(self) -> None:
        if not hasattr(self, "undo"):
            return
        try:
            self.group_becomes_stable()
        finally:
            ClassicGroup.transition_to = self.undo  # type: ignore[method-assign]

    def group_becomes_stable(self) -> None:
        """When all members behave and nothing fails, the group becomes stable with the living members, and stays so."""
        self.driver.refuse = None
        newest = {consumer.instance: consumer for consumer in self.alive if consumer.instance is not None}
        actors = [*newest.values(), *(consumer for consumer in self.alive if consumer.instance is None)]
        self.alive = actors
        if not actors:
            return
        self.run_without_faults(actors, ROUNDS_TO_REST)
        group = self.driver.group
        resting = group.generation
        self.run_without_faults(actors, ROUNDS_AT_REST)
        assert (group.state, group.generation) == (S.STABLE, resting)
        members = {consumer.member_id for consumer in actors if consumer.generation == resting}
        assert members == set(group.members)
        assert len(members) == min(len(actors), self.driver.config.max_size)
        for member in group.members.values():
            assert self.given[resting, member.member_id] == member.assignment != b""

    def run_without_faults(self, actors: list[Consumer], rounds: int) -> None:
        for _ in range(rounds):
            for consumer in actors:
                if consumer.joining is not None or consumer.syncing is not None:
                    continue
                if consumer.generation < 0:
                    self.send_join(consumer, 9)
                elif (consumer.generation, consumer.member_id) not in self.given:
                    self.send_sync(consumer)
                elif self.send_heartbeat(consumer) is not E.NONE:
                    consumer.generation = -1
            self.driver.pass_time(SESSION_MS // 4)
            self.expire_model()
            self.settle()

    # -- actions of members -------------------------------------------------------------------------------------------

    @rule(target=consumers, instance=st.sampled_from((None, None, "a", "b")), protocols=st.sampled_from(PROTOCOLS))
    def begin(self, instance: str | None, protocols: tuple[tuple[str, bytes], ...]) -> Consumer:
        consumer = Consumer(instance, protocols)
        self.alive.append(consumer)
        return consumer

    @rule(consumer=consumers, protocols=st.none() | st.sampled_from(PROTOCOLS), version=st.sampled_from((3, 5, 9)))
    def join(self, consumer: Consumer, protocols: tuple[tuple[str, bytes], ...] | None, version: int) -> None:
        if consumer.joining is None:
            consumer.protocols = protocols or consumer.protocols
            self.send_join(consumer, version)

    def send_join(self, consumer: Consumer, version: int) -> None:
        instance = consumer.instance if version >= 5 else None
        consumer.joining = self.driver.join(
            consumer.member_id, instance=instance, protocols=consumer.protocols, version=version
        )
        consumer.syncing = None
        self.settle()

    @rule(consumer=consumers)
    def sync(self, consumer: Consumer) -> None:
        if consumer.generation >= 0 and consumer.syncing is None and consumer.joining is None:
            self.send_sync(consumer)

    def send_sync(self, consumer: Consumer) -> None:
        assignments = {
            name: f"{consumer.generation}/{name}/{len(self.driver.log)}".encode() for name in consumer.members
        }
        consumer.syncing = self.driver.sync(
            consumer.member_id, consumer.generation, assignments, instance=consumer.instance, protocol=None
        )
        self.settle()

    @rule(consumer=consumers)
    def beat(self, consumer: Consumer) -> None:
        self.send_heartbeat(consumer)

    def send_heartbeat(self, consumer: Consumer) -> E:
        error = self.driver.heartbeat(consumer.member_id, consumer.generation, consumer.instance)
        if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.forget(consumer)
        return error

    @rule(consumer=consumes(consumers))
    def leave(self, consumer: Consumer) -> None:
        self.driver.leave((consumer.member_id, consumer.instance))
        self.alive.remove(consumer)
        self.settle()

    @rule(target=consumers, consumer=consumes(consumers))
    def restart(self, consumer: Consumer) -> Consumer:
        """Kill a process without a leave. A static one returns as the same member."""
        self.alive.remove(consumer)
        again = Consumer(consumer.instance, consumer.protocols)
        self.alive.append(again)
        return again

    @rule(target=consumers, consumer=consumes(consumers))
    def die(self, consumer: Consumer) -> object:
        self.alive.remove(consumer)
        return multiple()

    def forget(self, consumer: Consumer) -> None:
        consumer.member_id, consumer.generation, consumer.members = "", -1, []
        consumer.joining = consumer.syncing = None

    def settle(self) -> None:
        """Let the members read their answers."""
        for consumer in self.alive:
            self.read_join(consumer)
            self.read_sync(consumer)

    def read_join(self, consumer: Consumer) -> None:
        answer = consumer.joining
        if answer is None or (answer.response is None and answer.failed is None):
            return
        consumer.joining = None
        if answer.failed is not None:
            return
        response = answer.response
        if answer.error is E.MEMBER_ID_REQUIRED:
            assert not consumer.member_id
            consumer.member_id = response.member_id
        elif answer.error is E.NONE:
            self.highest = max(self.highest, response.generation_id)
            consumer.member_id, consumer.generation = response.member_id, response.generation_id
            consumer.members = [member.member_id for member in response.members]
            if response.members:
                assert response.leader == consumer.member_id
                assert response.skip_assignment or consumer.member_id in consumer.members
                self.one_leader(consumer, bool(response.skip_assignment))
            if response.skip_assignment:
                consumer.members = []
        elif answer.error is not E.REBALANCE_IN_PROGRESS:
            self.forget(consumer)

    def one_leader(self, consumer: Consumer, skips: bool) -> None:
        """A generation has one leader. Only a static member may replace its previous instance."""
        leader = self.leaders.setdefault(consumer.generation, consumer.member_id)
        assert leader == consumer.member_id or (skips and consumer.instance is not None)
        self.leaders[consumer.generation] = consumer.member_id

    def read_sync(self, consumer: Consumer) -> None:
        answer = consumer.syncing
        if answer is None or (answer.response is None and answer.failed is None):
            return
        consumer.syncing = None
        if answer.failed is not None:
            return
        if answer.error is E.NONE:
            # One generation has one assignment: a repeated request gets the same answer.
            key = consumer.generation, consumer.member_id
            assert self.given.setdefault(key, answer.response.assignment) == answer.response.assignment
        elif answer.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.forget(consumer)
        else:
            assert answer.error in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)
            consumer.generation = -1

    # -- offsets --------------------------------------------------------------------------------------------------

    @rule(consumer=consumers, partition=st.sampled_from(PARTITIONS))
    def commit(self, consumer: Consumer, partition: tuple[str, int]) -> None:
        self.commits += 1
        offset = self.commits
        answer = self.driver.commit(
            {partition: offset},
            member_id=consumer.member_id,
            generation=consumer.generation,
            instance=consumer.instance if consumer.generation >= 0 else None,
        )
        if isinstance(answer, Waiting) and answer.failed is None:
            self.model[partition] = self.written[partition] = offset

    @rule(producer=st.sampled_from(PRODUCERS), partition=st.sampled_from(PARTITIONS))
    def commit_in_transaction(self, producer: int, partition: tuple[str, int]) -> None:
        self.commits += 1
        answer = self.driver.commit_in_transaction(producer, {partition: self.commits})
        if isinstance(answer, Waiting) and answer.failed is None:
            self.pending.setdefault(producer, {})[partition] = self.commits, self.commits

    @rule(producer=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        self.driver.marker(producer, commit)
        for partition, (offset, order) in self.pending.pop(producer, {}).items():
            if commit and self.written.get(partition, 0) < order:
                self.model[partition], self.written[partition] = offset, order

    # -- failures -----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((0, 1, 1000, SESSION_MS // 2, SESSION_MS, 3 * SESSION_MS)))
    def advance_time(self, ms: int) -> None:
        self.driver.refuse = None
        self.driver.pass_time(ms)
        self.expire_model()
        self.settle()

    def expire_model(self) -> None:
        """Remove expired offsets from the model. The log must show the expiry, and a member must not need them."""
        for partition in tuple(self.model):
            if self.driver.fetch(*partition) == -1:
                assert partition not in {key for offsets in self.pending.values() for key in offsets}
                del self.model[partition], self.written[partition]
        if GROUP not in self.driver.coordinator.groups:
            self.given.clear()  # a new group of that name counts its generations from 1
            self.leaders.clear()

    @rule()
    def reject_next_append(self) -> None:
        self.driver.refuse = E.NOT_ENOUGH_REPLICAS

    @rule()
    def fail_over(self) -> None:
        self.driver.refuse = None
        self.driver.fail_over()
        for consumer in self.alive:
            consumer.joining = consumer.syncing = None  # the connection was closed; they ask again
        # Unwritten state is lost, so the numbers of unfinished generations are reused.
        current = self.driver.coordinator.registry.find(GROUP, ClassicGroup)
        generation = current.generation if current is not None else -1
        self.given = {key: value for key, value in self.given.items() if key[0] <= generation}
        self.leaders = {key: value for key, value in self.leaders.items() if key < generation}
        for consumer in self.alive:
            if consumer.generation > generation:
                consumer.generation, consumer.members = -1, []
        self.settle()

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def offsets_equal_the_models(self) -> None:
        if not hasattr(self, "driver"):
            return
        unstable = {partition for offsets in self.pending.values() for partition in offsets}
        for partition in PARTITIONS:
            assert self.driver.fetch(*partition) == self.model.get(partition, -1)
            stable = self.driver.fetch(*partition, stable=True)
            assert stable == (E.UNSTABLE_OFFSET_COMMIT if partition in unstable else self.model.get(partition, -1))

    @invariant()
    def reload_gives_the_same_state(self) -> None:
        if not hasattr(self, "driver"):
            return
        mine, other = self.driver.coordinator, self.driver.reloaded()
        assert durable_offsets(mine) == durable_offsets(other)
        group, loaded = mine.registry.find(GROUP, ClassicGroup), other.registry.find(GROUP, ClassicGroup)
        if group is not None and group.state is S.STABLE:
            assert loaded is not None
            assert describe(group) == describe(loaded)
        elif loaded is not None and group is not None:
            assert loaded.generation <= group.generation

    @invariant()
    def group_is_consistent(self) -> None:
        if not hasattr(self, "driver"):
            return
        group = self.driver.coordinator.registry.find(GROUP, ClassicGroup)
        if group is None:
            return
        assert (group.leader in group.members) if group.members else group.leader is None
        assert {m.group_instance_id: m.member_id for m in group.members.values() if m.is_static} == group.static_members
        assert not set(group.pending_joins) & set(group.members)
        if group.state is S.EMPTY:
            assert not group.members
        elif group.state is S.PREPARING_REBALANCE:
            assert group.join_due_ms is not None, "nothing would ever end the transaction"
        else:
            assert group.members
            assert all(member.joining is None for member in group.members.values())
        if group.state is S.COMPLETING_REBALANCE:
            assert group.sync_due_ms is not None, "nothing would ever end the transaction"
        if group.state is not S.COMPLETING_REBALANCE:
            assert all(member.syncing is None for member in group.members.values())
        for member in group.members.values():
            assert member.due_ms is not None
        deadline = self.driver.coordinator.deadline()
        due = group.next_due_ms()
        assert due is None or (deadline is not None and deadline <= due)


def durable_offsets(coordinator: GroupCoordinator) -> tuple[object, object]:
    committed = {
        partition: (kept.offset, kept.metadata, kept.commit_timestamp_ms)
        for partition, kept in coordinator.offsets.committed(GROUP).items()
    }
    pending = {
        producer: {partition: kept.offset for partition, kept in groups.get(GROUP, {}).items()}
        for producer, groups in coordinator.offsets.open_transactions().items()
    }
    return committed, pending


def describe(group: ClassicGroup) -> object:
    return (
        group.state,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        [
            (m.member_id, m.group_instance_id, m.assignment, m.session_timeout_ms, m.rebalance_timeout_ms)
            for m in group.members.values()
        ],
    )


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
