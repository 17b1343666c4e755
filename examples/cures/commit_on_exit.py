"""Commit when partitions are given away, and at the end: then a planned stop repeats nothing.

Who commits now and then, for speed, repeats what came since at each deployment and at each rebalance, unless the
last commit is made when it is still allowed: in `on_revoked`, which is also told by `close`. SIGTERM has to get there:
Python's default is to end the process at once. The handler only makes a note, for between the database's commit and
the note of it no order may be left. (Against kill -9 this helps nothing; see the other examples.)
"""

from __future__ import annotations

import signal
import sys

from tools import arguments, batches, consumer, database, step, tell_shipped

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
                    sys.exit(0)  # `close` revokes
                if number % EVERY == 0:
                    commit([])
        tell_shipped(db)


if __name__ == "__main__":
    main()
