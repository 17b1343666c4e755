"""Commit after the work, not before it.

If an offset is committed when the record arrives (or by a timer: enable_auto_commit), it says "done" about work that
has not been done. A crash then loses the record. If the offset is committed after the work, a crash repeats the last
records instead. Nothing is lost; the other examples handle the repeated records.
"""

from __future__ import annotations

from tools import Database, Order, arguments, batches, consumer, database, print_shipped, step


def ship(db: Database, order: Order) -> None:
    db.run("INSERT INTO shipped VALUES (?, ?)", order.number, order.amount)
    step("shipped")


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    with database(options, "shipped (number BIGINT, amount BIGINT)") as db, consumer(options) as orders:
        orders.subscribe([options.topic])
        for batch in batches(orders, [(options.topic, 0)]):
            if options.naive:
                orders.commit()
            for order in batch:
                ship(db, order)
                if not options.naive:
                    orders.commit({(options.topic, order.partition): order.offset + 1})
        print_shipped(db)


if __name__ == "__main__":
    main()
