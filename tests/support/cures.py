"""Run the programs of examples/cures with kill -9 between their steps, and count the result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Producer
from support.reading import read
from support.servers import OncelogCluster, Server

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = 12
ACCOUNTS = 3


@pytest.fixture(scope="module")
def shop_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OncelogCluster]:
    """Run a server for the shops of one module. One of the programs needs two-phase commit."""
    settings = {"transaction.two.phase.commit.enable": "true"}
    made = OncelogCluster(tmp_path_factory.mktemp("shop"), settings=settings)
    yield made
    made.stop()


class Shop:
    """A topic of orders, a database, and the programs that use them."""

    def __init__(self, server: Server, topic: str, database: str) -> None:
        self.server, self.topic, self.database = server, topic, database

    def fill(self, *, twice: int = 0) -> None:
        """Send orders 0 to 11 of three accounts, the first `twice` of them a second time."""
        with Admin(self.server.bootstrap) as admin:
            admin.create_topics(self.topic, 1)
        with Producer(self.server.bootstrap) as producer:
            for number in (*range(NUMBER), *range(twice)):
                value = json.dumps({"order": number, "amount": number + 1}).encode()
                producer.send(self.topic, value, key=f"account-{number % ACCOUNTS}".encode())

    def command(self, program: str, *arguments: str) -> list[str | Path]:
        """Return the command line of a program."""
        path = EXAMPLES / "cures" / f"{program}.py"
        options = ("--bootstrap", self.server.bootstrap, "--topic", self.topic, "--database", self.database)
        return [sys.executable, path, *options, *arguments]

    def run(self, program: str, *arguments: str, fault: str = "") -> int:
        """Run a program to its end or to the fault -> exit status, -9 after a kill."""
        command = self.command(program, *arguments)
        done = subprocess.run(command, env={**os.environ, "FAULT": fault}, capture_output=True, text=True, timeout=60)
        if fault:
            expected = (-signal.SIGKILL, -signal.SIGTERM, 0)
            assert done.returncode in expected, done.stderr
        else:
            assert done.returncode == 0, done.stderr
        return done.returncode

    def crash_and_restart(self, program: str, fault: str, *arguments: str) -> None:
        """Run a program that is killed at this step, then once more without a fault."""
        assert self.run(program, *arguments, fault=fault) == -signal.SIGKILL
        self.run(program, *arguments)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows."""
        if self.database.startswith("postgresql://"):
            import psycopg

            with psycopg.connect(self.database) as connection:
                rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
                return rows
        import sqlite3

        with closing(sqlite3.connect(self.database)) as opened:
            return opened.execute(sql).fetchall()

    def shipped(self) -> tuple[int, int]:
        """Return (lost, duplicated) of the table `shipped`."""
        rows = [number for (number,) in self.query("SELECT number FROM shipped")]
        return NUMBER - len(set(rows)), len(rows) - len(set(rows))

    def balance_error(self) -> int:
        """Return the difference of the accounts to the orders: positive is duplicated, negative lost."""
        balances = {str(account): int(amount) for account, amount in self.query("SELECT account, amount FROM balances")}
        return sum(balances.values()) - sum(range(1, NUMBER + 1))


def check_manual_commit(shop: Shop, *, naive: bool) -> None:
    shop.fill()
    shop.crash_and_restart("manual_commit", "shipped:5", *["--naive"] * naive)
    assert shop.shipped() == ((NUMBER - 5, 0) if naive else (0, 1))


def check_commit_on_exit(shop: Shop, *, naive: bool) -> None:
    shop.fill()
    status = shop.run("commit_on_exit", *["--naive"] * naive, fault="shipped:5:TERM")
    assert status == (-signal.SIGTERM if naive else 0)
    shop.run("commit_on_exit", *["--naive"] * naive)
    assert shop.shipped() == (0, 5 if naive else 0)


def check_offset_in_database(shop: Shop, *, naive: bool) -> None:
    shop.fill()
    if naive:
        shop.crash_and_restart("offset_in_database", "booked:5", "--naive")
        assert shop.balance_error() == 5  # the fifth order's amount
        return
    for fault in ("added:3", "moved:3", "booked:3"):
        assert shop.run("offset_in_database", fault=fault) == -signal.SIGKILL
    shop.run("offset_in_database")
    assert shop.balance_error() == 0
    assert shop.query("SELECT next FROM offsets") == [(NUMBER,)]


