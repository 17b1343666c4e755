"""`oncelog topic produce`: sends the lines of stdin."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oncelog.cli.common import connected, formatted, note, open_admin, show

if TYPE_CHECKING:
    from oncelog import Producer
    from oncelog.client.producer.delivery import RecordFuture

BLOCK_MS = 10_000
"""How long a record waits for its topic's metadata or for buffer memory."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@click.argument("topic")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="The text between key and value in a line.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send to this partition.")
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", help="Codec.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option("-Z", "--null", is_flag=True, help="An empty value or key is NULL.")
@click.option("--transactional-id", metavar="ID", help="Send all lines in one transaction.")
@connected
@formatted
def produce(
    topic: str,
    key_delimiter: str | None,
    partition: int | None,
    compression: str,
    headers: tuple[str, ...],
    null: bool,
    transactional_id: str | None,
    bootstrap: str,
    form: str,
) -> None:
    """Send each line of stdin as a record.

    With --transactional-id all of them become visible together when stdin ends, or none if something fails. Without it,
    a file is read through before anything is sent; of a pipe, what comes before a bad line is sent.
    """
    from oncelog import Producer

    pairs = [_header(text) for text in headers]
    options: dict[str, Any] = {
        "client_id": "oncelog-cli",
        "compression_type": compression,
        "max_block_ms": BLOCK_MS,
        "transactional_id": transactional_id,
    }
    delimiter = None if key_delimiter is None else key_delimiter.encode()
    source = sys.stdin.buffer
    if delimiter is not None and source.seekable():
        begin = source.tell()
        for number, line in enumerate(source, 1):
            if delimiter not in line:
                raise BadLineError(number, delimiter, "nothing was sent")
        source.seek(begin)
    there = _topic_is_there(bootstrap, topic)
    with Producer(bootstrap, **options) as producer:
        records = _lines(source, delimiter, null, "none of the others becomes visible" if transactional_id else "")
        if transactional_id is None:
            sent = _send(producer, topic, records, partition, pairs)
        else:
            with producer.transaction():
                sent = _send(producer, topic, records, partition, pairs)
    if sent and not there:
        note(f"there was no topic {topic!r}: the broker has made it")
    if form == "json":
        show({"topic": topic, "records": sent}, form)


def _send(
    producer: Producer,
    topic: str,
    records: Iterator[tuple[bytes | None, bytes | None]],
    partition: int | None,
    headers: list[tuple[str, bytes | None]],
) -> int:
    waiting: deque[RecordFuture] = deque()
    sent = 0
    for key, value in records:
        waiting.append(producer.send(topic, value, key, partition=partition, headers=headers))
        sent += 1
        while waiting and waiting[0].done():
            waiting.popleft().result()
    producer.flush()
    for future in waiting:
        future.result()
    return sent


class BadLineError(click.ClickException):
    """A line of the input cannot be sent; what became of the others."""

    def __init__(self, number: int, delimiter: bytes, others: str) -> None:
        super().__init__(f"line {number} has no key delimiter {delimiter.decode()!r}; {others}")


def _topic_is_there(bootstrap: str, topic: str) -> bool:
    with open_admin(bootstrap) as admin:
        return topic in admin.list_topics(internal=True)


def _lines(
    source: BinaryIO, delimiter: bytes | None, null: bool, others: str
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """(key, value) of each line; `others` says, where one is bad, what becomes of the others."""
    for number, line in enumerate(source, 1):
        text = line.removesuffix(b"\n")
        key: bytes | None = None
        value: bytes | None = text
        if delimiter is not None:
            key, found, value = text.partition(delimiter)
            if not found:
                before = f"the {number - 1} before it were sent (--transactional-id sends all or none)"
                raise BadLineError(number, delimiter, others or before)
        if null:
            key, value = key or None, value or None
        yield key, value


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    return name, value.encode() if equals else None
