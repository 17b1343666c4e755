"""`oncelog topic consume`: print the records of a topic."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import connected, open_admin, open_cluster
from oncelog.cli.exact_json import dumped
from oncelog.cli.lazy import examples
from oncelog.cli.partition_tailer import (
    BEGINNING,
    END,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    STORED,
    Marker,
    tail,
)
from oncelog.cli.record_format import Shown, compile_format
from oncelog.cli.span import Span, with_span
from oncelog.cli.value_formats import (
    FIELDS,
    Decoded,
    Decoder,
    decoders,
    expanded,
    text_or_base64,
    with_formats,
    with_output,
)

if TYPE_CHECKING:
    from oncelog import Consumer

POLL_S = 1.0
NO_PARTITION_S = 5.0
"""How long a member that stops at the end waits for a first partition. The group may be assigning it."""
Printer = Callable[[Shown], None]
RESETS = {BEGINNING: "earliest", END: "latest", STORED: "earliest"}
"""Where a group without committed offsets begins (auto.offset.reset)."""


@click.command(
    epilog=examples(
        "oncelog topic consume orders -o beginning -e",
        r"oncelog topic consume orders -f '%p %o %k %s\n' --read-committed",
        "oncelog topic consume orders --group etl -c 100",
        "oncelog topic consume orders --format avro --registry http://localhost:8081",
    )
)
@click.argument("topic")
@with_span("Read")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "-e", "--exit", "stop_at_end", is_flag=True, help="Stop at the current end instead of waiting for records."
)
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Print each record's key and this text before its value.")
@click.option(
    *("-f", "--output", "template"),
    metavar="FORMAT",
    help="Print each record in this format. kcat's tokens: %t topic, %p partition, %o offset, %T timestamp, %k key, "
    "%K its length, %s value, %S its length, %R its length as int32, %h headers, %% percent sign.",
)
@click.option("--group", metavar="ID", help="Join this group and commit its offsets.")
@click.option("--read-committed", is_flag=True, help="Omit records of aborted and open transactions.")
@click.option("--print-control-records", "markers", is_flag=True, help="Also print the markers of transactions.")
@with_formats
@click.option("--strict", is_flag=True, help="End with an error at a key or value that is not in its format.")
@with_output
@connected
def consume(
    topic: str,
    span: Span,
    partitions: tuple[int, ...],
    count: int | None,
    stop_at_end: bool,
    key_delimiter: str | None,
    template: str | None,
    group: str | None,
    read_committed: bool,
    markers: bool,
    key_format: str | None,
    value_format: str | None,
    registry: str | None,
    strict: bool,
    form: str,
    bootstrap: str,
) -> int:
    """Print the records of TOPIC, and wait for new ones until Ctrl-C.

    WHERE is beginning, end, an offset N, -N for the Nth offset before the end, or s@MS for the first record at or after
    a time in ms since the epoch. A second option -o e@MS stops before a time. With --group, reading begins at the
    group's committed offsets. WHERE is then stored, or the position for a group without offsets: beginning or end.

    With --value-format or --key-format, values or keys are decoded and printed as JSON documents. Data that is not in
    this format is printed in base64, with the reason: with --format json in value_error or key_error.
    """
    form, value_format = expanded(form, value_format)
    if group is not None and (partitions or markers):
        raise click.UsageError("--group cannot be used together with --partition or --print-control-records")
    if group is not None and (span.start not in RESETS or span.stop_ms is not None):
        raise click.UsageError("with --group, -o must be stored, beginning or end (used if the group has no offsets)")
    if group is None and span.start is STORED:
        raise click.UsageError("-o stored needs --group, whose committed offsets it reads")
    formats = dict(zip(FIELDS, (key_format, value_format), strict=True))
    if strict and not any(formats.values()):
        raise click.UsageError("--strict needs --value-format or --key-format")
    emit = _printer(template, key_delimiter, form, _reader(decoders(topic, formats, registry), strict))
    try:
        if group is not None:
            _read_as_member(bootstrap, group, topic, emit, RESETS[span.start], count, stop_at_end, read_committed)
        else:
            isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
            asyncio.run(_read(bootstrap, topic, partitions, span, isolation, markers, stop_at_end, count, emit))
        if read_committed and stop_at_end and count is None and span.stop_ms is None:
            from oncelog.cli.holders import note_open_transactions

            note_open_transactions(bootstrap, topic, partitions)
    except (KeyboardInterrupt, BrokenPipeError):  # the ordinary ends: Ctrl-C, or a closed pipe
        return 0
    return 0


async def _read(
    bootstrap: str,
    topic: str,
    partitions: tuple[int, ...],
    span: Span,
    isolation: int,
    markers: bool,
    stop_at_end: bool,
    count: int | None,
    emit: Printer,
) -> None:
    async with open_cluster(bootstrap) as cluster:
        tailer = await tail(cluster, topic, partitions, span.start, isolation=isolation, markers=markers)
        if span.stop_ms is not None:
            ends: dict[int, int] | None = await tailer.ends_at(span.stop_ms)
        else:
            ends = await tailer.ends() if stop_at_end else None
        left = count
        async for partition, item in tailer.read(ends):
            if isinstance(item, Marker):
                emit(_shown_marker(topic, partition, item))
                continue
            emit(Shown(topic, partition, item.offset, item.timestamp, item.key, item.value, item.headers))
            if left is not None:
                left -= 1
                if not left:
                    return


def _read_as_member(
    bootstrap: str,
    group: str,
    topic: str,
    emit: Printer,
    reset: str,
    count: int | None,
    stop_at_end: bool,
    read_committed: bool,
) -> None:
    """Print the records that the group has not consumed yet. Commit each record's offset after it is printed.

    Commit the consumer's positions, not the records' offsets: after a transaction, the position is after the marker,
    so that the group has no lag.
    """
    from oncelog import Consumer
    from oncelog.cli.client_settings import client_settings

    with open_admin(bootstrap) as admin:
        admin.describe_topics(topic)  # a consumer would wait until the topic is created
    isolation = "read_committed" if read_committed else "read_uncommitted"
    with Consumer(
        bootstrap,
        client_settings(),
        client_id="oncelog-cli",
        group_id=group,
        auto_offset_reset=reset,
        isolation_level=isolation,
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        ends: dict[tuple[str, int], int] = {}
        committed: dict[tuple[str, int], int] = {}
        left = count
        done, joined_at = False, math.inf
        while not done:
            for record in (records := consumer.poll(POLL_S, left)):
                emit(Shown(*record[:7]))
            if left is not None:
                left -= len(records)
            done = left == 0 or (stop_at_end and _at_end(consumer, ends))
            if not done and stop_at_end and not consumer.assignment():
                joined_at = min(joined_at, time.monotonic()) if _is_member(consumer) else math.inf
                if time.monotonic() - joined_at > NO_PARTITION_S:
                    raise click.ClickException(
                        f"group {group!r} has assigned no partition to this command: other members have all of "
                        f"{topic!r}; stop them, or omit --group"
                    )
            # A position of 0 needs no commit, because nothing was consumed.
            positions = {tp: position for tp, position in consumer.positions().items() if position}
            if positions != committed:
                consumer.commit(positions)
                committed = positions


def _is_member(consumer: Consumer) -> bool:
    """Return whether the consumer has joined its group."""
    return consumer.group_metadata().generation_id >= 0


def _at_end(consumer: Consumer, ends: dict[tuple[str, int], int]) -> bool:
    """Return whether all assigned partitions have been read up to their ends at the time of the assignment."""
    assigned = consumer.assignment()
    new = [tp for tp in assigned if tp not in ends]
    if new:
        ends.update(consumer.end_offsets(new))
    return bool(assigned) and all(consumer.position(*tp) >= ends[tp] for tp in assigned)


def _shown_marker(topic: str, partition: int, marker: Marker) -> Shown:
    what = "COMMIT" if marker.commit else "ABORT"
    headers = (
        ("control", what.encode()),
        ("producer_id", b"%d" % marker.producer_id),
        ("producer_epoch", b"%d" % marker.producer_epoch),
        ("coordinator_epoch", b"%d" % marker.coordinator_epoch),
    )
    text = f"{what} producer {marker.producer_id} epoch {marker.producer_epoch}".encode()
    return Shown(topic, partition, marker.offset, marker.timestamp, None, text, headers, is_marker=True)


Reader = Callable[[Shown], Mapping[str, Decoded]]
"""A function from a record to its decoded fields. Fields that are null, or have no format, are missing."""


def _reader(known: Mapping[str, Decoder], strict: bool) -> Reader:
    def read(shown: Shown) -> Mapping[str, Decoded]:
        found = {}
        for field, decode in known.items():
            data = shown.key if field == "key" else shown.value
            if data is None or shown.is_marker:
                continue
            found[field] = decode(data, shown.headers)
            if strict and found[field].error is not None:
                where = f"{field} of {shown.topic}-{shown.partition} at offset {shown.offset}"
                raise click.ClickException(f"{where}: {found[field].error}; omit --strict to print the others")
        return found

    return read


def _printer(template: str | None, key_delimiter: str | None, form: str, read: Reader) -> Printer:
    out = sys.stdout.buffer
    if form == "json":
        if template is not None or key_delimiter is not None:
            raise click.UsageError("--format json cannot be used together with -f or -K")

        def emit_json(shown: Shown) -> None:
            out.write(_encoded({**as_json(shown), **_decoded(read(shown))}) + b"\n")
            out.flush()

        return emit_json
    if template is None:
        template = "%s\\n" if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%") + "%s\\n"
    try:
        render = compile_format(template)
    except ValueError as error:
        raise click.UsageError(f"-f: {error}") from error

    def emit(shown: Shown) -> None:
        texts = {field: _as_text(item) for field, item in read(shown).items()}
        out.write(render(shown._replace(key=texts.get("key", shown.key), value=texts.get("value", shown.value))))
        out.flush()

    return emit


def _decoded(fields: Mapping[str, Decoded]) -> dict[str, Any]:
    """Return the members of a record's JSON document that differ because its fields are decoded."""
    found: dict[str, Any] = {field: item.document for field, item in fields.items()}
    return found | {f"{field}_error": item.error for field, item in fields.items() if item.error is not None}


def _as_text(item: Decoded) -> bytes:
    """Return a decoded field as one line: a string as it is, everything else as JSON."""
    if isinstance(item.document, str):
        return item.document.encode(errors="backslashreplace")
    found = item.document if item.error is None else {**item.document, "error": item.error}
    return _encoded(found)


def _encoded(document: Any) -> bytes:
    """Return JSON in UTF-8. A lone surrogate, which JSON may contain but UTF-8 not, becomes its escape in JSON."""
    return dumped(document).encode(errors="backslashreplace")


def as_json(shown: Shown) -> dict[str, Any]:
    """Return a record as a JSON document. Bytes that are not UTF-8 become `{"base64": ...}`."""
    return {
        "topic": shown.topic,
        "partition": shown.partition,
        "offset": shown.offset,
        "timestamp": shown.timestamp,
        "key": text_or_base64(shown.key),
        "value": text_or_base64(shown.value),
        "headers": [[name, text_or_base64(value)] for name, value in shown.headers],
    }
