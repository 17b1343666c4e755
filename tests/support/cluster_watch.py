"""Check the invariants of a cluster while it runs: on the disks, on the writes to the tree, and as a consumer.

`DiskWatch` reads the log files of all machines. `StateWatch` sees each write to the tree at the moment of the write.
`Consumers` fetch from every broker that has ever led a partition, so also from one that others have replaced.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Callable, Container, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from oncelog.cluster.brokers import broker_path, epoch_path, read_controller
from oncelog.cluster.controller.reconcile import CONTROLLER_EPOCH
from oncelog.cluster.partition_state import PartitionState, decode_state
from oncelog.cluster.store import Check, Create, Operation, Set
from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import ConnectionLostError
from oncelog.net.security import PLAINTEXT, Security
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.records import BatchHeader, check_crc, decode_control, is_partial, iter_batches, parse_header
from oncelog.protocol.topics import TopicPartition
from oncelog.sim.disk import Content
from oncelog.sim.world import PORT, World
from support.replica_invariants import InvariantError, Ledger, key_of

LOG_FILE = re.compile(r"data/(?P<topic>[^/]+)-(?P<partition>\d+)/\d{20}\.log")
STATE_NODE = re.compile(r"/brokers/topics/(?P<topic>[^/]+)/partitions/(?P<partition>\d+)/state")
RECREATED = "recreated"
"""A topic that is deleted and created again. The logs of all these topics have the same names, so skip them."""
COMPACTED = "compacted"
"""A compacted topic. Replicas compact it at different times, so there is no ledger of its batches."""
CHECK_S = 0.05
MOST_WRITES = 20
"""If the state of a partition changes this often within a second, brokers write in a loop."""
FETCH_S = 0.2
FETCH_TIMEOUT_MS = 1000
_LATEST = -1


@cache
def _partition_of(path: str) -> TopicPartition | None:
    """Return the partition of a log file, or None for another file."""
    match = LOG_FILE.fullmatch(path)
    return None if match is None else (match["topic"], int(match["partition"]))


class _File:
    """The complete batches of one log file."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.is_torn = False
        """Whether the file ends inside a batch."""
        self._data = b""
        self._file: Content | None = None
        self._changes = 0

    def read(self, file: Content) -> list[tuple[BatchHeader, bytes]]:
        """Read the file, and return the batches that are new. All are, after a truncation."""
        if self._file is file and self._changes == file.changes:
            return []
        self._file, self._changes = file, file.changes
        content = file.data
        if not content.startswith(self._data):
            self._data, self.batches = b"", []
        known, pos = len(self.batches), len(self._data)
        data = memoryview(bytes(content))
        while pos < len(data) and not is_partial(data, pos):
            try:
                header = parse_header(data, pos)
                check_crc(header, data[pos : pos + header.size])
            except ProtocolError:
                break  # the process died while it wrote
            self.batches.append((header, bytes(data[pos : pos + header.size])))
            pos += header.size
        self._data = bytes(data[:pos])
        self.is_torn = pos < len(data)
        return self.batches[known:]


