"""Compare input and output. librdkafka reads the rows, because it shares no code with the sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from oncelog import Admin, Producer
from oncelog.columns.values import Format
from support.secured_cluster import our_options

NO_LOGIN: Mapping[str, str] = {}


@dataclass(frozen=True)
class Values:
    """How the values of both topics are encoded. `options` are those of source and sink for such values."""

    options: Mapping[str, str] = field(default_factory=dict)
    form: Format | None = None
    """Encodes the column `number`. None: values are texts."""
    read: Callable[[bytes], int] = int
    """Returns the number in a value of the output."""


TEXTS = Values()


class Count(NamedTuple):
    """Rows: written, seen by read_committed, never seen, seen more than once, different from the written ones."""

    wanted: int
    out: int
    lost: int
    duplicated: int
    wrong: int


def fill(
    bootstrap: str,
    topic: str,
    out: str,
    records: int,
    partitions: int,
    login: Mapping[str, str] = NO_LOGIN,
    values: Values = TEXTS,
) -> None:
    """Create both topics, and write the numbers from 0 on, each with a key derived from it.

    `login` has further options of the clients, by librdkafka's names.
    """
    ours = our_options(login)
    with Admin(bootstrap, **ours) as admin:
        admin.create_topics([topic, out], partitions)
    numbers = pa.array(np.arange(records))
    column = {"value": numbers.cast(pa.string())} if values.form is None else {"number": numbers}
    table = pa.table({"key": pa.array(np.arange(records) % 997).cast(pa.string()), **column})
    with Producer(bootstrap, **ours) as producer:
        for start in range(0, records, 50_000):
            producer.send_table(topic, table.slice(start, 50_000), value=values.form)
        producer.flush()


def count(
    bootstrap: str, topic: str, records: int, login: Mapping[str, str] = NO_LOGIN, values: Values = TEXTS
) -> Count:
    """Read everything in the topic from its beginning to its last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **login,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    seen = np.zeros(records, dtype=np.int64)
    wrong = 0
    try:
        parts = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in parts])
        left = set(parts)
        while left:
            for message in consumer.consume(10_000, timeout=1):
                if message.error():
                    if message.error().name() != "_PARTITION_EOF":
                        raise RuntimeError(str(message.error()))
                    left.discard(message.partition())
                    continue
                number = values.read(message.value())
                if number >= records or message.key() != str(number % 997).encode():
                    wrong += 1
                else:
                    seen[number] += 1
    finally:
        consumer.close()
    duplicated = int(np.maximum(seen - 1, 0).sum())
    return Count(records, int(seen.sum()) + wrong, int((seen == 0).sum()), duplicated, wrong)
