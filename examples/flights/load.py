"""Write every flight to the topic `flights`, in transactions of which some are aborted on purpose.

python examples/flights/load.py localhost:9092 --seed 1

After every transaction, the program prints a line of JSON: the numbers of committed and aborted rows so far.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import data

from oncelog import Producer

ROWS_PER_TRANSACTION = 2_000
ABORTED = 0.15
"""The fraction of transactions that are aborted. The next transaction writes their rows again."""


class ChangedMyMindError(Exception):
    """Raised inside a transaction to abort it."""


def load(brokers: str, seed: int, pause: float) -> None:
    """Write all flights, each committed once. `pause` is in seconds between two transactions."""
    rng = random.Random(seed)
    flights = data.flights()
    committed = aborted = 0
    with Producer(brokers, transactional_id="flights-loader") as producer:
        while committed < len(flights):
            table = data.messages(flights[committed : committed + ROWS_PER_TRANSACTION])
            try:
                with producer.transaction() as transaction:
                    transaction.send_table(data.FLIGHTS, table)
                    if rng.random() < ABORTED:
                        producer.flush()
                        raise ChangedMyMindError
                committed += len(table)
            except ChangedMyMindError:
                aborted += len(table)
            print(json.dumps({"committed": committed, "aborted": aborted}), flush=True)
            time.sleep(pause)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Write the flights into a topic.")
    parser.add_argument("brokers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two transactions")
    arguments = parser.parse_args()
    load(arguments.brokers, arguments.seed, arguments.pause)


if __name__ == "__main__":
    main()
