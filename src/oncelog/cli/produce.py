"""`oncelog topic produce`: sends the lines of stdin."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oncelog.cli.common import connected, formatted, show

if TYPE_CHECKING:
    from oncelog import Producer
    from oncelog.client.delivery import RecordFuture

BLOCK_MS = 10_000
"""How long a record waits for its topic's metadata or for buffer memory."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@click.argument("topic")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="What stands between key and value in a line.")
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

    With --transactional-id all of them become visible together when stdin ends, or none if something fails.
    """
    from oncelog import Producer

    pairs = [_header(text) for text in headers]
    options: dict[str, Any] = {
        "client_id": "oncelog-cli",
        "compression_type": compression,
        "max_block_ms": BLOCK_MS,
        "transactional_id": transactional_id,
    }
    with Producer(bootstrap, **options) as producer:
        records = _lines(sys.stdin.buffer, key_delimiter, null)
        if transactional_id is None:
            sent = _send(producer, topic, records, partition, pairs)
        else:
            with producer.transaction():
                sent = _send(producer, topic, records, partition, pairs)
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


def _lines(source: BinaryIO, key_delimiter: str | None, null: bool) -> Iterator[tuple[bytes | None, bytes | None]]:
    """(key, value) of each line."""
    delimiter = None if key_delimiter is None else key_delimiter.encode()
    for number, line in enumerate(source, 1):
        text = line.removesuffix(b"\n")
        key: bytes | None = None
        value: bytes | None = text
        if delimiter is not None:
            key, found, value = text.partition(delimiter)
            if not found:
                raise click.ClickException(f"line {number} has no key delimiter {key_delimiter!r}")
        if null:
            key, value = key or None, value or None
        yield key, value


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    return name, value.encode() if equals else None
