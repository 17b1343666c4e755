"""Commit when partitions are revoked and at the end: then a planned stop repeats nothing.

A consumer that commits only occasionally, for speed, repeats records after each deployment and each rebalance. To avoid
this, it makes a last commit while it still owns the partitions: in `on_revoked`, which `close` calls, too. SIGTERM has
to reach that call, because Python ends the process at once by default. The handler only sets a flag, so that it cannot
interrupt the database's commit and the note about it. (This does not help against kill -9; see the other examples.)
"""

from __future__ import annotations

import signal
import sys

from tools import arguments, batches, consumer, database, print_shipped, step

EVERY = 1000


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    with database(options, "shipped (number BIGINT, amount BIGINT)") as db, consumer(options) as orders:
        done: dict[tuple[str, int], int] = {}
        told_to_stop: list[bool] = []

        def commit(_revoked: list[tuple[str, int]]) -> None:
            orders.commit(done)
            done.clear()

        if options.naive:
            orders.subscribe([options.topic])
        else:
            signal.signal(signal.SIGTERM, lambda *_: told_to_stop.append(True))
            orders.subscribe([options.topic], on_revoked=commit)
        for batch in batches(orders, [(options.topic, 0)]):
            for number, order in enumerate(batch, 1):
                with db.transaction():
                    db.run("INSERT INTO shipped VALUES (?, ?)", order.number, order.amount)
                step("shipped")
                done[options.topic, order.partition] = order.offset + 1
                if told_to_stop:
                    sys.exit(0)  # `close` revokes the partitions
                if number % EVERY == 0:
                    commit([])
        print_shipped(db)


if __name__ == "__main__":
    main()
