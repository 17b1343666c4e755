"""`oncelog topic produce`: send the lines of stdin as records."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oncelog.cli.common import connected, formatted, open_admin, show
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note
from oncelog.cli.produce_file import FileOptions, Sent, send_file, with_file

if TYPE_CHECKING:
    from oncelog import Producer
    from oncelog.client.producer.delivery import RecordFuture

BLOCK_MS = 10_000
"""How long a record waits for its topic's metadata, or for buffer memory."""
REQUEST_MS = 30_000
"""How long one request waits for its response, at most half of `--timeout`."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS = ("default", "consistent_random", "round_robin")
MOST_RETRIES_SHOWN = 20
CREATED = "topic {topic!r} did not exist; the broker has created it"


@click.command(
    epilog=examples(
        "echo hello | oncelog topic produce orders",
        "oncelog topic produce orders -K : --transactional-id load-1 < orders.txt",
        "seq 60 | oncelog topic produce orders --partitioner round_robin",
        "oncelog topic produce orders --from orders.parquet --key id --once load-1",
    )
)
@click.argument("topic")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="The text between key and value in a line.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send all records to this partition.")
@click.option("-z", "--compression", type=click.Choice(CODECS), help="Compression codec. Default: none.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Add a header to every record.")
@click.option("-Z", "--null", is_flag=True, help="Send an empty key or value as null.")
@click.option("--transactional-id", metavar="ID", help="Send all lines, or all rows, in one transaction.")
@click.option(
    "--partitioner",
    type=click.Choice(PARTITIONERS),
    help="How to choose partitions: by the key as Java's client does (default) or as librdkafka does, or in turn.",
)
@click.option("--acks", type=click.Choice(("all", "1", "0")), help="Replicas that must have a record. Default: all.")
@click.option(
    "--idempotence/--no-idempotence",
    default=None,
    help="Whether retries cannot duplicate or reorder records. Default: yes, if --acks is all.",
)
@click.option(
    "--retries", type=click.IntRange(min=0), metavar="N", help="How often to send a batch again. Default: no limit."
)
@click.option(
    "--timeout",
    type=click.IntRange(1, 3600),
    metavar="SECONDS",
    help="How long a record may wait until the broker accepts it. Default: 120.",
)
@with_file
@connected
@formatted
def produce(
    topic: str,
    key_delimiter: str | None,
    partition: int | None,
    compression: str | None,
    headers: tuple[str, ...],
    null: bool,
    transactional_id: str | None,
    partitioner: str | None,
    acks: str | None,
    idempotence: bool | None,
    retries: int | None,
    timeout: int | None,
    bootstrap: str,
    form: str,
    **of_file: Any,
) -> None:
    """Send each line of stdin as a record to TOPIC, or with --from each row of a file.

    With --transactional-id, all records become visible together when stdin ends, or none if an error occurs. Without
    it, a file with a bad line is rejected before any record is sent. Of a pipe, the lines before a bad line are sent.
    If a batch has to be sent again, the command prints why. The file of --command-config may have all options of a
    producer, such as transaction.timeout.ms. The options of this command override it.

    The columns of a file become one JSON object (or Avro record) per row, except the columns of --key and --timestamp.
    With --once NAME, each transaction has some rows and the position in the file, which becomes the offset of the group
    oncelog-produce-NAME. If the command is interrupted or killed, run it again: it sends the rest. If all rows are
    sent, it sends nothing. It refuses a file that has changed. The brokers forget NAME if no run has used it for
    offsets.retention.minutes (a week), or if the topic is deleted.
    """
    file = FileOptions(**of_file)
    file.check()
    pairs = [_header(text) for text in headers]
    _require_compatible(transactional_id, acks, idempotence, retries, file.once)
    options = _options(
        compression_type=compression,
        delivery_timeout_ms=None if timeout is None else timeout * 1000,
        request_timeout_ms=None if timeout is None else min(timeout * 500, REQUEST_MS),
        transactional_id=transactional_id,
        partitioner=partitioner,
        acks=acks,
        enable_idempotence=idempotence,
        retries=retries,
    )
    if file.path is not None:
        if key_delimiter is not None or null:
            raise click.UsageError("--key-delimiter and --null are for lines of stdin, not for --from")
        existed = _topic_exists(bootstrap, topic)
        with _retries_shown():
            done = send_file(bootstrap, topic, file, options, partition, pairs)
        if done.rows and not existed:
            note(CREATED.format(topic=topic))
        _show_sent(topic, file.once, done, form)
        return
    _send_stdin(bootstrap, topic, options, key_delimiter, null, partition, pairs, form)


def _show_sent(topic: str, once: str | None, done: Sent, form: str) -> None:
    if once is not None and not done.rows:
        note(f"{once!r} has sent all rows, so this run has sent nothing")
    if form == "json":
        show({"topic": topic, "records": done.rows, "earlier": done.before, "sent_again": done.again}, form)


def _send_stdin(
    bootstrap: str,
    topic: str,
    options: dict[str, Any],
    key_delimiter: str | None,
    null: bool,
    partition: int | None,
    pairs: list[tuple[str, bytes | None]],
    form: str,
) -> None:
    from oncelog import Producer

    source = _source(key_delimiter)
    delimiter = None if key_delimiter is None else key_delimiter.encode()
    if delimiter is not None and source.seekable():
        begin = source.tell()
        for number, line in enumerate(source, 1):
            if delimiter not in line:
                raise BadLineError(number, delimiter, "nothing was sent")
        source.seek(begin)
    existed = _topic_exists(bootstrap, topic)
    with _retries_shown(), Producer(bootstrap, options) as producer:
        transactional = producer.options["transactional_id"] is not None
        records = _lines(source, delimiter, null, "none of the other records becomes visible" if transactional else "")
        if not transactional:
            sent = _send(producer, topic, records, partition, pairs)
        else:
            with producer.transaction():
                sent = _send(producer, topic, records, partition, pairs)
        again = producer.metrics().record_retry_total
    if not sent and not existed:
        note(f"topic {topic!r} does not exist, and there was no line to send, so nothing has created it")
    if sent and not existed:
        note(CREATED.format(topic=topic))
    if form == "json":
        show({"topic": topic, "records": sent, "sent_again": again}, form)


def _source(key_delimiter: str | None) -> BinaryIO:
    """Return stdin. Raises UsageError if no lines can be read from it, or split."""
    if sys.stdin is None:
        raise click.UsageError("stdin is closed; the lines to send come from it")
    if key_delimiter == "":
        raise click.UsageError("--key-delimiter is empty; name the text between key and value")
    return sys.stdin.buffer


def _require_compatible(
    transactional_id: str | None, acks: str | None, idempotence: bool | None, retries: int | None, once: str | None
) -> None:
    """Raise UsageError for options that contradict each other. The client's error would name only its own options."""
    if once is not None and transactional_id is not None:
        raise click.UsageError("--once cannot be used together with --transactional-id: it has one of its own")
    if transactional_id is None and once is None and not idempotence:
        return
    wants, name = ("--idempotence", "enable_idempotence")
    if transactional_id is not None or once is not None:
        wants, name = ("--transactional-id" if once is None else "--once", "transactional_id")
    if idempotence is False:
        raise click.UsageError(f"{wants} cannot be used together with --no-idempotence")
    if acks not in (None, "all"):
        raise click.UsageError(
            f"{wants} cannot be used together with --acks {acks}: {name} needs acks = all, but acks = {acks}"
        )
    if retries == 0:
        raise click.UsageError(f"{wants} cannot be used together with --retries 0: {name} needs a retry")


