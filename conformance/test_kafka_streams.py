"""Kafka Streams with `exactly_once_v2`: its word count, while its process and the broker are killed.

Each committed count of a word is one more than the last, so a lost or repeated record is seen at once.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from oncelog import Admin, Consumer, Producer
from support.apache_kafka import SHORT_LIVED, java, properties
from support.processes import ManagedProcess
from support.servers import Server

WORDS = "streams-plaintext-input"
COUNTS = "streams-wordcount-output"
"""The names are in the program, `WordCountDemo` of the package kafka-streams-examples."""
PARTITIONS = 3
WORDS_A_LINE = 5
LINES = 200
KILLS = 2


@contextmanager
def word_count(server: Server, folder: Path, run: int) -> Iterator[ManagedProcess]:
    """Run the program in its state directory. It is killed at the end."""
    settings = {
        "bootstrap.servers": server.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(folder / "state"),
        "statestore.cache.max.bytes": "0",
        "consumer.session.timeout.ms": "6000",
        "consumer.heartbeat.interval.ms": "500",
    }
    path = folder / "streams.properties"
    path.write_text(properties(settings))
    program = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
    options = (*SHORT_LIVED, f"-Djava.io.tmpdir={folder}")  # the library that it unpacks stays there after a kill
    process = ManagedProcess(java(program, path, options=options), folder, f"streams-{run}")
    try:
        yield process
    finally:
        process.kill()


def committed(consumer: Consumer, seen: dict[str, list[int]]) -> int:
    """Add the committed counts of each word, and return how many there are."""
    for record in consumer.poll(0.2):
        assert record.key is not None
        assert record.value is not None
        seen.setdefault(record.key.decode(), []).append(int.from_bytes(record.value, "big"))
    return sum(map(len, seen.values()))


def test_each_word_is_counted_once_while_streams_and_broker_are_killed(own_server: Server, tmp_path: Path) -> None:
    server = own_server
    seed = int(os.environ.get("ONCELOG_STREAMS_SEED") or secrets.randbelow(10_000))
    print(f"ONCELOG_STREAMS_SEED={seed}")
    random = Random(seed)
    sent: Counter[str] = Counter()
    seen: dict[str, list[int]] = {}
    with Admin(server.bootstrap) as admin:
        admin.create_topics([WORDS, COUNTS], PARTITIONS)
    with (
        Producer(server.bootstrap, linger_ms=0) as producer,
        Consumer(server.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        consumer.assign([(COUNTS, partition) for partition in range(PARTITIONS)])

        def send_lines() -> None:
            for _ in range(LINES):
                words = [f"word{random.randrange(20)}" for _ in range(WORDS_A_LINE)]
                sent.update(words)
                producer.send(WORDS, " ".join(words).encode())
            producer.flush()

        def all_counted() -> bool:
            return committed(consumer, seen) >= sum(sent.values())

        for run in range(KILLS):
            with word_count(server, tmp_path, run) as process:
                send_lines()
                process.wait_for(all_counted, "all words are counted")
                send_lines()
                time.sleep(random.uniform(0, 0.3))  # a transaction takes 0.1 s: the kill meets one that is open
        server.kill()
        server.wait_ready()
        with word_count(server, tmp_path, KILLS) as process:
            send_lines()
            process.wait_for(all_counted, "all words are counted")
    assert seen == {word: list(range(1, number + 1)) for word, number in sent.items()}
