"""Shared code of the examples: the command line, a database, reading up to the end, and a place for kill -9."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from oncelog import Consumer
from oncelog.aio import ConsumerRecord
from oncelog.errors import UnknownTopicError


class Order(NamedTuple):
    """One input record: key = account, value = {"order": 7, "amount": 3}."""

    number: int
    account: str
    amount: int
    partition: int
    offset: int


def arguments(description: str, **more: str) -> argparse.Namespace:
    """Parse the common command line and an example's own options (name, help).

    The result has the attribute `form`: the program's name, followed by `-naive` without the cure. Each form has its
    own group and file, so that one form's progress does not affect the other.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="shop")
    parser.add_argument(
        "--database", help="a file for SQLite (default: EXAMPLE[-naive].db), or postgresql://USER@HOST:PORT/NAME"
    )
    parser.add_argument("--naive", action="store_true", help="without the cure")
    for name, text in more.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    options = parser.parse_args()
    options.form = Path(sys.argv[0]).stem + "-naive" * options.naive
    options.database = options.database or f"{options.form}.db"
    return options


class Database:
    """SQLite or PostgreSQL, as far as the examples need them: SQL with ? for values, and transactions in `with`
    blocks.
    """

    def __init__(self, url: str) -> None:
        self._postgres = url.startswith("postgresql://")
        if self._postgres:
            import psycopg

            self._connection: Any = psycopg.connect(url, autocommit=True)
        else:
            import sqlite3

            self._connection = sqlite3.connect(url, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def run(self, sql: str, *values: object) -> Any:
        """Run a statement. The returned cursor has fetchone, fetchall and rowcount."""
        return self._connection.execute(sql.replace("?", "%s") if self._postgres else sql, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements of the block, or none."""
        self.run("BEGIN")
        try:
            yield
        except BaseException:
            self.run("ROLLBACK")
            raise
        self.run("COMMIT")


def database(options: argparse.Namespace, *tables: str) -> closing[Database]:
    """Open the database, and create these tables."""
    opened = Database(options.database)
    for table in tables:
        opened.run(f"CREATE TABLE IF NOT EXISTS {table}")
    return closing(opened)


def consumer(options: argparse.Namespace, **more: Any) -> Consumer:
    """Create a static member of the example's group, which gets its partitions back at once after a crash."""
    return Consumer(
        options.bootstrap,
        group_id=f"{options.form}-{options.topic}",
        group_instance_id="till-1",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **more,
    )


def batches(consumer: Consumer, partitions: list[tuple[str, int]]) -> Iterator[list[Order]]:
    """Yield the orders of each poll, up to the ends that these partitions had at the first call."""
    try:
        ends = consumer.end_offsets(partitions)
    except UnknownTopicError:
        raise SystemExit(f"topic {partitions[0][0]} does not exist: run orders.py first") from None
    positions = dict.fromkeys(partitions, 0)
    while any(positions[partition] < end for partition, end in ends.items()):
        orders = [_order(record) for record in consumer.poll(0.2)]
        if orders:
            yield orders
        assigned = set(consumer.assignment())
        for partition in assigned.intersection(partitions):
            positions[partition] = consumer.position(*partition)


def _order(record: ConsumerRecord) -> Order:
    order = json.loads(record.value or b"{}")
    if not {"order", "amount"} <= set(order):
        raise SystemExit(
            f"no order at offset {record.offset} of topic {record.topic}: fill another topic with orders.py"
        )
    return Order(order["order"], (record.key or b"").decode(), order["amount"], record.partition, record.offset)


def print_shipped(db: Database) -> None:
    """Print the result."""
    rows, orders = db.run("SELECT count(*), count(DISTINCT number) FROM shipped").fetchone()
    print(f"shipped: {rows} rows of {orders} different orders")


def print_balances(db: Database) -> None:
    """Print the result."""
    accounts, amount = db.run("SELECT count(*), sum(amount) FROM balances").fetchone()
    print(f"balances: {amount or 0} in {accounts} accounts")


_reached: dict[str, int] = {}


def step(name: str) -> None:
    """Do nothing, unless the variable FAULT names this step and a number.

    With `stored:3`, the process ends as if by kill -9 when it reaches the step `stored` for the third time. With
    `stored:3:TERM`, it gets a SIGTERM.
    """
    _reached[name] = _reached.get(name, 0) + 1
    wanted, _, rest = os.environ.get("FAULT", "").partition(":")
    number, _, kind = rest.partition(":")
    if wanted == name and _reached[name] == int(number):
        os.kill(os.getpid(), signal.Signals[f"SIG{kind or 'KILL'}"])
