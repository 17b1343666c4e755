"""Measure how exactly quotas hold with three client libraries, and whether throttled clients slow another client.

    scripts/bench --quotas [--rate BYTES] [--seconds N] [--only oncelog|apache-kafka]

Each library's producer has a quota of `--rate` bytes per second, and then each library's consumer. All three run at the
same time. Their rates are measured after the burst of the first windows. Meanwhile, another client without a quota
produces one record at a time; its latency is compared with that before the others start. The exit status is 1 if a rate
on oncelog differs from the quota by more than 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
from rich.console import Console
from rich.table import Table

from oncelog import Consumer, Producer
from support.apache_kafka import ApacheKafka
from support.quotas import altered
from support.servers import OncelogCluster, Server
from support.wire import Wire, batch

VALUE = b"x" * 10_000
BURST_S = 25.0
"""After this time, the burst at the start is over. Kafka remembers it for 11 s."""
WITHIN = 0.10
"""The allowed difference between a measured rate and the quota."""
SERVERS: dict[str, Callable[[Path], Server]] = {"oncelog": OncelogCluster, "apache-kafka": ApacheKafka}


class Counter:
    """The bytes that one client has sent or received."""

    def __init__(self) -> None:
        self.bytes = 0
        self.stopped = False


Client = Callable[[str, str, Counter], None]


def oncelog_producer(bootstrap: str, name: str, counter: Counter) -> None:
    """Produce with our client until the counter is stopped."""
    with Producer(bootstrap, client_id=name, buffer_memory=4 << 20) as producer:
        while not counter.stopped:
            producer.send(name, VALUE).result(120)
            counter.bytes += len(VALUE)


def confluent_producer(bootstrap: str, name: str, counter: Counter) -> None:
    """Produce with confluent-kafka until the counter is stopped."""

    def delivered(error: object, _message: object) -> None:
        assert error is None, error
        counter.bytes += len(VALUE)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "client.id": name, "queue.buffering.max.messages": 20}
    )
    while not counter.stopped:
        try:
            producer.produce(name, VALUE, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.1)
    producer.purge()


def kafka_python_producer(bootstrap: str, name: str, counter: Counter) -> None:
    """Produce with kafka-python until the counter is stopped."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id=name)
    while not counter.stopped:
        producer.send(name, VALUE).get(120)
        counter.bytes += len(VALUE)
    producer.close(timeout=1)


def oncelog_consumer(bootstrap: str, name: str, counter: Counter) -> None:
    """Consume with our client until the counter is stopped."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 100_000}
    with Consumer(bootstrap, client_id=name, **options) as consumer:
        consumer.assign([("data", 0)])
        while not counter.stopped:
            counter.bytes += sum(len(record.value or b"") for record in consumer.poll(0.1))


def confluent_consumer(bootstrap: str, name: str, counter: Counter) -> None:
    """Consume with confluent-kafka until the counter is stopped."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": name,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 100_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("data", 0, 0)])
    while not counter.stopped:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            counter.bytes += len(message.value() or b"")
    consumer.close()


def kafka_python_consumer(bootstrap: str, name: str, counter: Counter) -> None:
    """Consume with kafka-python until the counter is stopped."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, client_id=name, auto_offset_reset="earliest", max_partition_fetch_bytes=100_000
    )
    consumer.assign([kafka.TopicPartition("data", 0)])
    while not counter.stopped:
        for records in consumer.poll(timeout_ms=100).values():
            counter.bytes += sum(len(record.value) for record in records)
    consumer.close()


KINDS: dict[str, Mapping[str, Client]] = {
    "producer_byte_rate": {
        "oncelog": oncelog_producer,
        "confluent-kafka": confluent_producer,
        "kafka-python": kafka_python_producer,
    },
    "consumer_byte_rate": {
        "oncelog": oncelog_consumer,
        "confluent-kafka": confluent_consumer,
        "kafka-python": kafka_python_consumer,
    },
}


def latency(wire: Wire, seconds: float) -> list[float]:
    """Return the times in ms of Produces of one record each, for some seconds."""
    times = []
    record = batch([b"v"])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        assert wire.produce("other", record, acks=1).error_code == 0
        times.append(1000 * (time.perf_counter() - begun))
        time.sleep(0.01)
    return times


def measured(server: Server, rate: float, seconds: float, report: Callable[..., None]) -> bool:
    """Measure one server, and report each figure. Return whether all quotas hold."""
    good = True
    with Wire(server.bootstrap) as wire:
        for topic in ("data", "other"):
            wire.create_topic(topic)
        alone = latency(wire, 5.0)
        needed = int(rate * (BURST_S + seconds + 30.0))
        while needed > 0:
            assert wire.produce("data", batch([VALUE] * 8)).error_code == 0
            needed -= 8 * len(VALUE)
        for key, clients in KINDS.items():
            counters = {name: Counter() for name in clients}
            threads = []
            for name, client in clients.items():
                own = f"{key}-{name}"
                wire.create_topic(own)
                quota: dict[str, Any] = {key: rate}
                assert not altered(wire, (("client-id", own),), **quota).error_code
                threads.append(threading.Thread(target=client, args=(server.bootstrap, own, counters[name])))
            for thread in threads:
                thread.start()
            time.sleep(BURST_S)
            begun, before = time.monotonic(), {name: counter.bytes for name, counter in counters.items()}
            beside = latency(wire, seconds)
            took = time.monotonic() - begun
            for name, counter in counters.items():
                found = (counter.bytes - before[name]) / took
                held = abs(found / rate - 1) <= WITHIN
                good = good and held
                report(key, name, f"{found / rate:.1%} of the quota", "" if held else "not within 10 %")
                counter.stopped = True
            for each, times in (("alone", alone), ("beside the throttled clients", beside)):
                high = statistics.quantiles(times, n=100)[98]
                report(key, f"another client {each}", f"{statistics.median(times):.2f} ms, p99 {high:.2f} ms", "")
            for thread in threads:
                thread.join()
    return good


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure quotas with three client libraries.")
    parser.add_argument("--rate", type=float, default=1_000_000.0, help="the quota in bytes per second")
    parser.add_argument("--seconds", type=float, default=55.0, help="how long rates are measured")
    parser.add_argument("--only", choices=[*SERVERS], help="measure only this server")
    arguments = parser.parse_args()
    console = Console(width=110)
    table = Table("server", "quota", "client", "measured", "verdict")
    good = True
    for name in [arguments.only] if arguments.only else SERVERS:
        with tempfile.TemporaryDirectory() as folder:
            server = SERVERS[name](Path(folder))
            try:

                def report(*cells: str, name: str = name) -> None:
                    console.print(name, *cells)
                    table.add_row(name, *cells)

                held = measured(server, arguments.rate, arguments.seconds, report)
                good = good and (held or name != "oncelog")
            finally:
                server.stop()
    console.print(table)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