class DiskWatch:
    """What the disks have. All batches that were ever on a disk are in the ledger of their partition."""

    def __init__(self, world: World) -> None:
        self.ledgers: dict[TopicPartition, Ledger] = defaultdict(Ledger)
        self.leaders: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        """The leader of each epoch, as the tree has shown it."""
        self.deletable: dict[TopicPartition, int] = defaultdict(int)
        """Records before this offset may be deleted."""
        self.on_commit: Callable[[TopicPartition, BatchHeader], None] = lambda _partition, _header: None
        """Called for each batch that is newly known to be committed."""
        self._world = world
        self._files: dict[tuple[int, str], _File] = defaultdict(_File)
        self._seen: dict[int, int] = {}

    def scan(self) -> None:
        """Read all files that have changed. Invariants 1 and 3."""
        for number, machine in self._world.brokers.items():
            if self._seen.get(number) == machine.disk.changes:
                continue
            self._seen[number] = machine.disk.changes
            for path, content in tuple(machine.disk.files.items()):
                partition = _partition_of(path)
                if partition is not None and partition[0] != RECREATED:
                    self._read(number, path, partition, content)

    def _read(self, number: int, path: str, partition: TopicPartition, content: Content) -> None:
        file = self._files[number, path]
        new = file.read(content)
        if not new:
            return
        if partition[0] == COMPACTED:
            return
        first = len(file.batches) - len(new)
        ledger, before = self.ledgers[partition], None
        if first:
            before = key_of(file.batches[first - 1][0])
        ledger.note_batches(new, f"broker {number}, {partition}", before)
        for header, _ in new:
            if header.partition_leader_epoch not in self.leaders[partition]:
                epoch = header.partition_leader_epoch
                raise InvariantError(3, f"broker {number} has a batch of epoch {epoch} of {partition}, without leader")

    def commit(self, partition: TopicPartition, header: BatchHeader) -> None:
        """Record that a consumer has read a batch, or that it was acknowledged. Invariant 2."""
        ledger = self.ledgers[partition]
        known = header.base_offset in ledger.committed
        ledger.commit_batch(header)
        if not known:
            self.on_commit(partition, header)

    def forget(self, number: int) -> None:
        """Read the disk of a broker again at the next scan, because its content changes in a crash."""
        self._seen.pop(number, None)

    def batches(self, number: int, partition: TopicPartition) -> list[tuple[BatchHeader, bytes]]:
        """Return the batches on a disk. Call `scan` before."""
        return [batch for path in self._paths(number, partition) for batch in self._files[number, path].batches]

    def is_torn(self, number: int, partition: TopicPartition) -> bool:
        """Return whether the log on a disk ends inside a batch. Call `scan` before."""
        return any(self._files[number, path].is_torn for path in self._paths(number, partition))

    def first(self, number: int, partition: TopicPartition) -> int:
        """Return the base offset of the first segment on a disk."""
        paths = self._paths(number, partition)
        return int(paths[0].rpartition("/")[2][:20]) if paths else 0

    def start(self, number: int, partition: TopicPartition) -> int:
        """Return the offset from which a broker must have all records. It has deleted those before, as it may."""
        return min(self.first(number, partition), self.deletable[partition])

    def _paths(self, number: int, partition: TopicPartition) -> list[str]:
        files = self._world.brokers[number].disk.files
        folder = f"data/{partition[0]}-{partition[1]}/"
        return sorted(path for path in files if path.startswith(folder) and _partition_of(path))


