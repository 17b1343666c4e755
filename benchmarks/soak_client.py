"""Run one Python client library of the soak: transactions, some of them aborted, and a group that rebalances.

    soak_client.py LIBRARY BOOTSTRAP RATE_FILE SEED

Runs until it is killed. RATE_FILE contains the target number of records per second. Each line on stdout is the number
of records read so far. If a read_committed member sees an aborted record, the program ends.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from support.clients.aio import AioClient
from support.clients.base import Client, Member, Outgoing
from support.clients.confluent import ConfluentClient
from support.clients.kafka_python import KafkaPythonClient
from support.clients.ours import OurClient

LIBRARIES: dict[str, type[Client]] = {
    "oncelog": OurClient,
    "librdkafka": ConfluentClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AioClient,
}
PARTITIONS = 4
ROUND_S = 0.5
MOST = 2000
"""Number of records in a round."""
REBALANCE_S = 20.0
"""How long two members may take to share the partitions."""


def rebalance(client: Client, group: str, topic: str, member: Member) -> None:
    """Let a second member join and leave again. No records are produced meanwhile."""
    other = client.member(group, topic)
    try:
        deadline = time.monotonic() + REBALANCE_S
        while True:
            shares = other.assignment(), member.assignment()  # each must poll, or it does not rejoin
            if all(shares):
                return
            if time.monotonic() > deadline:
                raise TimeoutError("two members did not share the partitions")
    finally:
        other.close()


def take(member: Member, count: int, taken: dict[int, int]) -> None:
    """Read `count` records after the offsets in `taken`. A rebalance before the commit repeats earlier records."""
    while count:
        for each in member.take(count):
            if not each.value or not each.value.startswith(b"committed"):
                raise AssertionError("a read_committed member has seen an aborted record")
            if each.offset > taken[each.partition]:
                taken[each.partition] = each.offset
                count -= 1


def run(name: str, bootstrap: str, rate_file: Path, seed: str) -> None:
    """Produce, read, abort and rebalance in each round."""
    chance = random.Random(f"{seed} {name}")
    client = LIBRARIES[name](bootstrap)
    group = topic = f"soak-{name}-{os.getpid()}"
    for each in (topic, f"{topic}-plain"):
        client.create_topic(each, PARTITIONS)
    writer = client.transactions(f"soak-{name}")
    member = client.member(group, topic)
    taken = dict.fromkeys(range(PARTITIONS), -1)
    read = turn = 0
    while True:
        began, turn = time.monotonic(), turn + 1
        rate = float(rate_file.read_text())
        count = max(1, min(MOST, int(rate * ROUND_S)))
        commit = chance.random() > 0.2
        word = b"committed" if commit else b"aborted"
        records = [
            Outgoing(word + chance.randbytes(chance.randrange(400)), partition=chance.randrange(PARTITIONS))
            for _ in range(count)
        ]
        writer.begin()
        writer.send(topic, records)
        if commit:
            writer.commit()
            take(member, count, taken)
            read += count
            member.commit()
        else:
            writer.abort()
        if turn % 10 == 0:
            client.send(f"{topic}-plain", records, codec="gzip")
        if turn % 40 == 0:
            rebalance(client, group, topic, member)
        print(read, flush=True)
        time.sleep(max(0.0, count / rate - (time.monotonic() - began)))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
