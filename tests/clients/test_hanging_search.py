"""A transaction hangs only if nobody can end it: lists of coordinators that may lack some prove nothing.

Timestamps are chosen by producers, so a live transaction may look old.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog import Admin
from oncelog.client.admin import transactions
from oncelog.protocol.kinds import AclOperation, AclResource, PatternType
from support.command_line import Tool
from support.permissions import Grant, GuardedServer, grant, revoke
from support.servers import Server
from support.transactions import ended, write_old, written
from support.wire import Session, Wire, until

GUARDED_SETTINGS = {"transaction.partition.verification.enable": "false"}
"""Without the verification of KIP-890, a transaction can hang."""
ALL_IDS = Grant(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, "*")
STATES = Grant(AclOperation.DESCRIBE, AclResource.TOPIC, "__transaction_state")


def on_topic(name: str) -> list[Grant]:
    """Return the permissions to read a topic, and to write markers."""
    return [
        Grant(AclOperation.READ, AclResource.TOPIC, name),
        Grant(AclOperation.DESCRIBE_CONFIGS, AclResource.TOPIC, name),
        Grant(AclOperation.ALTER, AclResource.CLUSTER),
        Grant(AclOperation.CLUSTER_ACTION, AclResource.CLUSTER),
    ]


@contextmanager
def granted(administrator: Wire, *grants: Grant) -> Iterator[None]:
    grant(administrator, grants)
    yield
    revoke(administrator, grants)


@pytest.fixture
def live(guarded: GuardedServer, name: str) -> Iterator[tuple[Wire, Session]]:
    """Begin a transaction with an old timestamp. The client may read its topic and write markers, and no more."""
    with guarded.administrator() as administrator:
        administrator.create_topic(name)
        with granted(administrator, *on_topic(name)):
            yield administrator, write_old(administrator, name, 12)


def refused(bootstrap: str, name: str, who: Session) -> str:
    """Return what each way to find or abort the transaction says. All must fail."""
    tool = Tool(bootstrap)
    numbers = ("--producer-id", str(who.producer_id), "--producer-epoch", str(who.epoch), "--coordinator-epoch", "-1")
    said = {
        tool.fails(1, "txn", "find-hanging", "--topic", name),
        tool.fails(1, "txn", "abort", name, "-p", "0", "--start-offset", "0"),
        tool.fails(1, "txn", "abort", name, "-p", "0", *numbers),
    }
    assert len(said) == 1, said
    return said.pop()


def test_client_that_may_not_see_all_ids_cannot_tell(
    guarded: GuardedServer, live: tuple[Wire, Session], name: str
) -> None:
    administrator, who = live
    said = refused(guarded.bootstrap, name, who)
    assert "may not describe all transactional ids" in said
    assert "DESCRIBE on all transactional ids ('*')" in said
    assert "no coordinator will end" not in Tool(guarded.bootstrap)("topic", "describe", name)
    for prefix in ("oncelog", "5"):
        some = Grant(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, prefix, pattern=PatternType.PREFIXED)
        with granted(administrator, some):
            assert "may not describe all transactional ids" in refused(guarded.bootstrap, name, who)
    ended(administrator, name, who)
    until(lambda: administrator.offset(name, committed=True), lambda stable: stable == 2, "the commit is visible")


def test_transaction_that_the_client_sees_does_not_hang(
    guarded: GuardedServer, live: tuple[Wire, Session], name: str
) -> None:
    administrator, who = live
    own = Grant(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, name)
    tool = Tool(guarded.bootstrap)
    with granted(administrator, own):
        assert tool.json("txn", "find-hanging", "--topic", name) == []
        assert "is not hanging" in tool.fails(2, "txn", "abort", name, "-p", "0", "--start-offset", "0")
    ended(administrator, name, who)


def test_transaction_hangs_if_the_client_can_see_everything(guarded: GuardedServer, name: str) -> None:
    """The producer never adds the partition at its coordinator."""
    tool = Tool(guarded.bootstrap)
    with guarded.administrator() as administrator:
        administrator.create_topic(name)
        with granted(administrator, *on_topic(name), ALL_IDS):
            who = write_old(administrator, name, 11)
            said = refused(guarded.bootstrap, name, who)
            assert "It needs DESCRIBE on the topic '__transaction_state'" in said
            assert "which no coordinator shows" in tool("topic", "describe", name)
            with granted(administrator, STATES):
                (found,) = tool.json("txn", "find-hanging", "--topic", name)
                assert (found["producer_id"], found["start_offset"]) == (who.producer_id, 0)
                assert tool.json("txn", "abort", name, "-p", "0", "--start-offset", "0")["aborted"]
                assert tool.json("txn", "find-hanging", "--topic", name) == []
            again = ("--producer-id", str(who.producer_id), "--producer-epoch", "0", "--coordinator-epoch", "-1")
            assert "no open transaction of producer id" in tool.fails(1, "txn", "abort", name, "-p", "0", *again)
        assert administrator.offset(name, committed=True) == 2


def begin_another(wire: Wire, name: str, who: Session) -> None:
    """Commit the transaction in partition 0, and begin the next one in partition 1."""
    again = ended(wire, name, who)
    written(wire, name, again, name, [b"next"], partition=1, sequence=0 if again != who else 1)


@pytest.mark.parametrize("after", [False, True], ids=["before the list", "after the list"])
def test_transaction_that_ends_during_the_search_does_not_hang(
    server: Server, wire: Wire, name: str, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    wire.create_topic(name, 2)
    who = write_old(wire, name, 12)
    asked = transactions.list_transactions
    moved = False

    async def listed(*arguments: Any, **options: Any) -> Any:
        nonlocal moved
        found = await asked(*arguments, **options) if after else None
        if not moved:
            moved = True
            begin_another(wire, name, who)
        return await asked(*arguments, **options) if found is None else found

    monkeypatch.setattr(transactions, "list_transactions", listed)
    with Admin(server.bootstrap) as admin:
        assert admin.find_hanging_transactions(name) == []
    assert moved
    assert wire.offset(name, committed=True) == 2