class StateWatch:
    """The states of all partitions, as the tree has shown them. Invariants 2, 3, 11 and 12."""

    def __init__(self, world: World, disks: DiskWatch, report: Callable[[InvariantError], None]) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.crashes: dict[int, int] = {}
        """The broker epoch of each broker whose machine has crashed."""
        self._lost: set[tuple[TopicPartition, int]] = set()
        """The members of an ISR or ELR that may lack records, because their machine has crashed or was damaged."""
        self._writes: dict[TopicPartition, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_WRITES))
        """When the last states of each partition were written."""
        self._world = world
        self._disks = disks
        self._report = report
        disks.on_commit = self._committed
        self._multi = world.store.multi
        world.store.multi = self._write  # type: ignore[method-assign]

    def _committed(self, partition: TopicPartition, header: BatchHeader) -> None:
        """Check that each in-sync replica has a batch before the leader says that it is committed."""
        for number in self.states[partition].isr:
            if (partition, number) not in self._lost and header.base_offset >= self._disks.start(number, partition):
                batches = reversed(self._disks.batches(number, partition))
                at = next((each for each, _ in batches if each.base_offset <= header.base_offset), None)
                if at is None or key_of(at) != key_of(header):
                    raise InvariantError(
                        2, f"{partition}: {key_of(header)} is committed; broker {number} of the ISR has {at}"
                    )

    def crashed(self, broker: int, damaged: TopicPartition | None = None) -> None:
        """Record that a machine may have lost records of all partitions, or of one."""
        self.crashes[broker] = self._world.store.get(epoch_path(broker)).version
        lost = self.states if damaged is None else (damaged,)
        self._lost |= {(each, broker) for each in lost if broker in self.states[each].complete}
        self._disks.forget(broker)

    def may_lose(self, broker: int, damaged: TopicPartition | None, gone: Container[int]) -> bool:
        """Return whether others have all committed records of the partitions whose records a broker loses.

        A broker that died during a write does not count: at its start, its log ends inside a batch. It cannot know
        whether that batch was committed, so it leaves ISR and ELR, as after damage (world 80147).
        """
        if self.have_lost or (damaged is not None and damaged not in self.states):
            return False
        self._disks.scan()
        states = self.states if damaged is None else {damaged: self.states[damaged]}
        return all(
            any(each not in gone and not self._disks.is_torn(each, key) for each in {*state.complete} - {broker})
            for key, state in states.items()
        )

    @property
    def have_lost(self) -> bool:
        """Return whether a machine has crashed, and the records that it may have lost are not replaced yet."""
        return bool(self._lost)

    @property
    def are_full(self) -> bool:
        """Return whether each broker has all committed records of all partitions."""
        return not self.have_lost and all(len(state.isr) == len(self._world.brokers) for state in self.states.values())

    def _write(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        controller = read_controller(self._world.store)
        self._multi(operations, session=session)
        for operation in operations:
            match = STATE_NODE.fullmatch(operation.path) if isinstance(operation, Set | Create) else None
            if match is None or match["topic"] == RECREATED:
                continue
            partition = match["topic"], int(match["partition"])
            state = decode_state(self._world.store.get(operation.path))
            before, self.states[partition] = self.states.get(partition), state
            try:
                if before is not None:
                    self._check_writer(partition, before, state, operations, session, controller)
                self._check(partition, before, state)
            except InvariantError as error:
                self._report(error)

    def _check_writer(
        self,
        partition: TopicPartition,
        before: PartitionState,
        state: PartitionState,
        operations: Sequence[Operation],
        session: int | None,
        controller: int,
    ) -> None:
        store = self._world.store
        owner = None if session is None else store._sessions[session].owner
        if Check(CONTROLLER_EPOCH, store.get(CONTROLLER_EPOCH).version) in operations:
            if owner != f"broker-{controller}" or int(store.get(CONTROLLER_EPOCH).data) != state.controller_epoch:
                raise InvariantError(11, f"{owner} has written {state} of {partition}; the controller is {controller}")
            return
        if state.leader_epoch != before.leader_epoch:
            raise InvariantError(11, f"{owner} has elected {state} of {partition} without the controller's epoch")
        if owner != f"broker-{state.leader}":
            raise InvariantError(11, f"{owner} has written {state} of {partition}")
        for joining in set(state.isr) - set(before.isr):
            checked = {each.path for each in operations if isinstance(each, Check)}
            if not {broker_path(joining), epoch_path(joining)} <= checked:
                raise InvariantError(11, f"broker {joining} joins {partition} unchecked")

    def _check(self, partition: TopicPartition, before: PartitionState | None, state: PartitionState) -> None:
        writes, now = self._writes[partition], self._world.loop.now
        writes.append(now)
        if len(writes) == MOST_WRITES and now - writes[0] < 1:
            raise InvariantError(12, f"the state of {partition} changes without end: {state} after {before}")
        if before is not None and state.leader_epoch not in (before.leader_epoch, before.leader_epoch + 1):
            raise InvariantError(3, f"{partition}: {state} after {before}")
        leader = self._disks.leaders[partition].setdefault(state.leader_epoch, state.leader)
        if leader != state.leader:
            raise InvariantError(3, f"{partition}: {state.leader} leads epoch {state.leader_epoch}, as {leader} does")
        for number in set(state.complete) - set(() if before is None else before.complete):
            # A Fetch that a process sent before it was killed may let it join, until the broker registers again.
            if self._world.store.get(epoch_path(number)).version <= self.crashes.get(number, -2):
                self._lost.add((partition, number))
            else:
                self._lost.discard((partition, number))
        self._lost -= {each for each in self._lost if each[0] == partition and each[1] not in state.complete}
        self._disks.scan()
        elected = before is None or state.leader_epoch != before.leader_epoch
        for number in state.complete:
            crashed = (partition, number) in self._lost
            if elected and number == state.leader:  # unless its machine has crashed since it registered
                crashed = state.leader_broker_epoch <= self.crashes.get(number, -2)
            if not crashed:
                headers = [header for header, _ in self._disks.batches(number, partition)]
                who = f"broker {number}, which {state} names for {partition},"
                self._disks.ledgers[partition].check_complete(headers, who, self._disks.start(number, partition))


class _Reader:
    """What a consumer of one partition has seen."""

    def __init__(self) -> None:
        self.offset = 0
        self.open: dict[int, int] = {}
        """The first offset of the open transaction of each producer id, up to `offset`."""


class Consumers:
    """Read all partitions with read_uncommitted, from each broker for the last epoch in which it led.

    A new leader shows its high watermark in ListOffsets only when no earlier one can have been higher (KIP-207). In
    Fetch, it may be lower, as in Kafka.
    """

    def __init__(self, world: World, disks: DiskWatch, topics: dict[str, UUID], security: Security = PLAINTEXT) -> None:
        self.over = False
        self._security = security
        self._world = world
        self._disks = disks
        self._topics = topics
        self._names = {topic_id: name for name, topic_id in topics.items()}
        self.readers: dict[TopicPartition, _Reader] = defaultdict(_Reader)

    async def read(self, number: int) -> None:
        """Fetch from one broker, and list its end offsets in between, until `over`. Invariants 2, 4 and 7."""
        connection: ClientConnection | None = None
        ends = False
        host = f"broker-{number}"
        while not self.over:
            await asyncio.sleep(FETCH_S)
            epochs = self._epochs(number)
            if not epochs:
                continue
            ends = not ends
            try:
                if connection is None or connection.closed:
                    connection = await connect(
                        host,
                        PORT,
                        request_timeout_ms=FETCH_TIMEOUT_MS,
                        connect_timeout_ms=FETCH_TIMEOUT_MS,
                        security=self._security,
                    )
                response: Any = await connection.call(self._list_ends(epochs) if ends else self._fetch(epochs))
            except ConnectionLostError:
                continue
            self._disks.scan()
            for topic in response.topics if ends else response.responses:
                for data in topic.partitions:
                    partition = (topic.name if ends else self._names[topic.topic_id]), data.partition_index
                    if data.error_code:
                        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                            reader = self.readers[partition]
                            reader.offset = max(reader.offset, self._disks.deletable[partition])
                        continue
                    if ends:
                        self._disks.ledgers[partition].expose(epochs[partition], data.offset)
                    else:
                        self._fetched(partition, data)

    def _epochs(self, number: int) -> dict[TopicPartition, int]:
        """Return the last epoch in which a broker led, for each partition."""
        led = {
            partition: [epoch for epoch, leader in leaders.items() if leader == number]
            for partition, leaders in self._disks.leaders.items()
        }
        return {partition: max(epochs) for partition, epochs in led.items() if epochs and partition[0] in self._topics}

    def _fetch(self, epochs: dict[TopicPartition, int]) -> FetchRequest:
        topics = {name: FetchTopic(topic_id=topic_id, partitions=[]) for name, topic_id in self._topics.items()}
        for partition, epoch in epochs.items():
            topics[partition[0]].partitions.append(
                FetchPartition(
                    partition=partition[1],
                    current_leader_epoch=epoch,
                    fetch_offset=self.readers[partition].offset,
                    partition_max_bytes=1 << 16,
                )
            )
        return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=list(topics.values()))

    def _list_ends(self, epochs: dict[TopicPartition, int]) -> ListOffsetsRequest:
        topics = {name: ListOffsetsTopic(name=name, partitions=[]) for name in self._topics}
        for partition, epoch in epochs.items():
            asked = ListOffsetsPartition(partition_index=partition[1], current_leader_epoch=epoch, timestamp=_LATEST)
            topics[partition[0]].partitions.append(asked)
        return ListOffsetsRequest(replica_id=-1, topics=list(topics.values()))

    def _fetched(self, partition: TopicPartition, data: Any) -> None:
        reader = self.readers[partition]
        if not data.last_stable_offset <= data.high_watermark:
            raise InvariantError(7, f"{partition}: LSO {data.last_stable_offset}, HW {data.high_watermark}")
        for header, view in iter_batches(data.records or b"", partial_ok=True):
            if header.next_offset > data.high_watermark:
                raise InvariantError(7, f"{partition}: offset {header.base_offset} is read; HW {data.high_watermark}")
            self._disks.commit(partition, header)
            if header.base_offset < reader.offset:
                continue
            if header.base_offset > reader.offset:
                raise InvariantError(2, f"{partition}: {reader.offset} is missing before {header.base_offset}")
            reader.offset = header.next_offset
            if header.is_control:
                decode_control(view)
                reader.open.pop(header.producer_id, None)
            elif header.is_transactional:
                reader.open.setdefault(header.producer_id, header.base_offset)
        first = min(reader.open.values(), default=data.last_stable_offset)
        if reader.offset == data.high_watermark and data.last_stable_offset > first:
            raise InvariantError(7, f"{partition}: LSO {data.last_stable_offset}, but {first} is undecided")
