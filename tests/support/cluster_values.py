"""What clients have written in a world with three brokers, compared with the disks at the end."""

from __future__ import annotations

import struct
from typing import Any

from oncelog.log.snapshot import decode_snapshot
from oncelog.protocol.records import decode_control, decode_records
from oncelog.protocol.topics import TopicPartition
from oncelog.sim.world import World
from support.cluster_watch import COMPACTED, DiskWatch
from support.history import ABORTED, COMMITTED, Written
from support.replica_invariants import InvariantError, key_of

_ABORTED = struct.Struct(">hqqqq")


def committed_values(
    disks: DiskWatch, broker: int, partition: TopicPartition, markers: dict[tuple[int, int], bool]
) -> tuple[dict[int, bytes], list[bytes]]:
    """Return all records of a partition by offset, and the values of the committed ones. Invariant 8.

    `markers` has the outcome of each transaction in other partitions. This one adds its own.
    """
    everything: dict[int, bytes] = {}
    undecided: dict[int, list[int]] = {}
    hidden: set[int] = set()
    for header, view in disks.batches(broker, partition):
        if header.is_control:
            commit, _ = decode_control(view)
            key = header.producer_id, header.producer_epoch
            if markers.setdefault(key, commit) != commit:
                raise InvariantError(8, f"the transaction {key} was committed and aborted")
            offsets = undecided.pop(header.producer_id, [])
            hidden |= set() if commit else set(offsets)
            continue
        for number, record in enumerate(decode_records(view)):
            everything[header.base_offset + number] = bytes(record.value or b"")
            if header.is_transactional:
                undecided.setdefault(header.producer_id, []).append(header.base_offset + number)
    if undecided:
        raise InvariantError(12, f"{partition} has open transactions: {undecided}")
    return everything, [value for offset, value in sorted(everything.items()) if offset not in hidden]


def check_offset(name: str, found: int, history: list[Written], visible: list[list[bytes]]) -> None:
    """Check that the offset of a writer's group is that of the last transaction that has committed one."""
    offsets = {written.offset: written for written in history if written.offset >= 0}
    least = max((offset for offset, each in offsets.items() if each.outcome is COMMITTED), default=-1)
    chosen = offsets.get(found)
    if found < least or (found >= 0 and (chosen is None or chosen.outcome is ABORTED)):
        raise InvariantError(10, f"{name} has the offset {found}; at least {least} was committed: {chosen}")
    seen = chosen is not None and any(chosen.value in values for values in visible)
    if chosen is not None and chosen.partitions and not seen:
        raise InvariantError(8, f"the offset of {chosen} is committed, but not its records")


def check_replicas(world: World, disks: DiskWatch, partition: TopicPartition, living: list[int]) -> None:
    """Compare what replicas have written about producers, after a clean stop. Invariant 6.

    Replicas of a compacted topic differ. If records may be deleted, compare only the batches that all must have.
    """
    if partition[0] == COMPACTED:
        return
    first = max(disks.first(number, partition) for number in living)
    found = {number: _producers(world, disks, number, partition, first) for number in living}
    if any(each != found[living[0]] for each in found.values()):
        raise InvariantError(6, f"{partition}: {found}")


def _producers(world: World, disks: DiskWatch, number: int, partition: TopicPartition, first: int) -> Any:
    """Return the log, the aborted transactions and the producers of a replica, as its files have them."""
    keys = [key_of(header) for header, _ in disks.batches(number, partition) if header.base_offset >= first]
    if disks.deletable[partition]:
        return keys
    files = world.brokers[number].disk.files
    folder = f"data/{partition[0]}-{partition[1]}/"
    aborted = [
        entry[1:4]
        for path in sorted(files)
        if path.startswith(folder) and path.endswith(".txnindex")
        for entry in _ABORTED.iter_unpack(files[path].data)
    ]
    newest = max((path for path in files if path.startswith(folder) and path.endswith(".snapshot")), default=None)
    producers = {
        each.producer_id: (each.epoch, each.last_sequence, each.txn_start, each.coordinator_epoch)
        for each in (() if newest is None else decode_snapshot(bytes(files[newest].data)))
    }
    return keys, aborted, producers
