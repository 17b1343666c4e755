"""`oncelog topic consume`: prints records."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import click

from oncelog.cli.common import connected
from oncelog.cli.offsets import READ_COMMITTED, READ_UNCOMMITTED
from oncelog.cli.reader import BEGINNING, END, Marker, Reader, Start
from oncelog.cli.tokens import Shown, compile_format

Printer = Callable[[Shown], None]


def _start(ctx: click.Context, param: click.Parameter, value: str) -> Start:
    """`beginning`, `end`, N, -N or `s@TIMESTAMP`."""
    named = {"beginning": BEGINNING, "end": END}.get(value)
    if named is not None:
        return named
    if re.fullmatch(r"-?\d{1,18}", value):
        return Start(int(value))
    if re.fullmatch(r"s@\d{1,18}", value):
        return Start(timestamp=int(value[2:]))
    raise click.BadParameter(f"{value!r} is not beginning, end, N, -N or s@TIMESTAMP-IN-MS")


@click.command()
@click.argument("topic")
@click.option("-o", "--offset", "start", callback=_start, default="beginning", metavar="WHERE", help="Begin here.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="End after so many records.")
@click.option("-e", "--exit", "stop_at_end", is_flag=True, help="Stop at what is the end now.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Print each record's key and this before its value.")
@click.option("-f", "--output", "template", metavar="FORMAT", help="kcat's tokens: %t %p %o %T %k %K %s %S %R %h %%.")
@click.option("--group", metavar="ID", help="Join this group and commit offsets, instead of reading by hand.")
@click.option("--read-committed", is_flag=True, help="Leave out records of aborted and open transactions.")
@click.option("--print-control-records", "markers", is_flag=True, help="Print the ends of transactions, too.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@connected
def consume(
    topic: str,
    start: Start,
    partitions: tuple[int, ...],
    count: int | None,
    stop_at_end: bool,
    key_delimiter: str | None,
    template: str | None,
    group: str | None,
    read_committed: bool,
    markers: bool,
    form: str,
    bootstrap: str,
) -> int:
    """Print records of a topic.

    WHERE is beginning, end, an offset N, -N for N before the end, or s@MS for a time.
    """
    if group is not None and (partitions or markers):
        raise click.UsageError("--group excludes --partition and --print-control-records")
    emit = _printer(template, key_delimiter, form)
    try:
        if group is not None:
            from oncelog.cli.group_reader import read_as_member

            read_as_member(bootstrap, group, topic, emit, start, count, stop_at_end, read_committed)
        else:
            isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
            asyncio.run(_read(bootstrap, topic, partitions, start, isolation, markers, stop_at_end, count, emit))
    except (KeyboardInterrupt, BrokenPipeError):  # ordinary ends: Ctrl-C, or whoever reads has had enough
        return 0
    return 0


async def _read(
    bootstrap: str,
    topic: str,
    partitions: tuple[int, ...],
    start: Start,
    isolation: int,
    markers: bool,
    stop_at_end: bool,
    count: int | None,
    emit: Printer,
) -> None:
    from oncelog.cli.common import ANSWER_WAIT_MS, TOPIC_WAIT_MS
    from oncelog.client.cluster import ClusterClient

    async with ClusterClient(bootstrap, client_id="oncelog-cli", api_timeout_ms=ANSWER_WAIT_MS) as cluster:
        await cluster.refresh([])
        known = await cluster.topic(topic, timeout_ms=TOPIC_WAIT_MS)
        for partition in partitions:
            await cluster.partition(topic, partition)
        numbers = partitions or tuple(known.partitions)
        reader = Reader(cluster, topic, numbers, isolation=isolation, markers=markers)
        await reader.seek(start)
        ends = await reader.ends() if stop_at_end else None
        left = count
        async for partition, item in reader.read(ends):
            if isinstance(item, Marker):
                emit(_shown_marker(topic, partition, item))
                continue
            emit(Shown(topic, partition, item.offset, item.timestamp, item.key, item.value, item.headers))
            if left is not None:
                left -= 1
                if not left:
                    return


def _shown_marker(topic: str, partition: int, marker: Marker) -> Shown:
    what = "COMMIT" if marker.commit else "ABORT"
    headers = (
        ("control", what.encode()),
        ("producer_id", b"%d" % marker.producer_id),
        ("producer_epoch", b"%d" % marker.producer_epoch),
        ("coordinator_epoch", b"%d" % marker.coordinator_epoch),
    )
    text = f"{what} producer {marker.producer_id} epoch {marker.producer_epoch}".encode()
    return Shown(topic, partition, marker.offset, marker.timestamp, None, text, headers)


def _printer(template: str | None, key_delimiter: str | None, form: str) -> Printer:
    out = sys.stdout.buffer
    if form == "json":
        if template is not None or key_delimiter is not None:
            raise click.UsageError("--format json excludes -f and -K")

        def emit_json(shown: Shown) -> None:
            out.write(json.dumps(as_json(shown), ensure_ascii=False).encode() + b"\n")
            out.flush()

        return emit_json
    if template is None:
        template = "%s\\n" if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%") + "%s\\n"
    try:
        render = compile_format(template)
    except ValueError as error:
        raise click.UsageError(f"-f: {error}") from error

    def emit(shown: Shown) -> None:
        out.write(render(shown))
        out.flush()

    return emit


def as_json(shown: Shown) -> dict[str, Any]:
    """A record for programs; bytes that are not UTF-8 become `{"base64": ...}`."""
    return {
        "topic": shown.topic,
        "partition": shown.partition,
        "offset": shown.offset,
        "timestamp": shown.timestamp,
        "key": _text(shown.key),
        "value": _text(shown.value),
        "headers": [[name, _text(value)] for name, value in shown.headers],
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
