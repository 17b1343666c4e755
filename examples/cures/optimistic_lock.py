"""Use the record's offset as the version of the row that it changes: an older offset changes nothing.

All records of one account are in one partition (because of their key), so their offsets only increase. A row that
stores the offset of its last change distinguishes new records from repeated ones, without a table of all ids. Two
instances that change the same row do not harm each other either: the database accepts only one of them.
"""

from __future__ import annotations

from tools import Database, Order, arguments, batches, consumer, database, print_balances, step


def change(db: Database, order: Order) -> bool:
    """Apply the order, and return whether it was new. One statement, so it needs no transaction."""
    db.run("INSERT INTO balances VALUES (?, 0, -1) ON CONFLICT DO NOTHING", order.account)
    changed = db.run(
        "UPDATE balances SET amount = amount + ?, version = ? WHERE account = ? AND version < ?",
        *(order.amount, order.offset, order.account, order.offset),
    )
    return bool(changed.rowcount)


def overwrite(db: Database, order: Order) -> None:
    """Change the balance in the naive way: read, add, write; without a version."""
    db.run("INSERT INTO balances VALUES (?, 0, -1) ON CONFLICT DO NOTHING", order.account)
    (amount,) = db.run("SELECT amount FROM balances WHERE account = ?", order.account).fetchone()
    db.run("UPDATE balances SET amount = ? WHERE account = ?", amount + order.amount, order.account)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    table = "balances (account TEXT PRIMARY KEY, amount BIGINT NOT NULL, version BIGINT NOT NULL)"
    with database(options, table) as db, consumer(options) as orders:
        orders.subscribe([options.topic])
        for batch in batches(orders, [(options.topic, 0)]):
            for order in batch:
                (overwrite if options.naive else change)(db, order)
                step("booked")
                orders.commit({(options.topic, order.partition): order.offset + 1})
        print_balances(db)


if __name__ == "__main__":
    main()
