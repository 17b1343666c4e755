"""T8, for groups: the group rejects a zombie consumer's offsets in a transaction (KIP-447)."""

from __future__ import annotations

import pytest

from support.groups import finish, offsets_of, pending, rejoin_as_static, stable, txn_commit
from support.servers import Server
from support.wire import Session, Wire, code, until

ILLEGAL_GENERATION = code("ILLEGAL_GENERATION")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
FENCED_INSTANCE_ID = code("FENCED_INSTANCE_ID")


def begun(wire: Wire, name: str) -> Session:
    """Return a producer whose transaction contains the group. A topic of that name exists."""
    wire.create_topic(name, 2)
    who = wire.session(name)
    assert not wire.add_offsets(name, who, name).error_code
    return who


@pytest.mark.parametrize("version", [3, 5])
def test_removed_member_cannot_commit(wire: Wire, server: Server, name: str, version: int) -> None:
    who = begun(wire, name)
    leader, zombie = stable(server.bootstrap, name, 2)
    was = {"group_id": name, "member_id": zombie.member_id, "generation_id": zombie.generation, "version": version}
    assert txn_commit(wire, name, who, name, 1, **was) == 0
    leader.ask_to_join()
    until(zombie.heartbeat, lambda error: error == code("REBALANCE_IN_PROGRESS"), "rebalance")
    zombie.leave()
    leader.take()
    finish([leader])
    assert txn_commit(wire, name, who, name, 2, **was) == UNKNOWN_MEMBER_ID
    now = {**was, "member_id": leader.member_id}
    assert txn_commit(wire, name, who, name, 2, **now) == ILLEGAL_GENERATION
    assert txn_commit(wire, name, who, name, 3, **{**now, "generation_id": leader.generation}) == 0
    assert not wire.end(name, who).error_code
    until(lambda: offsets_of(wire, name), lambda found: found == {(name, 0): 3}, "the member's offset")


def test_member_may_commit_while_the_group_waits_for_it(wire: Wire, server: Server, name: str) -> None:
    """Kafka accepts a transaction's offsets in every state of the group if the generation is correct."""
    who = begun(wire, name)
    leader, follower = stable(server.bootstrap, name, 2)
    leader.ask_to_join()
    until(follower.heartbeat, lambda error: error == code("REBALANCE_IN_PROGRESS"), "rebalance")
    fields = {"group_id": name, "member_id": follower.member_id}
    assert txn_commit(wire, name, who, name, 1, generation_id=follower.generation, **fields) == 0
    follower.ask_to_join()
    assert leader.take().error_code == follower.take().error_code == 0
    assert txn_commit(wire, name, who, name, 2, generation_id=follower.generation - 1, **fields) == ILLEGAL_GENERATION
    assert txn_commit(wire, name, who, name, 2, generation_id=follower.generation, **fields) == 0
    finish(sorted((leader, follower), key=lambda each: not each.leads))


def test_fenced_static_member_cannot_commit(wire: Wire, server: Server, name: str) -> None:
    who = begun(wire, name)
    (zombie,) = stable(server.bootstrap, name, group_instance_id="a")
    fields = {"group_id": name, "group_instance_id": "a", "generation_id": zombie.generation}
    assert txn_commit(wire, name, who, name, 1, member_id=zombie.member_id, **fields) == 0
    back = rejoin_as_static(zombie, wire)
    assert txn_commit(wire, name, who, name, 2, member_id=zombie.member_id, **fields) == FENCED_INSTANCE_ID
    assert txn_commit(wire, name, who, name, 3, member_id=back.member_id, **fields) == 0
    assert txn_commit(wire, name, who, name, 4, **{**fields, "group_instance_id": "b"}) == UNKNOWN_MEMBER_ID


def test_unknown_members_and_missing_groups(wire: Wire, name: str) -> None:
    who = begun(wire, name)
    wire.find_coordinator(name, 0)
    assert txn_commit(wire, name, who, name, 1, group_id=name, generation_id=3, member_id="m") == ILLEGAL_GENERATION
    # Old transactional producers do not send their generation, so a zombie cannot be detected.
    assert txn_commit(wire, name, who, name, 1, group_id=name) == 0
    assert txn_commit(wire, name, who, name, 1, group_id=name, member_id="m", generation_id=-1) == 0


def test_offsets_of_a_zombie_producer_are_rejected(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    zombie = pending(wire, name, 1)
    who = pending(wire, name, 2)  # its successor: InitProducerId has aborted the transaction
    assert who.producer_id == zombie.producer_id
    refused = txn_commit(wire, name, zombie, name, 3, group_id=name)
    assert refused == code("INVALID_PRODUCER_EPOCH")
    assert not wire.end(name, who).error_code
    until(lambda: offsets_of(wire, name), lambda found: found == {(name, 0): 2}, "the successor's offset")


@pytest.mark.parametrize("commit", [True, False])
def test_member_continues_from_the_transactions_outcome(wire: Wire, server: Server, name: str, commit: bool) -> None:
    who = begun(wire, name)
    (member,) = stable(server.bootstrap, name)
    assert member.commit(name, 1) == 0
    fields = {"group_id": name, "member_id": member.member_id, "generation_id": member.generation}
    assert txn_commit(wire, name, who, name, 5, **fields) == 0
    assert not wire.end(name, who, commit).error_code
    expected = {(name, 0): 5 if commit else 1}
    until(lambda: offsets_of(wire, name), lambda found: found == expected, "the decided offset")
