"""Read-process-write by members of one group, in processes that are killed repeatedly; then count the output.

As a program (`python -m support.copying BOOTSTRAP SOURCE TARGET MEMBER OPTIONS [LOGIN]`), it is one member. It copies
until it is killed, prints a line for each committed or aborted transaction, and continues in the same process after an
error that an abort can cure.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from oncelog import Admin, Consumer, Producer, errors
from support.history import check_once
from support.processes import ManagedProcess, wait_until
from support.reading import read

PARTITIONS = 4
FEW = 5
"""Records in each transaction."""
LIMIT_S = 120.0


def copy(
    bootstrap: str, source: str, target: str, member: str, options: dict[str, Any], login: dict[str, Any] | None = None
) -> None:
    """Run one member until it is killed. `options` are the consumer's, and `login` has those of both clients."""
    with (
        Producer(bootstrap, transactional_id=f"{target}-{member}", **(login or {})) as producer,
        Consumer(
            bootstrap,
            group_id=target,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **options,
            **(login or {}),
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


def run(bootstrap: str, name: str, folder: Path, records: int, deaths: int, options: dict[str, Any]) -> None:
    """Copy `records` with two members that are killed -9 in turns, and a third that joins and leaves.

    Check that each record is in the output once.
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

            wait_until(
                lambda: done() or len(read(bootstrap, target, PARTITIONS)) >= records, "the member copies records"
            )
            victim.kill()
            lives[member] = start(member, death + 1)
            if death == deaths // 2:
                lives["c"] = start("c", 0)  # another member with its own partitions: a rebalance during the kills

        def everything() -> bool:
            return len(set(read(bootstrap, target, PARTITIONS))) >= records

        wait_until(everything, f"all is copied\n{[life.output() for life in lives.values()]}", timeout=LIMIT_S)
    finally:
        for life in lives.values():
            life.kill()
    check_once((b"%d" % number for number in range(records)), read(bootstrap, target, PARTITIONS))


if __name__ == "__main__":
    _bootstrap, _source, _target, _member, _options, *_login = sys.argv[1:]
    copy(_bootstrap, _source, _target, _member, json.loads(_options), json.loads(_login[0]) if _login else None)
