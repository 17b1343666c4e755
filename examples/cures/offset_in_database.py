"""Store the offset in the database, in the same transaction as the result: then both are stored, or neither.

The naive form stores the result, then commits the offset to Kafka. A crash between the two repeats the record. Here,
the database holds the offset, and reading starts there; the Kafka group is not used. The offset's row also fences other
instances: if an instance does not find the offset that it stored last, because a second instance is running, it stops
and its transaction is rolled back.
"""

from __future__ import annotations

from tools import Database, Order, arguments, batches, consumer, database, print_balances, step

TABLES = (
    "balances (account TEXT PRIMARY KEY, amount BIGINT NOT NULL)",
    "offsets (topic TEXT, partition BIGINT, next BIGINT NOT NULL, PRIMARY KEY (topic, partition))",
)
ADD = """INSERT INTO balances VALUES (?, ?)
         ON CONFLICT (account) DO UPDATE SET amount = balances.amount + excluded.amount"""


def offset(db: Database, topic: str, partition: int) -> int:
    """Return the offset of the next record."""
    db.run("INSERT INTO offsets VALUES (?, ?, 0) ON CONFLICT DO NOTHING", topic, partition)
    return int(db.run("SELECT next FROM offsets WHERE topic = ? AND partition = ?", topic, partition).fetchone()[0])


def book(db: Database, topic: str, order: Order, expected: int) -> None:
    with db.transaction():
        db.run(ADD, order.account, order.amount)
        step("added")
        moved = db.run(
            "UPDATE offsets SET next = ? WHERE topic = ? AND partition = ? AND next = ?",
            *(order.offset + 1, topic, order.partition, expected),
        )
        if moved.rowcount != 1:
            raise SystemExit("another process is writing this partition to the same database")
        step("moved")
    step("booked")


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    partition = (options.topic, 0)
    with database(options, *TABLES) as db, consumer(options) as orders:
        if options.naive:
            orders.subscribe([options.topic])
        else:
            orders.assign([partition])
            expected = offset(db, *partition)
            orders.seek(*partition, expected)
        for batch in batches(orders, [partition]):
            for order in batch:
                if options.naive:
                    with db.transaction():
                        db.run(ADD, order.account, order.amount)
                    step("booked")
                    orders.commit({partition: order.offset + 1})
                else:
                    book(db, options.topic, order, expected)
                    expected = order.offset + 1
        print_balances(db)


if __name__ == "__main__":
    main()
