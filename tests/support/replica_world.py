"""Three replicas of one partition in memory: real logs, terms, followers, tree and controller, and a bad network.

`ReplicaWorld` takes one random step at a time. Messages are delivered in any order, or lost. Brokers are killed, lose
unsynced data, lose their session without noticing, and read the metadata late. After each step, the invariants of the
cluster are checked on the disks and on a ledger of all batches that a leader has ever written. A violation raises
`InvariantError`. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from oncelog.cluster.brokers import BROKER_EPOCHS, BrokerInfo, epoch_path
from oncelog.cluster.controller.reconcile import ClusterView, Partition, reconcile
from oncelog.cluster.follower import Append, Fetch, Fetched, Following, Restart, Signal, Truncate
from oncelog.cluster.leader import IsrProposal, Leadership
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.state_writes import isr_write
from oncelog.cluster.store import Operation, StoreError, ensure
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topics import PartitionInfo, topic_id_path
from oncelog.cluster.waits import Outcome
from oncelog.log.log import Log
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.logs import NOW, append_as_follower, batch, delete_old_segments, of_producer, restart_at
from support.replica_invariants import InvariantError, Key, Ledger, batches, check_equal, check_offsets, last_key
from support.replica_process import LeaderLog, Process

BROKERS = (1, 2, 3)
MIN_ISR = 2
MAX_LAG_MS = 40
STATE, TOPIC_ID = state_path("t", 0), UUID(int=1)


class LastMemberLostError(Exception):
    """The world has come to a state in which records may be lost."""


class ReplicaWorld:
    """The cluster. Call `run`, then `settle`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0
        self.tree = MemoryStore(lambda: self.now)
        self.sessions: dict[int, int] = {}
        self.processes = {number: Process(number) for number in BROKERS}
        self.messages: list[tuple[bool, Callable[[], object]]] = []
        self.ledger = Ledger()
        self.acknowledged: list[tuple[Key, int]] = []
        """The batch and the last offset of each acks=all append that a producer was told to be committed."""
        self.outcomes: Counter[Outcome] = Counter()
        self.faults: Counter[str] = Counter()
        self.sequences: dict[int, int] = {}
        self.slow = self.rng.choice((None, *BROKERS))
        """A broker that fetches rarely, so that it leaves the ISR."""
        self.trouble = self.rng.choice((0.3, 1.0, 1.5))
        """A factor of the number of faults."""
        self.slow_tree = self.rng.random() < 0.4
        """Whether writes to the tree take long."""
        parents = ("/brokers/ids", BROKER_EPOCHS, STATE.rpartition("/")[0])
        ensure(self.tree, *parents, "/controller_epoch", topic_id_path(TOPIC_ID))
        self.tree.create(STATE, encode_state(PartitionState(-1, 0, BROKERS, 0)))
        for number in BROKERS:
            self.start(number)

    # --- processes ---

    def start(self, number: int) -> None:
        self.processes[number].start()
        self.register(self.processes[number])

    def register(self, process: Process) -> None:
        """Open a session. The broker epoch is the version of the broker's node."""
        path = epoch_path(process.number)
        ensure(self.tree, path)
        process.epoch = self.tree.get(path).version + 1
        self.tree.set(path, b"lost" if process.lost_unsynced else b"")
        self.sessions[process.number] = self.tree.open_session(str(process.number), 1 << 40)
        self.tree.create(f"/brokers/ids/{process.number}", session=self.sessions[process.number])

    def kill(self, number: int) -> None:
        process = self.processes[number]
        process.alive = False
        process.end_term()
        process.log = process.term = process.following = None
        if self.rng.random() < 0.5:
            self.expire(number)

    def expire(self, number: int) -> None:
        session = self.sessions.pop(number, None)
        if session is not None:
            self.tree.close_session(session)

    def lose_power(self, number: int) -> None:
        """Crash the machine. At most one machine may have unsynced data that is needed, so the others sync first."""
        if self.state().complete == (number,):  # it takes records with it
            return
        for other in self.processes.values():
            if other.number != number and other.log is not None:
                other.flush()
            elif other.number != number and other.lost_unsynced:
                return
        self.kill(number)
        process = self.processes[number]
        process.disk.crash(self.rng.randint)
        process.lost_unsynced = True

    # --- the tree ---

    def state(self) -> PartitionState:
        return decode_state(self.tree.get(STATE))

    def live(self) -> dict[int, BrokerInfo]:
        found = {}
        for name in self.tree.children("/brokers/ids"):
            node = self.tree.get(epoch_path(int(name)))
            found[int(name)] = BrokerInfo(node.version, lost_unsynced=node.data == b"lost")
        return found

    def control(self) -> None:
        """Let the controller write what it wants. Its view may be old when it writes."""
        version = self.tree.get("/controller_epoch").version
        partition = Partition("t", TOPIC_ID, 0, PartitionInfo(BROKERS, self.state()), False, MIN_ISR)
        view = ClusterView(0, version, self.live(), [partition])
        preferred = {("t", 0)} if self.rng.random() < 0.3 else set[tuple[str, int]]()
        for write in reconcile(view, preferred):
            self.send(partial(self._control, write.operations))

    def _control(self, operations: tuple[Operation, ...]) -> None:
        before = self.state()
        try:
            self.tree.multi(operations)
        except StoreError:
            return
        state = self.check_last_member()
        if state.leader != before.leader or state.leader_epoch != before.leader_epoch:
            self.check_leader(state)
        for process in self.processes.values():
            is_member = process.number in state.complete and len(state.complete) > 1
            if process.lost_unsynced and process.alive and not is_member:
                process.lost_unsynced = False
                self.tree.set(epoch_path(process.number), b"")
                process.epoch = self.tree.get(epoch_path(process.number)).version

    def check_last_member(self) -> PartitionState:
        """Stop if all members of the ISR and ELR have lost unsynced data."""
        state = self.state()
        if all(self.processes[member].lost_unsynced for member in state.complete):
            raise LastMemberLostError
        return state

    def read_metadata(self, process: Process) -> None:
        """Let a broker become leader or follower, as the tree says."""
        if process.number not in self.sessions:
            process.end_term()
            process.term = process.following = process.seen = None
            self.register(process)
        state = self.state()
        live = {number: broker.epoch for number, broker in self.live().items()}
        if process.term is not None:
            if process.term.state_written(state):
                process.term.live_changed(live, self.now)
                self.watch(process)
                return
            process.end_term()
        elif process.seen is not None and state.leader_epoch <= process.seen.leader_epoch:
            return
        process.seen = state
        process.term = process.following = None
        if state.leader == process.number:
            if state.leader_broker_epoch == process.epoch:
                self.lead(process, state, live)
            else:
                process.seen = None  # wait until the controller has elected this process
        elif state.leader >= 0:
            process.following = Following(state.leader, state.leader_epoch, process.open_log)

    def lead(self, process: Process, state: PartitionState, live: dict[int, int]) -> None:
        log = process.open_log
        self.ledger.lead(state.leader_epoch, (process.number, process.incarnation))
        process.term = Leadership(
            process.number,
            BROKERS,
            state,
            LeaderLog(log),
            min_insync_replicas=MIN_ISR,
            max_lag_ms=MAX_LAG_MS,
            live=live,
            now_ms=self.now,
        )
        process.term.appended()
        process.writing = False
        self.watch(process)

    # --- producing ---

    def produce(self, process: Process) -> None:
        term, log = process.term, process.open_log
        if term is None:
            return
        acks_all = self.rng.random() < 0.8
        if acks_all and term.under_min_isr:
            return
        epoch = term.leader_epoch
        producer = self.rng.randint(0, 3)
        try:
            self._append(log, producer, epoch)
        except ProtocolError:
            return  # a failover has left this producer with other sequences
        self.ledger.note(log)
        last = log.log_end_offset - 1
        key = last_key(log)
        term.appended()
        if acks_all:
            wait = term.waits.add(last, partial(self.finished, key, last))
            if self.rng.random() < 0.05:
                self.send(partial(wait.finish, Outcome.TIMED_OUT))
        self.watch(process)

    def _append(self, log: Log, producer: int, epoch: int) -> None:
        if not producer:
            log.append_as_leader(batch(self.rng.randint(1, 3)), leader_epoch=epoch, now_ms=NOW)
        elif (entry := log.producer_entries.get(producer)) and entry.txn_start >= 0 and self.rng.random() < 0.4:
            log.append_control(
                self.rng.random() < 0.5,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                leader_epoch=epoch,
                now_ms=NOW,
                transaction_version=0,
            )
        else:
            sequence = 0 if entry is None else entry.last_sequence + 1
            records = of_producer(producer, sequence, self.rng.randint(1, 2), txn=True)
            log.append_as_leader(records, leader_epoch=epoch, now_ms=NOW)

    def finished(self, key: Key, offset: int, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1
        if outcome is Outcome.COMMITTED:
            self.acknowledged.append((key, offset))

    def delete_records(self, process: Process) -> None:
        if process.term is not None and process.open_log.high_watermark > 6:
            log = process.open_log
            log.advance_log_start(self.rng.randint(log.log_start_offset, log.high_watermark - 5))
            delete_old_segments(log)
            process.term.deleted()

    # --- replicating ---

    def send(self, message: Callable[[], object], *, may_be_lost: bool = False) -> None:
        self.messages.append((may_be_lost, message))

    def fetch_sometimes(self, process: Process) -> None:
        if process.number != self.slow or self.rng.random() < 0.15:
            self.fetch(process)

    def fetch(self, process: Process) -> None:
        following = process.following
        asked = None if following is None else following.next_fetch(process.open_log.log_start_offset)
        if following is None or asked is None:
            return
        message = partial(self.serve, following.leader, process.number, process.epoch, process.incarnation, asked)
        self.send(message, may_be_lost=True)

    def serve(self, leader: int, follower: int, epoch: int, incarnation: int, asked: Fetch) -> None:
        process = self.processes[leader]
        if not process.alive:
            return
        answer = self.answer(process, follower, epoch, asked)
        self.send(partial(self.receive, follower, incarnation, asked, leader, answer), may_be_lost=True)

    def answer(self, process: Process, follower: int, epoch: int, asked: Fetch) -> Fetched:
        term, log = process.term, process.open_log
        if term is None:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            diverging = term.check_fetch(
                current_leader_epoch=asked.leader_epoch,
                offset=asked.offset,
                last_fetched_epoch=asked.last_fetched_epoch,
            )
            if diverging is not None:
                return Fetched(diverging=diverging)
            records = log.read(asked.offset, self.rng.choice((100, 1000)), upto=log.log_end_offset, at_least_one=True)
            term.fetched(follower, epoch, asked.offset, log_start=asked.log_start, now_ms=self.now)
        except ProtocolError as error:
            return Fetched(error.code)
        self.watch(process)
        return Fetched(records=bytes(records), high_watermark=log.high_watermark, log_start=log.log_start_offset)

    def receive(self, number: int, incarnation: int, asked: Fetch, leader: int, response: Fetched) -> None:
        process = self.processes[number]
        following, log = process.following, process.log
        if not process.alive or process.incarnation != incarnation or following is None or log is None:
            return
        action = following.received(asked, response)
        if action is Signal.ASK_RANGE:
            source = self.processes[leader]
            if source.term is None or source.term.leader_epoch != following.leader_epoch:
                return
            action = following.range_known(source.open_log.log_start_offset, source.open_log.log_end_offset)
        match action:
            case Append():
                append_as_follower(log, action.records, leader_epoch=following.leader_epoch, now_ms=NOW)
                log.advance_high_watermark(action.high_watermark)
                log.advance_log_start(min(action.log_start, log.high_watermark))
            case Truncate():
                self.faults["truncated"] += 1
                log.truncate_to(action.offset, NOW)
                process.write_checkpoint()
            case Restart():
                self.faults["restarted log"] += 1
                restart_at(log, action.offset, NOW)
                process.write_checkpoint()
            case Signal():
                return
        self.check_replica(process)

    # --- the ISR ---

    def propose(self, process: Process) -> None:
        term = process.term
        if term is None or process.writing:
            return
        term.passed(self.now)
        proposal = term.proposal()
        if proposal is not None:
            process.writing = True
            self.send(partial(self.write_isr, process, process.incarnation, term, proposal))

    def write_isr(self, process: Process, incarnation: int, term: Leadership, proposal: IsrProposal) -> None:
        operations = list(isr_write("t", TOPIC_ID, 0, proposal).operations)
        kind = self.rng.random()
        written = False
        if kind < 0.9:
            try:
                self.tree.multi(operations)
                written = True
            except StoreError:
                written = False
            self.check_last_member()
        if not process.alive or process.incarnation != incarnation or process.term is not term:
            return
        process.writing = False
        if kind < 0.1 or kind > 0.9:
            self.faults["unknown outcome"] += 1
            term.unknown()
            if kind < 0.05:
                self.send(partial(self._late_write, operations))
        elif written:
            term.state_written(replace(proposal.state, version=proposal.state.version + 1))
        else:
            term.refused()
        self.watch(process)

    def _late_write(self, operations: list[Operation]) -> None:
        try:
            self.tree.multi(operations)
        except StoreError:
            return
        self.check_last_member()

    # --- invariants ---

    def watch(self, process: Process) -> None:
        """Check a leader after its high watermark may have advanced."""
        term, log = process.term, process.log
        if term is not None and log is not None:
            self.ledger.commit(log)
            self.ledger.expose(term.leader_epoch, term.exposed_high_watermark)
            check_offsets(log)

    def check_leader(self, state: PartitionState) -> None:
        """Check that an elected leader has all committed batches."""
        log = self.processes[state.leader].log if state.leader >= 0 else None
        if log is not None:
            self.ledger.check_leader(log, state.leader_epoch)

    def check_replica(self, process: Process) -> None:
        log = process.open_log
        self.ledger.note(log)
        check_offsets(log)
        for other in self.processes.values():
            if other is not process and other.log is not None and last_key(other.log) == last_key(log):
                check_equal(log, other.log)

    # --- running ---

    def step(self) -> None:
        """Take one random step."""
        self.now += self.rng.randint(0, 4)
        process = self.processes[self.rng.choice(BROKERS)]
        kind = self.rng.random()
        if kind >= 0.975 and self.rng.random() > self.trouble:
            return
        if self.messages and kind < 0.45:
            slot = self.rng.randrange(len(self.messages))
            if self.slow_tree and not self.messages[slot][0] and self.rng.random() < 0.85:
                return
            may_be_lost, message = self.messages.pop(slot)
            if may_be_lost and self.rng.random() < 0.1:
                self.faults["message lost"] += 1
            else:
                message()
            return
        if not process.alive:
            if kind < 0.7:
                self.start(process.number)
            else:
                self.control()
            return
        for limit, action in (
            (0.60, self.fetch_sometimes),
            (0.72, self.produce),
            (0.84, self.read_metadata),
            (0.91, self.propose),
            (0.95, lambda _process: self.control()),
            (0.965, Process.flush),
            (0.97, Process.write_checkpoint),
            (0.975, self.delete_records),
        ):
            if kind < limit:
                action(process)
                return
        if kind < 0.985:
            self.faults["killed"] += 1
            self.kill(process.number)
        elif kind < 0.99:
            self.faults["power lost"] += 1
            self.lose_power(process.number)
        elif kind < 0.995:
            self.faults["session expired"] += 1
            self.expire(process.number)
        else:
            self.now += 3 * MAX_LAG_MS
            self.faults["time passed"] += 1

    def run(self, steps: int = 400) -> None:
        """Take random steps, then settle. Raises InvariantError."""
        try:
            for _ in range(steps):
                self.step()
            self.settle()
        except LastMemberLostError:
            self.faults["last member lost"] += 1

    def settle(self) -> None:
        """Heal everything. Then the ISR is full, the logs are equal, and nothing acknowledged is lost."""
        for _ in range(400):
            for process in self.processes.values():
                if not process.alive:
                    self.start(process.number)
                self.now += 1
                self.control()
                self.deliver()
                self.read_metadata(process)
                self.fetch(process)
                self.deliver()
                self.propose(process)
                self.deliver()
            if self.is_settled():
                break
        else:
            raise InvariantError(12, f"the cluster does not settle: {self.state()}, {self.logs()}")
        log = self.logs()[0]
        found = {(header.partition_leader_epoch, header.base_offset) for header, _ in batches(log)}
        for key, offset in self.acknowledged:
            if offset >= log.log_start_offset and key not in found:
                raise InvariantError(5, f"the acknowledged record at {offset} of batch {key} is lost")
        for process in self.processes.values():
            self.check_replica(process)

    def deliver(self) -> None:
        while self.messages:
            self.messages.pop(0)[1]()

    def logs(self) -> list[Log]:
        return [process.open_log for process in self.processes.values()]

    def is_settled(self) -> bool:
        terms = [process.term for process in self.processes.values() if process.term is not None]
        ends = {(log.log_end_offset, last_key(log)) for log in self.logs()}
        return (
            len(terms) == 1
            and set(self.state().isr) == set(BROKERS)
            and len(ends) == 1
            and all(log.high_watermark == log.log_end_offset for log in self.logs())
        )
