"""A transaction that no coordinator will end: the console marks it, and writes its abort marker."""

from __future__ import annotations

import time
from collections.abc import Callable

from oncelog import Admin
from support.consoles import ConsoleProcess
from support.servers import Server
from support.transactions import write_old
from support.wire import Wire

SETTINGS = {"transaction.partition.verification.enable": "false"}


def test_hanging_transaction_is_marked_and_aborted(
    module_server: Server, start_console: Callable[..., ConsoleProcess], name: str
) -> None:
    console = start_console(module_server.bootstrap)
    with Wire(module_server.bootstrap) as wire, Admin(module_server.bootstrap) as admin:
        wire.create_topic(name, 1)
        who = write_old(wire, name, 11)
        [row] = console.json(f"/transactions?hanging-q={name}")["hanging"]["rows"]
        assert (row["topic"], row["partition"], row["producer_id"]) == (name, 0, who.producer_id)
        [holder] = console.json(f"/topics/{name}/0")["open_transactions"]
        assert holder["hanging"]
        page = console.get(f"/topics/{name}/0")
        assert "No coordinator will end it" in page.text
        [producer] = console.json(f"/topics/{name}/0/producers")["producers"]["rows"]
        assert producer["agrees"] == "hanging"
        target = f"/topics/{name}/0/abort"
        question = console.get(f"{target}?producer={who.producer_id}")
        assert "1 offsets are held back" in question.text
        assert console.post(target, {"producer": str(who.producer_id + 1)}).status == 409
        assert console.post(target, {"producer": str(who.producer_id), "first_offset": "1"}).status == 409
        answer = console.post(target, {"producer": str(who.producer_id), "first_offset": "0"})
        assert (answer.status, answer.headers["location"]) == (303, f"/topics/{name}/0")
        assert admin.offsets({(name, 0): -1}, committed_only=True) == {(name, 0): 2}
        spans = console.json(f"/topics/{name}/0?sort=first")["spans"]["rows"]
        assert [span["state"] for span in spans] == ["aborted", "abort marker"]


def test_transaction_of_a_coordinator_is_not_aborted_in_one_partition(
    module_server: Server, start_console: Callable[..., ConsoleProcess], name: str
) -> None:
    console = start_console(module_server.bootstrap)
    with Wire(module_server.bootstrap) as wire, Admin(module_server.bootstrap) as admin:
        wire.create_topic(name, 1)
        who = write_old(wire, name, 12)
        answer = console.post(f"/topics/{name}/0/abort", {"producer": str(who.producer_id)})
        assert answer.status == 409
        assert "This transaction does not hang" in answer.text
        assert admin.offsets({(name, 0): -1}, committed_only=True) == {(name, 0): 0}


def test_transaction_that_no_coordinator_shows_may_go_on_if_it_is_young(
    module_server: Server, start_console: Callable[..., ConsoleProcess], name: str
) -> None:
    console = start_console(module_server.bootstrap)
    with Wire(module_server.bootstrap) as wire:
        wire.create_topic(name, 1)
        who = write_old(wire, name, 11, int(time.time() * 1000))
        [holder] = console.json(f"/topics/{name}/0")["open_transactions"]
        assert (holder["hanging"], holder["state"]) == (False, "unknown")
        assert "Abort it here" not in console.get(f"/topics/{name}/0").body
        [producer] = console.json(f"/topics/{name}/0/producers")["producers"]["rows"]
        assert producer["agrees"] == "unknown"
        answer = console.post(f"/topics/{name}/0/abort", {"producer": str(who.producer_id), "first_offset": "0"})
        assert answer.status == 409
        assert "in the last 15 minutes" in answer.text