def check_unique_id(shop: Shop, *, naive: bool) -> None:
    shop.fill(twice=2)
    if naive:
        shop.crash_and_restart("unique_id", "booked:5", "--naive")
        assert shop.balance_error() == 1 + 2 + 5  # sent twice, sent twice, booked twice
        return
    for fault in ("inserted:3", "booked:3"):
        assert shop.run("unique_id", fault=fault) == -signal.SIGKILL
    shop.run("unique_id")
    assert shop.balance_error() == 0


def check_optimistic_lock(shop: Shop, *, naive: bool) -> None:
    shop.fill()
    shop.crash_and_restart("optimistic_lock", "booked:5", *["--naive"] * naive)
    assert shop.balance_error() == (5 if naive else 0)


def check_failed_sends(shop: Shop, *, naive: bool) -> None:
    with Admin(shop.server.bootstrap) as admin:
        admin.create_topics(shop.topic, 1, configs={"max.message.bytes": "2000"})
        if naive:
            shop.run("failed_sends", "--naive")
            assert _lost_orders(shop) == 3
            return
        shop.run("failed_sends")
        assert [number for (number,) in shop.query("SELECT number FROM unsent ORDER BY number")] == [3, 10, 17]
        assert {bool(error) for (error,) in shop.query("SELECT error FROM unsent")} == {True}
        admin.alter_topic_configs(shop.topic, {"max.message.bytes": "20000"})
    shop.crash_and_restart("failed_sends", "acknowledged:2", "--again")
    assert shop.query("SELECT number FROM unsent") == []
    assert _lost_orders(shop) == 0


def _lost_orders(shop: Shop) -> int:
    seen = {json.loads(value or b"{}")["order"] for value in read(shop.server.bootstrap, shop.topic)}
    return 20 - len(seen)


def check_paused_order_and_event(shop: Shop) -> None:
    """A process is paused before its database decides. Its successor aborts its event, and is paused in turn."""
    with Admin(shop.server.bootstrap) as admin:
        admin.create_topics(shop.topic, 1)
    command = shop.command("order_and_event")
    paused = []
    for _ in range(2):
        env = {**os.environ, "FAULT": "prepared:1:STOP"}
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        paused.append(process)
    for process, refused in zip(paused, (True, False), strict=True):
        os.kill(process.pid, signal.SIGCONT)
        _, error = process.communicate(timeout=60)
        assert ("another process has taken over" in error) is refused
        assert process.returncode == int(refused), error
    assert _placed(shop) == _events(shop) == list(range(NUMBER))


def _placed(shop: Shop) -> list[int]:
    return [number for (number,) in shop.query("SELECT number FROM placed ORDER BY number")]


def _events(shop: Shop) -> list[int]:
    return [json.loads(value or b"{}")["order"] for value in read(shop.server.bootstrap, shop.topic)]


def check_order_and_event(shop: Shop, *, naive: bool) -> None:
    """Kill it at each step, and the broker with it. The naive program is killed once."""
    with Admin(shop.server.bootstrap) as admin:
        admin.create_topics(shop.topic, 1)
    if naive:
        shop.crash_and_restart("order_and_event", "decided:5", "--naive")
    else:
        for fault in ("sent:1", "prepared:1", "inserted:1", "noted:1", "decided:1", "completed:2", "prepared:3"):
            assert shop.run("order_and_event", fault=fault) == -signal.SIGKILL
            shop.server.kill()
            shop.server.wait_ready()
        shop.run("order_and_event")
    placed = _placed(shop)
    assert placed == list(range(NUMBER))
    assert _events(shop) == [number for number in placed if number != 4 or not naive]


CURES = {
    "manual_commit": check_manual_commit,
    "commit_on_exit": check_commit_on_exit,
    "offset_in_database": check_offset_in_database,
    "unique_id": check_unique_id,
    "optimistic_lock": check_optimistic_lock,
    "failed_sends": check_failed_sends,
    "order_and_event": check_order_and_event,
}
