"""Run random clients, zombies, retries, timeouts, lost appends and failovers against one transaction coordinator.

The model does not know how the coordinator decides: it watches the log, the markers and the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Markers
from oncelog.coordinator.transactions.coordinator import TransactionConfig, TransactionCoordinator
from oncelog.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata, TransactionState
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS, InitProducerIdRequest
from oncelog.protocol.topics import TopicPartition
from support.transaction_driver import Driver

S = TransactionState
NAMES = ("a", "b")
PARTITIONS: tuple[TopicPartition, ...] = (("x", 0), ("x", 1), ("y", 0))
ERRORS = (
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
)
# Written again here instead of imported, because the test checks the coordinator's own table.
LEGAL = {
    (S.EMPTY, S.EMPTY),
    (S.EMPTY, S.ONGOING),
    (S.EMPTY, S.PREPARE_ABORT),
    (S.ONGOING, S.ONGOING),
    (S.ONGOING, S.PREPARE_COMMIT),
    (S.ONGOING, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (S.PREPARE_ABORT, S.COMPLETE_ABORT),
    *((done, new) for done in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT) for new in (S.EMPTY, S.ONGOING, S.PREPARE_ABORT)),
}


@dataclass
class Ending:
    """A decision in the log, and the partitions that have not confirmed its marker."""

    commit: bool
    marker: tuple[int, int]
    partitions: frozenset[TopicPartition]
    unwritten: set[TopicPartition] = field(default_factory=set)


class WatchedDriver(Driver):
    """Check that every record may follow the previous one, and remember acknowledged decisions."""

    def __init__(self, config: TransactionConfig) -> None:
        super().__init__(config)
        self.seen: dict[str, TransactionMetadata] = {}
        self.endings: dict[str, Ending] = {}
        self.outcomes: dict[tuple[str, int, int], bool] = {}
        self.owners: dict[int, str] = {}
        self.promised: dict[str, tuple[int, int]] = {}
        """The producer of the next transaction, as EndTxn answered."""

    def apply(self, effects: Effects, token: Any = None) -> Any:
        before = len(self.log)
        coordinator = self.coordinator
        replay = coordinator.replay

        def watched(record: CoordinatorRecord) -> None:
            replay(record)
            self.check(record)

        coordinator.replay = watched  # type: ignore[method-assign]
        try:
            return super().apply(effects, token)
        finally:
            del coordinator.replay
            assert len(self.log) - before in (0, len(effects.records))

    def check(self, record: CoordinatorRecord) -> None:
        name: str = record.key.transactional_id  # type: ignore[attr-defined]
        old = self.seen.pop(name, None)
        if record.value is None:
            assert old is not None
            assert old.state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
            return
        new = self.seen[name] = self.state(name)
        for producer_id in (new.producer_id, new.holder[0]):
            assert self.owners.setdefault(producer_id, name) == name, "two ids share a producer id"
        if old is None:
            assert new.state is S.EMPTY
            return
        assert (old.state, new.state) in LEGAL
        if new.producer_id == old.producer_id:
            assert new.producer_epoch >= old.producer_epoch
        if old.kept and new.kept:
            assert (new.producer_id, new.producer_epoch) == (old.producer_id, old.producer_epoch)
        if old.kept or new.kept:
            assert new.state is S.ONGOING or new.state in (S.PREPARE_COMMIT, S.PREPARE_ABORT)
            assert new.partitions == old.partitions, "a partition was added to a kept transaction"
        if new.state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
            assert new.producer_id == old.producer_id, "the markers are another producer's"
            commit = new.state is S.PREPARE_COMMIT
            self.endings[name] = Ending(
                commit, (new.producer_id, new.producer_epoch), old.partitions, set(old.partitions)
            )
            if new.client_version >= 2:
                key = name, *old.holder
                # Only an epoch that no client can have may end twice.
                assert key not in self.outcomes or old.producer_epoch == MAX_EPOCH
                self.outcomes[key] = commit
        if new.state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
            ending = self.endings.pop(name)
            assert ending.commit is (new.state is S.COMPLETE_COMMIT), "the outcome changed after the decision"
            assert not ending.unwritten, "completed without a marker"
            assert self.promised.pop(name, new.holder) == new.holder, "another producer follows than was promised"

    def report(self, markers: Markers, results: dict[TopicPartition, ErrorCode]) -> None:
        ending = self.endings.get(markers.transactional_id)
        if ending is not None and ending.marker == (markers.producer_id, markers.producer_epoch):
            ending.unwritten -= {partition for partition, error in results.items() if not error}
        self.apply(self.coordinator.markers_written(markers, results, self.now_ms))


producers = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 10])
"""How far back in the history of sessions: usually the newest ones, sometimes zombies."""


class TransactionMachine(RuleBasedStateMachine):
    driver: WatchedDriver

    @initialize(version=st.sampled_from([0, 1, 2, 2, 2]))
    def begin(self, version: int) -> None:
        config = TransactionConfig(transaction_version=version, id_expiration_ms=300_000, two_phase_commit=True)
        self.driver = WatchedDriver(config)
        self.driver.start()
        self.version = version
        self.known: list[tuple[str, tuple[int, int]]] = []
        self.old_markers: list[Markers] = []
        self.last: Any = None
        for name in NAMES:
            self.init(name, (-1, -1), 60_000)

    def who(self, pick: int) -> tuple[str, tuple[int, int]]:
        """Return a (transactional id, producer) that a client holds, usually one of the newest."""
        return self.known[max(0, len(self.known) - 1 - pick)]

    def run(self, request: Any) -> None:
        self.last = request
        request()

    # -- clients -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), commit=st.booleans(), api=st.sampled_from([4, 5, 5]))
    def whole_transaction(self, name: str, commit: bool, api: int) -> None:
        """Run a transaction of an undisturbed client. Its markers stay pending."""
        self.write_all_markers()
        state = self.driver.coordinator.transactions.get(name)
        if state is None or state.state is S.ONGOING or state.producer_epoch >= MAX_EPOCH:
            return
        self.known.append((name, (state.producer_id, state.producer_epoch)))
        self.add(0, set(PARTITIONS), 2 if api == 5 else 0)
        self.end(0, commit, api)

    @rule(name=st.sampled_from(NAMES), timeout_ms=st.sampled_from([1, 1000, 60_000]))
    def new_session(self, name: str, timeout_ms: int) -> None:
        self.run(lambda: self.init(name, (-1, -1), timeout_ms))

    @rule(pick=producers, shift=st.sampled_from([0, 0, 0, 1, -1]))
    def bump_epoch(self, pick: int, shift: int) -> None:
        name, (producer_id, epoch) = self.who(pick)
        if self.version >= 1 and epoch + shift >= 0:
            self.run(lambda: self.init(name, (producer_id, epoch + shift), 1000))

    @rule(
        name=st.sampled_from(NAMES),
        timeout_ms=st.sampled_from([1, 60_000]),
        two_phase=st.booleans(),
        written=st.booleans(),
    )
    def keep(self, name: str, timeout_ms: int, two_phase: bool, written: bool) -> None:
        """Start a session that keeps an open transaction (KIP-939). With `written`, there is one to keep."""
        if written:
            self.write_all_markers()
            state = self.driver.coordinator.transactions.get(name)
            if state is not None and not state.kept and state.producer_epoch < MAX_EPOCH:
                self.known.append((name, state.holder))
                self.add(0, {PARTITIONS[0]}, 2)

        def request() -> None:
            before = self.driver.coordinator.transactions.get(name)
            response = self.driver.init(
                name, timeout_ms=timeout_ms, version=6, keep_prepared_txn=True, enable2_pc=two_phase
            )
            if response.error_code:
                assert self.version < 2 or (before is not None and before.prepared)
                return
            producer = response.producer_id, response.producer_epoch
            after = self.driver.state(name)
            assert after.holder == producer
            assert producer not in [who for _, who in self.known], "two sessions have the same producer"
            self.known.append((name, producer))
            ongoing = response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
            if before is not None and before.state is S.ONGOING:
                assert ongoing == (before.producer_id, before.producer_epoch)
                assert after.partitions == before.partitions
            else:
                assert (after.state, ongoing) == (S.EMPTY, (-1, -1))

        self.run(request)

    @rule(name=st.sampled_from(NAMES), commit=st.booleans())
    def end_kept(self, name: str, commit: bool) -> None:
        """End a kept transaction, as its last session does."""
        state = self.driver.coordinator.transactions.get(name)
        if state is not None and state.kept:
            self.known.append((name, state.holder))
            self.end(0, commit, 5)

    def init(self, name: str, producer: tuple[int, int], timeout_ms: int) -> None:
        before = self.driver.coordinator.transactions.get(name)
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        token = object()
        effects = self.driver.coordinator.init_producer_id(request, 5, token, self.driver.now_ms)
        response = self.driver.apply(effects, token)
        if response.error_code:
            assert (response.producer_id, response.producer_epoch) == (-1, -1)
            return
        state = self.driver.state(name)
        assert (state.producer_id, state.producer_epoch, state.state) == (
            response.producer_id,
            response.producer_epoch,
            S.EMPTY,
        )
        assert response.producer_epoch < MAX_EPOCH
        if before is not None:
            assert before.state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
            if producer == (-1, -1):  # a new session never gets what another client holds
                assert (before.producer_id, before.producer_epoch) != (state.producer_id, state.producer_epoch)
        self.known.append((name, (response.producer_id, response.producer_epoch)))

    @rule(
        pick=producers,
        partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1),
        client=st.sampled_from([0, 2, 2]),
    )
    def add(self, pick: int, partitions: set[TopicPartition], client: int) -> None:
        name, producer = self.who(pick)
        client_version = client  # of a client that may not know the current level

        def request() -> None:
            error = self.driver.add(name, producer, *partitions, client_version=client_version)
            if error is ErrorCode.NONE:
                state = self.driver.state(name)
                assert (state.producer_id, state.producer_epoch) == producer
                assert state.state is S.ONGOING
                assert not state.kept
                assert partitions <= state.partitions

        self.run(request)

    @rule(pick=producers, commit=st.booleans(), api=st.sampled_from([1, 4, 5, 5]))
    def end(self, pick: int, commit: bool, api: int) -> None:
        name, producer = self.who(pick)
        api_version = api

        def request() -> None:
            before = self.driver.coordinator.transactions.get(name)
            response = self.driver.end(name, producer, commit, version=api_version)
            if response.error_code != ErrorCode.NONE:
                return
            assert before is not None
            after = self.driver.state(name)
            if before == after:  # nothing to do: it already had that outcome
                assert after.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
            else:
                assert before.holder == producer
                assert before.state is S.ONGOING or not commit
            if api_version >= 5 and after.prepared:
                self.driver.promised[name] = response.producer_id, response.producer_epoch
            if api_version >= 5:
                assert self.driver.outcomes[name, *producer] is commit, "answered with another outcome than it had"
                self.known.append((name, (response.producer_id, response.producer_epoch)))

        self.run(request)

    @precondition(lambda self: self.last is not None)
    @rule()
    def send_again(self) -> None:
        self.last()

    # -- the environment ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.driver.markers)
    @rule(data=st.data())
    def write_some_markers(self, data: st.DataObject) -> None:
        markers = self.driver.markers.pop(data.draw(st.integers(0, len(self.driver.markers) - 1)))
        results = {partition: data.draw(st.sampled_from(ERRORS)) for partition in markers.partitions}
        self.driver.report(markers, results)
        self.old_markers.append(markers)
        if self.driver.coordinator.needs(markers):
            self.driver.markers.append(markers)

    @precondition(lambda self: self.driver.markers)
    @rule()
    def write_all_markers(self) -> None:
        for markers in self.driver.markers:
            self.driver.report(markers, dict.fromkeys(markers.partitions, ErrorCode.NONE))
        self.driver.markers = []

    @precondition(lambda self: self.old_markers)
    @rule(pick=producers)
    def report_late_markers(self, pick: int) -> None:
        markers = self.old_markers[pick % len(self.old_markers)]
        ending = self.driver.endings.get(markers.transactional_id)
        if ending is None or ending.marker != (markers.producer_id, markers.producer_epoch):
            before = len(self.driver.log)
            self.driver.report(markers, dict.fromkeys(markers.partitions, ErrorCode.NONE))
            assert len(self.driver.log) == before

    @rule(ms=st.sampled_from([0, 1, 500, 1001, 60_001, 300_001]))
    def advance_time(self, ms: int) -> None:
        self.driver.tick(ms)

    @rule(version=st.sampled_from([0, 1, 2, 2, 2, 2]))
    def change_level(self, version: int) -> None:
        self.version = version
        config = replace(self.driver.config, transaction_version=version)
        self.driver.config = self.driver.coordinator.config = config

    @rule()
    def fail_over(self) -> None:
        self.old_markers += self.driver.markers
        for ending in self.driver.endings.values():
            ending.unwritten = set(ending.partitions)  # the log does not contain which markers are written
        self.driver.reload()

    @rule(pick=producers, commit=st.booleans())
    def reject_decision(self, pick: int, commit: bool) -> None:
        name, producer = self.who(pick)
        before = dict(self.driver.coordinator.transactions)
        self.driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        try:
            self.driver.end(name, producer, commit, version=4)
        except ProtocolError:
            assert self.driver.coordinator.transactions == before
        self.driver.refuse = None

    @precondition(lambda self: self.driver.endings)
    @rule()
    def reject_completion(self) -> None:
        self.driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        try:
            self.write_all_markers()
        except ProtocolError:
            assert self.driver.endings
        self.driver.refuse = None

    @rule(name=st.sampled_from(NAMES))
    def epochs_run_out(self, name: str) -> None:
        """Simulate many sessions in the log."""
        state = self.driver.coordinator.transactions.get(name)
        if state is not None and state.state is S.EMPTY and state.producer_epoch < MAX_EPOCH - 3:
            record = self.driver.coordinator._record(state)
            record.value.producer_epoch = MAX_EPOCH - 3  # type: ignore[union-attr]
            self.driver.write(record)
            self.driver.coordinator._live = False
            self.driver.coordinator.replay(record)
            self.driver.coordinator._live = True
            self.driver.seen[name] = self.driver.state(name)
            self.known.append((name, (state.producer_id, MAX_EPOCH - 3)))

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def reload_gives_the_same_state(self) -> None:
        successor = TransactionCoordinator(99, self.driver.ids, self.driver.config)
        for record in self.driver.log:
            successor.replay(record)
        assert successor.transactions == self.driver.coordinator.transactions

    @invariant()
    def prepared_transactions_have_pending_markers(self) -> None:
        prepared = {name for name, state in self.driver.coordinator.transactions.items() if state.prepared}
        assert prepared == set(self.driver.endings)
        under_way = {m.transactional_id for m in self.driver.markers if self.driver.coordinator.needs(m)}
        unwritten = {name for name, ending in self.driver.endings.items() if ending.unwritten}
        assert unwritten <= under_way <= prepared
        if prepared - unwritten:  # everything but the completion is written: a retry must be scheduled
            due_ms = self.driver.coordinator.deadline()
            assert due_ms is not None
            assert due_ms <= self.driver.now_ms + 1000

    @invariant()
    def open_transactions_have_deadlines(self) -> None:
        due_ms = self.driver.coordinator.deadline()
        for state in self.driver.coordinator.transactions.values():
            if state.state is S.ONGOING and state.timeout_ms != NO_TIMEOUT_MS:
                assert due_ms is not None
                assert due_ms <= state.start_ms + state.timeout_ms + 1

    def teardown(self) -> None:
        """Every decided transaction completes, and every id can start again."""
        if not hasattr(self, "driver"):
            return
        self.driver.reload()
        self.write_all_markers()
        assert not self.driver.endings
        for name in NAMES:
            for _ in range(2):
                self.new_session_after_markers(name)

    def new_session_after_markers(self, name: str) -> None:
        response = self.driver.init(name)
        if response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            self.write_all_markers()
            response = self.driver.init(name)
        assert response.error_code == ErrorCode.NONE


TransactionMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestTransactionCoordinator = TransactionMachine.TestCase
