"""Exchange records with other clients in both directions: every codec, headers, nulls, transactions.

The partitions of keys are compared with Java's own producer in `tests/features/test_partitioner.py`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer as Librdkafka
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition

from oncelog import Admin, Consumer, Producer
from support import suites
from support.apache_kafka import run_tool
from support.clients.base import Seen
from support.clients.confluent import seen
from support.processes import wait_until
from support.servers import Server

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOOLS = "org.apache.kafka.tools"
Headers = tuple[tuple[str, bytes | None], ...]

RECORDS: list[tuple[bytes | None, bytes | None, Headers]] = [
    (b"key", b"value", (("h", b"1"), ("null", None), ("h", b"again"))),
    (b"without a value", None, ()),
    (None, b"without a key", (("empty", b""),)),
    ("schlüssel".encode(), "größe".encode(), (("naïve", "ö".encode()),)),
    (b"large", b"0123456789" * 20_000, ()),
    *((b"k%d" % i, b"v%d" % i, ()) for i in range(50)),
]


@pytest.fixture
def written(server: Server, name: str) -> list[Seen]:
    """Return the committed records of the topic `name`: for each codec an aborted transaction, then one with all
    RECORDS.
    """
    expected = []
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name)
    for codec in CODECS:
        with Producer(server.bootstrap, transactional_id=name + codec, compression_type=codec) as producer:
            for commit in (False, True):
                producer.begin_transaction()
                futures = [
                    producer.send(name, value, key, headers=headers, timestamp=1_000 + i)
                    for i, (key, value, headers) in enumerate(RECORDS)
                ]
                producer.flush()
                if commit:
                    producer.commit_transaction()
                    expected += [
                        Seen(0, future.result(0).offset, key, value, headers, 1_000 + i)
                        for i, (future, (key, value, headers)) in enumerate(zip(futures, RECORDS, strict=True))
                    ]
                else:
                    producer.abort_transaction()
    visible(server, name)
    return expected


def visible(server: Server, topic: str) -> None:
    """Wait until no transaction is open in the topic's partition. Markers may arrive after the answer."""
    with Admin(server.bootstrap) as admin:
        wait_until(
            lambda: all(each.transaction_start < 0 for each in admin.describe_producers(topic, 0)), "markers are there"
        )


