"""Use a unique business id: a repeated record changes nothing.

The number of an order is its primary key, so a repeated order changes nothing, whatever repeated it: this consumer
after a crash, or a producer without idempotence. Balances change in the same transaction, and only if the order was
new.
"""

from __future__ import annotations

from tools import Database, Order, arguments, batches, consumer, database, print_balances, step

ADD = """INSERT INTO balances VALUES (?, ?)
         ON CONFLICT (account) DO UPDATE SET amount = balances.amount + excluded.amount"""


def book(db: Database, order: Order) -> None:
    with db.transaction():
        new = db.run("INSERT INTO orders VALUES (?) ON CONFLICT (number) DO NOTHING", order.number)
        step("inserted")
        if new.rowcount == 1:
            db.run(ADD, order.account, order.amount)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    tables = ("orders (number BIGINT PRIMARY KEY)", "balances (account TEXT PRIMARY KEY, amount BIGINT NOT NULL)")
    with database(options, *tables) as db, consumer(options) as orders:
        orders.subscribe([options.topic])
        for batch in batches(orders, [(options.topic, 0)]):
            for order in batch:
                if options.naive:
                    db.run(ADD, order.account, order.amount)
                else:
                    book(db, order)
                step("booked")
                orders.commit({(options.topic, order.partition): order.offset + 1})
        print_balances(db)


if __name__ == "__main__":
    main()
