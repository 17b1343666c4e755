"""Commit an order in the database and its event in the topic together, or neither: two-phase commit (KIP-939).

Without the cure, the program commits the order and then sends the event. A crash between them loses the event; in the
other order, it would send an event without an order. With the cure, the event is in a prepared transaction, which no
timeout aborts. The database commits the order and the handle of that transaction together, which is the decision. After
a crash, the next start keeps the open transaction, and commits it if the database has its handle.

Before it reads the handle, it becomes the `owner` of that row. A process that was paused, or a commit that the database
still carries out after its client was killed, would otherwise decide after the next start has aborted its event.

The broker needs `transaction.two.phase.commit.enable=true`. Apache Kafka 4.3 does not serve KIP-939.
"""

from __future__ import annotations

import json
import uuid
from typing import NamedTuple

from tools import Database, arguments, database, step

from oncelog import Producer


class Order(NamedTuple):
    """A row of the table `placed`."""

    number: int
    account: str
    amount: int


ORDERS = [Order(number, f"account-{number % 3}", number + 1) for number in range(12)]


def event(order: Order) -> bytes:
    return json.dumps({"order": order.number, "amount": order.amount}).encode()


class Decisions:
    """The row of the database with the handle of the last decided transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._owner = str(uuid.uuid4())

    def take_over(self) -> str | None:
        """Return the handle. From now on, no other process can decide. Call it after the producer was created."""
        with self._db.transaction():
            self._db.run("INSERT INTO decided VALUES (0, '', NULL) ON CONFLICT (id) DO NOTHING")
            self._db.run("UPDATE decided SET owner = ? WHERE id = 0", self._owner)  # waits for a commit in progress
            (handle,) = self._db.run("SELECT handle FROM decided").fetchone()
        return handle

    def note(self, handle: str) -> None:
        """Note the handle, in the transaction that decides."""
        noted = self._db.run("UPDATE decided SET handle = ? WHERE id = 0 AND owner = ?", handle, self._owner)
        if noted.rowcount != 1:
            raise SystemExit("another process has taken over")


def place(producer: Producer, db: Database, decisions: Decisions, topic: str, order: Order) -> None:
    with producer.transaction() as transaction:
        transaction.send(topic, event(order), key=order.account.encode())
        step("sent")
        handle = transaction.prepare().to_text()
    step("prepared")
    with db.transaction():
        db.run("INSERT INTO placed VALUES (?, ?, ?)", *order)
        step("inserted")
        decisions.note(handle)
        step("noted")
    step("decided")
    producer.complete_transaction(handle)
    step("completed")


def place_naive(producer: Producer, db: Database, topic: str, order: Order) -> None:
    db.run("INSERT INTO placed VALUES (?, ?, ?)", *order)
    step("decided")
    producer.send(topic, event(order), key=order.account.encode()).result()


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    tables = (
        "placed (number BIGINT PRIMARY KEY, account TEXT, amount BIGINT)",
        "decided (id BIGINT PRIMARY KEY, owner TEXT, handle TEXT)",
    )
    settings = (
        {}
        if options.naive
        else {
            "transactional_id": f"{options.form}-{options.topic}",
            "transaction_two_phase_commit_enable": True,
            "keep_prepared_transaction": True,
        }
    )
    with database(options, *tables) as db, Producer(options.bootstrap, **settings) as producer:
        decisions = Decisions(db)
        if not options.naive:
            producer.complete_transaction(decisions.take_over())
        (placed,) = db.run("SELECT count(*) FROM placed").fetchone()
        for order in ORDERS[placed:]:
            if options.naive:
                place_naive(producer, db, options.topic, order)
            else:
                place(producer, db, decisions, options.topic, order)
        (placed,) = db.run("SELECT count(*) FROM placed").fetchone()
        print(f"placed: {placed} orders")


if __name__ == "__main__":
    main()