def ours(server: Server, topic: str) -> list[Seen]:
    """Return the records that our consumer returns."""
    with Consumer(server.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        found = []
        while consumer.position(topic, 0) < end:
            found += consumer.poll(5)
    return [Seen(*record[1:3], record.key, record.value, record.headers, record.timestamp) for record in found]


def librdkafka(server: Server, topic: str) -> list[Seen]:
    options = {"bootstrap.servers": server.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
    consumer = Librdkafka({**options, "enable.partition.eof": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while not (message := consumer.poll(30)).error():
        found.append(seen(message))
    consumer.close()
    return found


def franz_go(server: Server, topic: str) -> list[Seen]:
    def plain(data: str | None) -> bytes | None:
        return None if data is None else b64decode(data)

    found = []
    for line in suites.command(suites.go_program(), server.bootstrap, topic, "show").splitlines():
        each = json.loads(line)
        headers = tuple((header["Key"], plain(header["Value"])) for header in each["headers"] or ())
        key, value = plain(each["key"]), plain(each["value"])
        found.append(Seen(each["partition"], each["offset"], key, value, headers, each["timestamp"]))
    return found


READERS: dict[str, Callable[[Server, str], list[Seen]]] = {
    "ours": ours,
    "librdkafka": librdkafka,
    "franz-go": franz_go,
}


def test_all_clients_read_our_records(server: Server, name: str, written: list[Seen]) -> None:
    for reader, read in READERS.items():
        assert read(server, name) == written, reader
    shown = java(server, name, len(written))
    assert shown == [java_line(record) for record in written], "Java"


def java_line(record: Seen) -> str:
    """Return a record in the console consumer's format."""

    def text(data: bytes | None) -> str:
        return "NULL" if data is None else data.decode()

    headers = ",".join(f"{key}:{text(value)}" for key, value in record.headers) or "NO_HEADERS"
    place = (f"CreateTime:{record.timestamp}", "Partition:0", f"Offset:{record.offset}")
    return "|".join((*place, headers, text(record.key), text(record.value)))


def java(server: Server, topic: str, count: int) -> list[str]:
    """Return the records that Kafka's own consumer returns."""
    properties = {"print.headers": "true", "print.key": "true", "print.partition": "true", "print.offset": "true"}
    more = {"print.timestamp": "true", "null.literal": "NULL", "headers.separator": ",", "key.separator": "|"}
    shown = run_tool(
        f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--topic", topic,
        "--from-beginning", "--max-messages", str(count), "--isolation-level", "read_committed",
        *(word for key, value in (properties | more).items() for word in ("--formatter-property", f"{key}={value}")),
    )  # fmt: skip
    return shown.splitlines()


# -- records of other clients -----------------------------------------------------------------------------------------


def by_librdkafka(server: Server, topic: str) -> None:
    for codec in CODECS:
        options = {"bootstrap.servers": server.bootstrap, "transactional.id": topic + codec, "compression.type": codec}
        producer = LibrdkafkaProducer(options)
        producer.init_transactions(30)
        for commit in (False, True):
            producer.begin_transaction()
            for i in range(10):
                headers: list[Any] = [("codec", codec.encode()), ("null", None), ("", b"")]
                value = f"{'commit' if commit else 'abort'} {i} " * 100
                producer.produce(topic, value, f"{codec}{i}", 0, headers=headers, timestamp=1_000 + i)
            assert producer.flush(30) == 0
            (producer.commit_transaction if commit else producer.abort_transaction)(30)


def by_franz_go(server: Server, topic: str) -> None:
    suites.command(suites.go_program(), server.bootstrap, topic, "fill")


@pytest.fixture(params=[by_librdkafka, by_franz_go], ids=["librdkafka", "franz-go"])
def theirs(request: pytest.FixtureRequest, server: Server, name: str) -> str:
    """Return a topic with records of another client."""
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name)
    request.param(server, name)
    visible(server, name)
    return name


def test_our_client_reads_their_records(server: Server, theirs: str) -> None:
    found = ours(server, theirs)
    assert len(found) == 10 * len(CODECS)
    assert {record.headers[0][1] for record in found} == {codec.encode() for codec in CODECS}
    for start in range(0, len(found), 10):
        codec = (found[start].headers[0][1] or b"").decode()
        check(found[start : start + 10], codec)


def check(records: Sequence[Seen], codec: str) -> None:
    for i, record in enumerate(records):
        assert record.key == f"{codec}{i}".encode()
        assert record.headers == (("codec", codec.encode()), ("null", None), ("", b""))
        assert record.timestamp == 1_000 + i
        assert len(record.value or b"") > 500
        assert not (record.value or b"").startswith(b"abort")


def test_our_client_reads_records_of_java(server: Server, name: str) -> None:
    """Java's console producer writes headers and nulls (every codec: `test_console_tools`), its performance tool
    transactions.
    """
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name)
    properties = ("parse.key=true", "parse.headers=true", "null.marker=NULL", "key.separator=|", "headers.delimiter=|")
    run_tool(
        f"{TOOLS}.ConsoleProducer", "--bootstrap-server", server.bootstrap, "--topic", name,
        "--compression-codec", "zstd", *(word for each in properties for word in ("--reader-property", each)),
        stdin=f"name:x,null:NULL|key|{'zstd' * 100}\nNULL|NULL|NULL\n",
    )  # fmt: skip
    found = [(record.key, record.value, record.headers) for record in ours(server, name)]
    assert found == [(b"key", b"zstd" * 100, (("name", b"x"), ("null", None))), (None, None, ())]
    run_tool(
        f"{TOOLS}.ProducerPerformance", "--topic", name, "--num-records", "500", "--record-size", "50",
        "--throughput", "-1", "--transactional-id", name, "--transaction-duration-ms", "10",
        "--command-property", f"bootstrap.servers={server.bootstrap}",
    )  # fmt: skip
    visible(server, name)
    assert len(ours(server, name)) == 502
