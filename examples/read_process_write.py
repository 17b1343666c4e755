"""Read, transform, write: each record is in the output exactly once, despite any crash.

The output and the consumed offsets are one transaction. A crash leaves neither: the next process with the same
`transactional_id` aborts the open transaction and continues after the last committed one. If only the transaction is
aborted (because of a timeout, or because the group moved the partitions to another member), the same process resets
its consumer and does the work again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import pyarrow as pa
import pyarrow.compute as pc

from oncelog import Consumer, Producer, errors


def transform(table: pa.Table) -> pa.Table:
    """Do the work: here, change to upper case."""
    return table.select(["key"]).append_column("value", pc.utf8_upper(table["value"].cast(pa.string())))


def main() -> None:
    options = parse()
    with (
        Producer(options.bootstrap, transactional_id=options.name) as producer,
        Consumer(
            options.bootstrap,
            group_id=options.name,
            group_instance_id=f"{options.name}-1",  # after a crash, the consumer gets its partitions back at once
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        consumer.subscribe([options.source])
        for table in consumer.tables(timeout=options.idle):
            try:
                with producer.transaction() as transaction:
                    transaction.send_table(options.target, transform(table))
                    step(options, "sent", producer)
                    transaction.send_offsets(consumer)
                    step(options, "offsets", producer)
            except (errors.AbortableError, errors.GroupError) as error:
                print(f"processing again: {error}", file=sys.stderr)
                consumer.seek_to_committed()  # otherwise, the next transaction would commit past these records
            else:
                step(options, "committed", producer)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--name", default="upper", help="name of the group and of the producer")
    parser.add_argument("--idle", type=float, help="stop after this many seconds without a record (never)")
    parser.add_argument("--die", choices=["sent", "offsets", "committed"], help="kill -9 at this step, once")
    parser.add_argument("--abort", choices=["sent", "offsets"], help="abort the transaction at this step, once")
    return parser.parse_args()


def step(options: argparse.Namespace, name: str, producer: Producer) -> None:
    """Do nothing, unless an option names this step: then crash, or raise an error that aborts the transaction."""
    if options.die == name:
        producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if options.abort == name:
        options.abort = None
        producer.flush()
        raise errors.AbortableError("as if it had timed out")


if __name__ == "__main__":
    main()
