"""Run the programs of examples/cures with kill -9 between their steps, and count the result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from oncelog import Admin, Producer
from support.reading import read
from support.servers import Server

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = 12
ACCOUNTS = 3


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

    def run(self, program: str, *arguments: str, fault: str = "") -> int:
        """Run a program to its end or to the fault -> exit status, -9 after a kill."""
        command: list[str | Path] = [
            sys.executable,
            EXAMPLES / "cures" / f"{program}.py",
            "--bootstrap",
            self.server.bootstrap,
        ]
        command += ["--topic", self.topic, "--database", self.database, *arguments]
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


CURES = {
    "manual_commit": check_manual_commit,
    "commit_on_exit": check_commit_on_exit,
    "offset_in_database": check_offset_in_database,
    "unique_id": check_unique_id,
    "optimistic_lock": check_optimistic_lock,
    "failed_sends": check_failed_sends,
}
