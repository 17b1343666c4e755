"""Store records that could not be sent, and send them when the cause is gone.

`send` returns a future, which raises if the broker rejects the record (here, because it is too large). `close` raises
the first error that was not read; the others are lost with the process. In this example, each order is inserted into
the table `unsent` before it is sent, and deleted when it is acknowledged. The remaining rows were rejected, or were in
flight during a crash. `--again` sends them. A record may then be in the topic twice, which a unique id handles.
"""

from __future__ import annotations

import contextlib
import json

from tools import Database, arguments, database, step

from oncelog import Producer, errors

ORDERS = [(number, f"account-{number % 3}", number) for number in range(20)]


def note(size: int) -> str:
    """Some customers write long notes."""
    return "x" * size


def value(number: int, amount: int) -> bytes:
    return json.dumps({"order": number, "amount": amount, "note": note(5_000 if number % 7 == 3 else 10)}).encode()


def send(producer: Producer, db: Database, topic: str, orders: list[tuple[int, str, int]]) -> None:
    futures = [
        (number, producer.send(topic, value(number, amount), key=key.encode())) for number, key, amount in orders
    ]
    for number, future in futures:
        try:
            future.result()
        except errors.OncelogError as error:
            db.run("UPDATE unsent SET error = ? WHERE number = ?", str(error), number)
            continue
        step("acknowledged")
        db.run("DELETE FROM unsent WHERE number = ?", number)


def main() -> None:
    options = arguments(__doc__.splitlines()[0], again="send the remaining orders of the previous run")
    table = "unsent (number BIGINT PRIMARY KEY, account TEXT, amount BIGINT, error TEXT)"
    with database(options, table) as db, contextlib.ExitStack() as stack:
        producer = stack.enter_context(Producer(options.bootstrap))
        if options.naive:
            # Its errors are raised by `close` at the latest. To ignore them:
            stack.pop_all()
            for number, key, amount in ORDERS:
                producer.send(options.topic, value(number, amount), key=key.encode())
            with contextlib.suppress(errors.OncelogError):
                producer.close()
            print(f"sent: {len(ORDERS)} orders, without a check of their outcomes")
            return
        if not options.again:
            with db.transaction():
                for order in ORDERS:
                    db.run("INSERT INTO unsent VALUES (?, ?, ?, '')", *order)
        left = db.run("SELECT number, account, amount FROM unsent ORDER BY number").fetchall()
        send(producer, db, options.topic, left)
        refused = [number for (number,) in db.run("SELECT number FROM unsent ORDER BY number").fetchall()]
        print(f"unsent: {len(refused)} orders {refused}")


if __name__ == "__main__":
    main()
