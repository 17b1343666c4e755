"""`oncelog top` while brokers are down, and a hanging transaction."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.apache_kafka import ApacheKafka
from support.command_line import ONCELOG, Tool
from support.servers import OncelogCluster, ReplicatedCluster, Server
from support.transactions import write_old
from support.wire import Wire

SETTINGS = {"transaction.partition.verification.enable": "false"}
"""Settings of the module's own server. Without the verification of KIP-890, a transaction can hang."""
WAIT = 120.0


def _accept_ctrl_c() -> None:
    """Undo what a shell does for commands in the background, as those of scripts/control: they ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Readings:
    """The lines of `oncelog top --format json`."""

    def __init__(self, bootstrap: str, *arguments: str) -> None:
        command = [str(ONCELOG), "top", "--format", "json", "--interval", "0.5", *arguments, "-b", bootstrap]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_accept_ctrl_c
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def until(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Return the first later reading for which the condition is true."""
        last: dict[str, Any] = {}
        limit = time.monotonic() + WAIT
        while time.monotonic() < limit:
            with contextlib.suppress(queue.Empty):
                last = json.loads(self._lines.get(timeout=1))
                if condition(last):
                    return last
            assert self.process.poll() is None, self.process.communicate()[1]
        raise AssertionError(f"{what}: {last}")


@contextlib.contextmanager
def readings(bootstrap: str, *arguments: str) -> Iterator[Readings]:
    made = Readings(bootstrap, *arguments)
    try:
        yield made
        made.process.send_signal(signal.SIGINT)
        assert made.process.communicate(timeout=60)[1] == ""
        assert made.process.returncode == 130
    finally:
        made.process.kill()
        made.process.communicate()


def test_outage_of_the_whole_cluster_is_shown_until_it_ends(own_server: Server, name: str) -> None:
    address = own_server.bootstrap
    Tool(address)("topic", "create", name)
    with readings(address) as shown:
        shown.until(lambda found: found["reachable"] and found["topics"], "the first reading")
        if isinstance(own_server, OncelogCluster):
            own_server.stop()
        else:
            own_server.kill()
        during = shown.until(lambda found: not found["reachable"], "the outage is shown")
        assert name in [each["topic"] for each in during["topics"]], "the last reading stays"
        assert during["troubles"][0]["about"] == "brokers"
        if isinstance(own_server, OncelogCluster):
            own_server.start(int(address.rpartition(":")[2]))
        else:
            assert isinstance(own_server, ApacheKafka)
            own_server.wait_ready()
        after = shown.until(lambda found: found["reachable"] and not found["troubles"], "the outage is over")
        assert name in [each["topic"] for each in after["topics"]]


def test_broker_that_hangs_is_shown_as_silent_then_as_down(tmp_path: Path, name: str) -> None:
    cluster = ReplicatedCluster(tmp_path)
    try:
        Tool(cluster.bootstrap)("topic", "create", name, "-p", "3")
        with readings(cluster.bootstrap, "--only", "brokers") as brokers, readings(cluster.bootstrap) as shown:
            full = shown.until(lambda found: all(each["leaders"] for each in found["brokers"]), "each broker leads")
            assert [each["under_replicated"] for each in full["brokers"]] == [0, 0, 0]
            victim = next(each["broker"] for each in full["brokers"] if not each["controller"])
            pid = cluster.broker_pid(victim)
            os.kill(pid, signal.SIGSTOP)
            try:
                # On a busy machine, its session may expire before the next reading, which then asks only the others.
                shown.until(
                    lambda found: (
                        any(each["node"] == victim for each in found["troubles"])
                        or not all(each["running"] for each in found["brokers"])
                    ),
                    "a request has no response, or the broker is down",
                )
                down = brokers.until(
                    lambda found: not all(each["running"] for each in found["brokers"]), "the broker is down"
                )
                (lost,) = [each for each in down["brokers"] if not each["running"]]
                assert (lost["broker"], lost["host"]) == (victim, None)
                brokers.until(
                    lambda found: sum(each["under_replicated"] for each in found["brokers"]) > 0, "replicas are missing"
                )
            finally:
                os.kill(pid, signal.SIGCONT)
            for each in (brokers, shown):
                each.until(
                    lambda found: (
                        found["reachable"]
                        and not found["troubles"]
                        and all(each["running"] and not each["under_replicated"] for each in found["brokers"])
                    ),
                    "all is well again",
                )
    finally:
        cluster.stop()


def test_hanging_transaction_is_marked(module_server: Server, name: str) -> None:
    with Wire(module_server.bootstrap) as wire:
        wire.create_topic(name)
        who = write_old(wire, name, 11)
        found = Tool(module_server.bootstrap).json("top", "--once", "--interval", "0.5")
        (row,) = found["transactions"]
        assert row["hanging"] is True
        assert (row["state"], row["producer_id"], row["holds_back"]) == ("Hanging", who.producer_id, [f"{name}-0"])
        (topic,) = [each for each in found["topics"] if each["topic"] == name]
        assert (topic["hanging"], topic["held_by"]) == (True, f"producer id {who.producer_id}")
        later = Tool(module_server.bootstrap).json(
            "top", "--once", "--interval", "0.5", "--max-transaction-timeout", "999999999"
        )
        assert [each["hanging"] for each in later["transactions"]] == [False]
