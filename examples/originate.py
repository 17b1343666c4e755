"""A service that originates data, and knows after a crash whether its last transaction has committed.

Each transaction also contains the service's own sequence number, as the metadata of a group's offset. So the number is
committed if and only if the records are. The next process with the same `transactional_id` aborts an open transaction,
reads the number, and continues with the next one. The offset itself is always 0, in a topic without records, so that
the group has no lag.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from oncelog import Admin, OffsetAndMetadata, Producer


def main() -> None:
    options = parse()
    place = (f"{options.name}-progress", 0)
    with Admin(options.bootstrap) as admin, Producer(options.bootstrap, transactional_id=options.name) as producer:
        # The producer has ended the transaction of a crash, so the number is final.
        if place[0] not in admin.list_topics():
            admin.create_topics(place[0])
            with producer.transaction() as transaction:
                transaction.send_offsets(options.name, {place: OffsetAndMetadata(0, metadata="0")})
        stored = admin.committed(options.name).get(place)
        if stored is None:
            sys.exit(
                f"group {options.name} has no number: it has expired (offsets.retention.minutes, 7 days), or the first "
                f"start was interrupted. If {options.target} has no records of it, delete topic {place[0]} to "
                "begin at 1. Otherwise, commit the number of the last record, as this program does"
            )
        done = int(stored.metadata)
        print(f"transaction {done} is committed", flush=True)
        for number in range(done + 1, options.count + 1):
            with producer.transaction() as transaction:
                for side in ("debit", "credit"):
                    transaction.send(options.target, f"{side} {number}")
                step(options, "sent", number, producer)
                progress = {place: OffsetAndMetadata(0, metadata=str(number))}
                transaction.send_offsets(options.name, progress)
                step(options, "numbered", number, producer)
            step(options, "committed", number, producer)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--name", default="payments", help="name of the producer and of the group")
    parser.add_argument("--count", type=int, default=10, help="number of the last transaction to write")
    parser.add_argument("--die", choices=["sent", "numbered", "committed"], help="kill -9 at this step")
    parser.add_argument("--at", type=int, default=0, help="number of the transaction for --die")
    return parser.parse_args()


def step(options: argparse.Namespace, name: str, number: int, producer: Producer) -> None:
    """Do nothing, unless --die and --at name this step: then end as by kill -9, after the records so far are sent."""
    if (options.die, options.at) == (name, number):
        producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