def _options(**given: Any) -> dict[str, Any]:
    """Return the producer's options: what is `given` and not None, then the file's settings, then the defaults."""
    from oncelog.cli.client_settings import client_settings, producer_settings
    from oncelog.client.options import option_name

    found: dict[str, Any] = {
        "max_block_ms": BLOCK_MS,
        **{option_name(name): value for name, value in {**client_settings(), **producer_settings()}.items()},
        **{name: value for name, value in given.items() if value is not None},
        "client_id": "oncelog-cli",
    }
    return found


class _Notes(logging.Handler):
    """Print the lines about the first retry of each batch as remarks, up to a limit."""

    left = MOST_RETRIES_SHOWN

    def emit(self, record: logging.LogRecord) -> None:
        if self.left and "after attempt 1:" in record.getMessage():
            self.left -= 1
            with suppress(OSError):  # nobody reads stderr any more. An error here would stop the producer's sends
                note(record.getMessage() if self.left else "further batches are sent again, too")


@contextmanager
def _retries_shown() -> Iterator[None]:
    """Print which batches are sent again, and why. With --log-level DEBUG, the client's log has these lines already."""
    logger = logging.getLogger("oncelog.client.producer.accumulator")
    if logger.isEnabledFor(logging.DEBUG):
        yield
        return
    notes = _Notes()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(notes)
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(notes)
        logger.propagate = True


def _send(
    producer: Producer,
    topic: str,
    records: Iterator[tuple[bytes | None, bytes | None]],
    partition: int | None,
    headers: list[tuple[str, bytes | None]],
) -> int:
    from oncelog import errors

    waiting: deque[RecordFuture] = deque()
    sent = 0
    try:
        for key, value in records:
            waiting.append(producer.send(topic, value, key, partition=partition, headers=headers))
            sent += 1
            while waiting and waiting[0].done():
                waiting.popleft().result()
        producer.flush()
    except KeyboardInterrupt:  # otherwise, `close` would wait for the records until --timeout
        left = sum(1 for future in waiting if not future.done())
        with suppress(errors.OncelogError):
            producer.close(0)
        note(f"interrupted: {left} of {sent} records are not acknowledged; they may be in the log")
        raise
    for future in waiting:
        future.result()
    return sent


class BadLineError(click.ClickException):
    """A line of the input cannot be sent. The message says what became of the other lines."""

    def __init__(self, number: int, delimiter: bytes, others: str) -> None:
        super().__init__(f"line {number} has no key delimiter {delimiter.decode()!r}; {others}")


def _topic_exists(bootstrap: str, topic: str) -> bool:
    with open_admin(bootstrap) as admin:
        return topic in admin.list_topics(internal=True)


def _lines(
    source: BinaryIO, delimiter: bytes | None, null: bool, others: str
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield (key, value) of each line. Raises BadLineError with `others`: what becomes of the other lines."""
    for number, line in enumerate(source, 1):
        text = line.removesuffix(b"\n")
        key: bytes | None = None
        value: bytes | None = text
        if delimiter is not None:
            key, found, value = text.partition(delimiter)
            if not found:
                before = f"the {number - 1} lines before it were sent; to send all or none, use --transactional-id"
                raise BadLineError(number, delimiter, others or before)
        if null:
            key, value = key or None, value or None
        yield key, value


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    return name, value.encode() if equals else None
