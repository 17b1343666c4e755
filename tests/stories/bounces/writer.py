"""Write numbered records until SIGTERM, and print the outcome of each one as Kafka's VerifiableProducer does.

    python -m stories.bounces.writer LIBRARY KIND BOOTSTRAP TOPIC NAME RATE SEED [OPTIONS]

LIBRARY is confluent or oncelog, KIND is plain (idempotent, acks=all) or transactions. RATE is records per second.
OPTIONS is a JSON file with options of the clients by librdkafka's names, such as those of a login.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka

import oncelog
from oncelog import errors
from stories.bounces.verdict import UNKNOWN, Place
from support.secured_cluster import our_options

PARTITIONS = 3
A_TRANSACTION = 30
"""Records in each transaction."""
ABORTED = 0.1
"""The fraction of transactions that the writer aborts on purpose."""
PATIENCE_S = 120
"""How long a record or a transaction may take: brokers are away for longer than usual."""

Record = tuple[int, str]
"""Partition and value."""


class AbortedOnPurposeError(Exception):
    """Raised in a transaction that the writer decides to abort."""


class Job:
    """What to write, and where the outcomes go."""

    def __init__(
        self, bootstrap: str, topic: str, name: str, rate: float, seed: str, login: Mapping[str, str] | None = None
    ) -> None:
        """`login` has further options of the clients, by librdkafka's names."""
        self.bootstrap, self.topic, self.name = bootstrap, topic, name
        self.foreign = {"bootstrap.servers": bootstrap, **(login or {})}
        self.ours = our_options(login or {})
        self.chance = random.Random(f"{seed} {name}")
        self._rate = rate
        self._over = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._over = True

    def records(self) -> Iterator[Record]:
        """Return records at the given rate until SIGTERM."""
        number, due = 0, time.monotonic()
        while not self._over:
            yield number % PARTITIONS, f"{self.name}.{number}"
            number += 1
            due = max(due + 1 / self._rate, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))

    def transactions(self) -> Iterator[list[Record]]:
        """Return the records of one transaction after the other until SIGTERM."""
        records: list[Record] = []
        for record in self.records():
            records.append(record)
            if len(records) == A_TRANSACTION:
                yield records
                records = []

    def acknowledged(self, value: str, place: Place) -> None:
        """Report that a record is in the log, or that its transaction is committed."""
        self._print("producer_send_success", value=value, partition=place[0], offset=place[1])

    def failed(self, value: str, error: object) -> None:
        """Report that the outcome of a record is not known."""
        self._print("producer_send_error", value=value, message=str(error))

    def aborted(self, records: list[Record]) -> None:
        """Report an aborted transaction."""
        self._print("aborted", values=[value for _, value in records])

    def undecided(self, records: list[Record], error: object) -> None:
        """Report a transaction whose outcome is not known."""
        self._print("undecided", values=[value for _, value in records], message=str(error))

    def _print(self, name: str, **event: object) -> None:
        print(json.dumps({"name": name, **event}), flush=True)


