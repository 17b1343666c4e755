"""Read-process-write by members of one group, in processes that are killed repeatedly; then count the output.

As a program (`python -m support.copying BOOTSTRAP SOURCE TARGET MEMBER OPTIONS`), it is one member. It copies until it
is killed, prints a line for each committed or aborted transaction, and continues in the same process after an error
that an abort can cure.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from oncelog import Admin, Consumer, Producer, errors
from support.processes import ManagedProcess, wait_until

PARTITIONS = 4
FEW = 5
"""Records in each transaction."""
LIMIT_S = 120.0


def copy(bootstrap: str, source: str, target: str, member: str, options: dict[str, Any]) -> None:
    """Run one member until it is killed."""
    with (
        Producer(bootstrap, transactional_id=f"{target}-{member}") as producer,
        Consumer(
            bootstrap,
            group_id=target,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **options,
        ) as consumer,
    ):
        consumer.subscribe([source])
        while True:
            try:
                records = consumer.poll(0.2, max_records=FEW)
                if not records:
                    continue
                with producer.transaction() as transaction:
                    for record in records:
                        transaction.send(target, record.value, partition=record.partition)
                    transaction.send_offsets(consumer)
                print("committed", len(records), flush=True)
            except (errors.AbortableError, errors.GroupError) as error:
                consumer.seek_to_committed()
                print("aborted", error, flush=True)


def run(bootstrap: str, name: str, folder: Path, records: int, deaths: int, options: dict[str, Any]) -> Counter[bytes]:
    """Copy `records` with two members that are killed -9 in turns, and a third that joins and leaves.

    Return how often each record is in the output.
    """
    source, target = f"{name}-in", f"{name}-out"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Admin(bootstrap) as admin:
        admin.create_topics([source, target], PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(records):
            producer.send(source, b"%d" % number, partition=number % PARTITIONS)

    def start(member: str, life: int) -> ManagedProcess:
        arguments = [bootstrap, source, target, member, json.dumps(options)]
        command = [sys.executable, "-m", "support.copying", *arguments]
        return ManagedProcess(
            command, folder, f"member-{member}-{life}", {"PYTHONPATH": str(Path(__file__).parents[1])}
        )

    lives = {member: start(member, 0) for member in ("a", "b")}
    try:
        for death in range(deaths):
            member = "ab"[death % 2]
            victim = lives[member]
            enough = chance.randrange(1, 6)

            def done(victim: ManagedProcess = victim, enough: int = enough) -> bool:
                return sum(line.startswith("committed") for line in victim.lines()) >= enough

            wait_until(lambda: done() or read(bootstrap, target).total() >= records, "the member copies records")
            victim.kill()
            lives[member] = start(member, death + 1)
            if death == deaths // 2:
                lives["c"] = start("c", 0)  # another member with its own partitions: a rebalance during the kills
        found: Counter[bytes] = Counter()

        def everything() -> bool:
            nonlocal found
            found = read(bootstrap, target)
            return len(found) >= records

        wait_until(everything, f"all is copied\n{[life.output() for life in lives.values()]}", timeout=LIMIT_S)
    finally:
        for life in lives.values():
            life.kill()
    return read(bootstrap, target)


def read(bootstrap: str, topic: str) -> Counter[bytes]:
    """Return how often each value is present for a read_committed reader."""
    found: Counter[bytes] = Counter()
    with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partitions = [(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            found.update(record.value or b"" for record in consumer.poll(5))
    return found


if __name__ == "__main__":
    _bootstrap, _source, _target, _member, _options = sys.argv[1:]
    copy(_bootstrap, _source, _target, _member, json.loads(_options))
