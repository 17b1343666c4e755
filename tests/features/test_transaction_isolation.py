"""T5: read_committed sees transactions as a whole or not at all. Offsets in a transaction become visible with it."""

from __future__ import annotations

import pytest

from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.records import iter_batches
from support.servers import Server
from support.transactions import UNSTABLE, commit_offset, committed, ended, until_state, written
from support.wire import Session, Wire, batch, until


def test_last_stable_offset_waits_for_the_oldest_open_transaction(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    first, second = wire.session(f"{name}-1"), wire.session(f"{name}-2")
    assert wire.offset(name, committed=True) == 0
    written(wire, f"{name}-1", first, name, [b"1"])
    written(wire, f"{name}-2", second, name, [b"2"])
    assert not wire.produce(name, batch([b"plain"])).error_code
    ended(wire, f"{name}-2", second)
    until_state(wire, f"{name}-2", "CompleteCommit")
    assert (wire.offset(name, committed=True), wire.offset(name)) == (0, 4)
    assert wire.values(topic_id, committed=True) == []
    assert wire.values(topic_id) == [b"1", b"2", b"plain"]
    found = wire.fetch(topic_id, committed=True)
    assert (found.last_stable_offset, found.high_watermark) == (0, 4)
    ended(wire, f"{name}-1", first, commit=False)
    until_state(wire, f"{name}-1", "CompleteAbort")
    assert wire.offset(name, committed=True) == wire.offset(name) == 5
    assert wire.values(topic_id, committed=True) == [b"2", b"plain"]
    assert wire.values(topic_id) == [b"1", b"2", b"plain"]


def test_fetch_lists_the_aborted_transactions_of_its_range(wire: Wire, name: str) -> None:
    """The list is in order, contains only transactions that overlap the range, and is empty for read_uncommitted."""
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    firsts = []
    for number in range(4):
        firsts.append(written(wire, name, who, name, [b"%d" % number]).base_offset)
        who = ended(wire, name, who, commit=number % 2 > 0)
    until_state(wire, name, "CompleteCommit")
    aborted = [(who.producer_id, firsts[0]), (who.producer_id, firsts[2])]
    found = wire.fetch(topic_id, committed=True)
    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == aborted
    assert wire.fetch(topic_id).aborted_transactions in (None, [])
    later = wire.fetch(topic_id, offset=firsts[1], committed=True)
    assert [(each.producer_id, each.first_offset) for each in later.aborted_transactions] == aborted[1:]
    last = wire.fetch(topic_id, offset=firsts[3], committed=True)
    assert last.aborted_transactions == []


def test_control_batches_have_offsets_and_are_flagged(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"a", b"b"])
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    headers = [header for header, _ in iter_batches(wire.fetch(topic_id).records)]
    assert [(h.base_offset, h.is_transactional, h.is_control, h.base_sequence) for h in headers] == [
        (0, True, False, 0),
        (2, True, True, -1),
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_in_a_transaction(wire: Wire, name: str, commit: bool) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    assert committed(wire, name, name) == (-1, 0)
    assert commit_offset(wire, name, who, name, name, 4) == 0
    assert committed(wire, name, name) == (-1, UNSTABLE)
    assert committed(wire, name, name, stable=False) == (-1, 0)
    who = ended(wire, name, who, commit)
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    assert committed(wire, name, name) == ((4 if commit else -1), 0)
    assert commit_offset(wire, name, who, name, name, 9) == 0
    assert committed(wire, name, name, stable=False) == ((4 if commit else -1), 0)
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert committed(wire, name, name) == (9, 0)


def is_led(wire: Wire, name: str) -> bool:
    wanted = ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    return not wire.call(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 7).topics[0].partitions[0].error_code


def test_transactions_and_their_isolation_survive_a_kill(own_server: Server, name: str) -> None:
    """The aborted list, the open transaction, the stable offset and pending offsets."""
    with Wire(own_server.bootstrap) as wire:
        topic_id = wire.create_topic(name)
        wire.find_coordinator(name, 0)
        who = wire.session(name)
        for number in range(3):
            written(wire, name, who, name, [b"%d" % number])
            assert commit_offset(wire, name, who, name, name, number) == 0
            who = ended(wire, name, who, commit=number != 1)
        until_state(wire, name, "CompleteCommit")
        written(wire, name, who, name, [b"open"])
        assert commit_offset(wire, name, who, name, name, 77) == 0
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        until(lambda: is_led(wire, name), bool, "the partition has a leader again")
        assert (wire.offset(name, committed=True), wire.offset(name)) == (6, 7)
        assert wire.values(topic_id, committed=True) == [b"0", b"2"]
        assert wire.values(topic_id) == [b"0", b"1", b"2", b"open"]
        wire.find_coordinator(name, 0)
        wire.find_coordinator(name)
        assert committed(wire, name, name) == (-1, UNSTABLE)
        assert committed(wire, name, name, stable=False) == (2, 0)
        who = ended(wire, name, Session(*who))
        until_state(wire, name, "CompleteCommit")
        assert wire.values(topic_id, committed=True) == [b"0", b"2", b"open"]
        assert committed(wire, name, name) == (77, 0)