def confluent_plain(job: Job) -> None:
    """Write with librdkafka's idempotent producer."""

    def report(error: Any, message: Any) -> None:
        value = message.value().decode()
        if error is not None:
            job.failed(value, error)
        else:
            job.acknowledged(value, place_of(message))

    options = {"enable.idempotence": True, "delivery.timeout.ms": PATIENCE_S * 1000}
    producer = confluent_kafka.Producer({**job.foreign, "linger.ms": 5, **options})
    for partition, value in job.records():
        while True:
            try:
                producer.produce(job.topic, value.encode(), partition=partition, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(PATIENCE_S + 10) == 0


class ConfluentTransactions:
    """Write transactions with librdkafka. After a fatal error, a new producer continues."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._places: dict[str, Place] = {}
        self._producer: Any = None
        for records in job.transactions():
            self._write(records)

    def _start(self) -> None:
        # With sparse connections, librdkafka may wait 30 s until it connects to a restarted coordinator again.
        options = {"transactional.id": self._job.name, "transaction.timeout.ms": 60_000, "linger.ms": 5}
        options["enable.sparse.connections"] = False
        self._producer = confluent_kafka.Producer({**self._job.foreign, **options})
        retry(lambda: self._producer.init_transactions(30))

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._places[message.value().decode()] = place_of(message)

    def _write(self, records: list[Record]) -> None:
        if self._producer is None:
            self._start()
        producer = self._producer
        self._places.clear()
        try:
            producer.begin_transaction()
            for partition, value in records:
                producer.produce(self._job.topic, value.encode(), partition=partition, on_delivery=self._delivered)
            if self._job.chance.random() < ABORTED:
                producer.flush(1)
                raise AbortedOnPurposeError
            retry(lambda: producer.commit_transaction(30))
        except (confluent_kafka.KafkaException, AbortedOnPurposeError) as error:
            self._abort(records, error)
        else:
            for _, value in records:
                self._job.acknowledged(value, self._places[value])

    def _abort(self, records: list[Record], error: Exception) -> None:
        mine = isinstance(error, AbortedOnPurposeError)
        try:
            if mine or error.args[0].txn_requires_abort():
                retry(lambda: self._producer.abort_transaction(30))
                self._job.aborted(records)
                return
        except confluent_kafka.KafkaException as second:
            error = second
        self._job.undecided(records, error)
        self._producer = None


def place_of(message: Any) -> Place:
    """Return where a record is. librdkafka does not know the offset if only the response to a later batch arrived."""
    offset = message.offset()
    return message.partition(), UNKNOWN if offset is None else offset


def retry(call: Callable[[], object]) -> None:
    """Repeat a call of librdkafka while its error may be retried."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def oncelog_plain(job: Job) -> None:
    """Write with our idempotent producer."""

    def report(metadata: Any, error: BaseException | None, value: str) -> None:
        if error is not None:
            job.failed(value, error)
        else:
            job.acknowledged(value, (metadata.partition, metadata.offset))

    with oncelog.Producer(job.bootstrap, delivery_timeout_ms=PATIENCE_S * 1000, **job.ours) as producer:
        for partition, value in job.records():
            producer.send(
                job.topic,
                value,
                partition=partition,
                on_delivery=lambda metadata, error, value=value: report(metadata, error, value),
            )
        producer.flush()


def oncelog_transactions(job: Job) -> None:
    """Write transactions with our producer. After another error than an abort, a new producer continues."""
    producer: oncelog.Producer | None = None
    for records in job.transactions():
        try:
            if producer is None:
                producer = oncelog.Producer(
                    job.bootstrap, transactional_id=job.name, max_block_ms=PATIENCE_S * 1000, **job.ours
                )
            with producer.transaction() as transaction:
                sent = [transaction.send(job.topic, value, partition=partition) for partition, value in records]
                if job.chance.random() < ABORTED:
                    producer.flush()
                    raise AbortedOnPurposeError
        except (errors.AbortableError, AbortedOnPurposeError):
            job.aborted(records)
        except errors.KafkaError as error:
            job.undecided(records, error)
            if producer is not None:
                producer.close(0)
            producer = None
        else:
            for (_, value), future in zip(records, sent, strict=True):
                metadata = future.result(0)
                job.acknowledged(value, (metadata.partition, metadata.offset))
    if producer is not None:
        producer.close()


WRITERS: dict[tuple[str, str], Callable[[Job], object]] = {
    ("confluent", "plain"): confluent_plain,
    ("confluent", "transactions"): ConfluentTransactions,
    ("oncelog", "plain"): oncelog_plain,
    ("oncelog", "transactions"): oncelog_transactions,
}

if __name__ == "__main__":
    library, kind, bootstrap, topic, name, rate, seed, *file = sys.argv[1:]
    login = json.loads(Path(file[0]).read_text()) if file else None
    WRITERS[library, kind](Job(bootstrap, topic, name, float(rate), seed, login))
