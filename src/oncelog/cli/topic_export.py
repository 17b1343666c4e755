"""`oncelog topic export`: write the records of a topic to files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from oncelog import errors
from oncelog.cli.common import connected, existing, formatted, open_cluster, show
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note
from oncelog.cli.partition_tailer import READ_COMMITTED, READ_UNCOMMITTED, STORED, tail
from oncelog.cli.registry_settings import connect, with_registry
from oncelog.cli.span import Span, with_span
from oncelog.cli.tables import FILE_FORMATS
from oncelog.cli.value_formats import FORMATS

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from oncelog import Consumer
    from oncelog.cli.tables.exported import Columns
    from oncelog.cli.tables.parts import Folder
    from oncelog.cli.tables.progress import Advance

PART_ROWS = 1_000_000
"""Rows after which a part of a folder ends."""


class Range(NamedTuple):
    """The offsets of a partition to export: from `start` up to, but not including, `end`."""

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int


@click.command(
    epilog=examples(
        "oncelog topic export orders --to orders.parquet",
        "oncelog topic export orders --to orders/ --value-format json",
        "oncelog topic export orders --to orders.csv --value-format avro --registry http://localhost:8081",
    )
)
@click.argument("topic")
@click.option(
    "--to",
    required=True,
    metavar="FILE",
    help="File to write (.parquet, .csv, .jsonl or .ndjson). With a name that ends with /, a folder of parts.",
)
@click.option(
    "--file-format",
    type=click.Choice(FILE_FORMATS),
    help="Format of the file. Default: what its name ends with; of a folder, parquet.",
)
@click.option(
    "--value-format",
    type=click.Choice(FORMATS),
    help="Format of values. Fields of json and avro become columns. Default: bytes, or string in text files.",
)
@click.option(
    "--key-format",
    type=click.Choice(("bytes", "string")),
    help="Format of keys. Default: bytes, or string in text files.",
)
@with_registry
@click.option("--subject", help="Subject whose latest schema has the columns. Default: TOPIC-value.")
@click.option("--keep-bad", is_flag=True, help="Keep values that are not in the format, in a column _value_bad.")
@with_span("Export")
@click.option("--read-uncommitted", is_flag=True, help="Include records of aborted and open transactions.")
@connected
@formatted
def export(
    topic: str,
    to: str,
    span: Span,
    partitions: tuple[int, ...],
    read_uncommitted: bool,
    bootstrap: str,
    form: str,
    **more: Any,
) -> None:
    """Write the records of TOPIC, up to the end at the start of the command, to a file or a folder.

    Besides the value, the file has the columns _key, _partition, _offset, _timestamp and _headers. A file is written
    beside its place and replaces it when it is complete, so an interrupted run leaves no half file. It begins again.

    A folder has parts, which are files with up to a million records of one partition. Run the command again to continue
    after the last complete part: after an interrupted run, or to add the records that have arrived since.

    WHERE is as in `oncelog topic consume`, except stored.
    """
    if span.start is STORED:
        raise click.UsageError("-o stored is for members of a group, which this command is not")
    level = "read_uncommitted" if read_uncommitted else "read_committed"
    wanted = Wanted(topic=topic, to=to, isolation_level=level, **more)
    wanted.check()
    isolation = READ_UNCOMMITTED if read_uncommitted else READ_COMMITTED
    with existing(topic):
        ranges = asyncio.run(_ranges(bootstrap, topic, partitions, span, isolation))
    if wanted.is_folder:
        rows, files = _export_folder(bootstrap, wanted, ranges, continues=not span.is_given)
    else:
        rows, files = _export_file(bootstrap, wanted, ranges), [to]
    if span.stop_ms is None and not read_uncommitted:
        from oncelog.cli.holders import note_open_transactions

        note_open_transactions(bootstrap, topic, partitions)
    if form == "json":
        show({"topic": topic, "records": rows, "files": files}, form)


class Wanted(NamedTuple):
    """The options about the files."""

    topic: str
    to: str
    isolation_level: str
    file_format: str | None
    value_format: str | None
    key_format: str | None
    registry: str | None
    subject: str | None
    keep_bad: bool

    @property
    def is_folder(self) -> bool:
        """Whether to write a folder of parts."""
        return self.to.endswith("/") or os.path.isdir(self.to)

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.value_format != "avro":
            for name, given in (("--registry", self.registry), ("--subject", self.subject)):
                if given is not None:
                    raise click.UsageError(f"{name} needs --value-format avro")
        if self.keep_bad and self.value_format not in ("json", "avro"):
            raise click.UsageError("--keep-bad needs --value-format json or avro")

    def form(self) -> str:
        """Return the format of the files. Raises UsageError."""
        from oncelog.cli.tables.inputs import file_format

        if self.is_folder:
            return self.file_format or "parquet"
        if self.to.endswith(".gz") and self.file_format is None:
            raise click.UsageError(f"--to {self.to}: packed files are not written; omit .gz")
        return file_format(self.to, self.file_format, "--to")

    def formats(self) -> tuple[str, str]:
        """Return the formats of value and key, with their defaults."""
        default = "bytes" if self.form() == "parquet" else "string"
        return self.value_format or default, self.key_format or default


async def _ranges(bootstrap: str, topic: str, partitions: tuple[int, ...], span: Span, isolation: int) -> list[Range]:
    """Return the offsets to export."""
    async with open_cluster(bootstrap) as cluster:
        topic_id = (await cluster.topic(topic)).topic_id
        tailer = await tail(cluster, topic, partitions, span.start, isolation=isolation, markers=False)
        ends = await (tailer.ends() if span.stop_ms is None else tailer.ends_at(span.stop_ms))
        return [Range(topic, topic_id, number, start, ends[number]) for number, start in tailer.positions.items()]


# -- reading ----------------------------------------------------------------------------------------------------------


def _tables(consumer: Consumer, part: Range, advance: Advance, form: Any = None) -> Iterator[tuple[pa.Table, int]]:
    """Yield the records of a range as tables, and the offset at which the next table begins.

    Raises the errors of `oncelog.tables.ranges.read`.
    """
    from oncelog.tables.ranges import Found, read

    at = (part.topic, part.partition)
    ranges = {at: (part.start, part.end)}
    found = Found(part.topic, part.topic_id, ranges, ranges)
    for table in _readable(read(consumer, found, progress=advance, headers=True, value=form)):
        yield table, min(consumer.position(*at), part.end)


def _readable(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables. Raises ClickException for a value that is not in the format."""
    try:
        yield from tables
    except errors.BadRecordError as error:
        raise click.ClickException(
            f"the value of {error.topic}-{error.partition} at offset {error.offset} cannot be read: {error.reason}; "
            "use --keep-bad, or --value-format string"
        ) from None


def _consumer(bootstrap: str, isolation_level: str) -> Consumer:
    from oncelog import Consumer
    from oncelog.cli.client_settings import client_settings

    return Consumer(
        bootstrap,
        client_settings(),
        client_id="oncelog-cli",
        auto_offset_reset="none",  # records that are gone are an error
        isolation_level=isolation_level,
    )


def _columns(
    consumer: Consumer, wanted: Wanted, ranges: Iterable[Range], known: pa.DataType | None
) -> tuple[Columns, pa.DataType | None]:
    """Return how records become rows, and the type of JSON values, for which all records are read once before."""
    from oncelog.cli.tables.exported import Columns, avro_reader, json_reader, type_of_json
    from oncelog.cli.tables.progress import progress

    value, key = wanted.formats()
    reader = None
    if value == "avro":
        subject = wanted.subject or f"{wanted.topic}-value"
        reader = avro_reader(connect(wanted.registry), subject, keep_bad=wanted.keep_bad)
    elif value == "json":
        with progress("types of columns", _offsets(ranges)) as advance:
            tables = (table for each in ranges for table, _ in _tables(consumer, each, advance))
            known = type_of_json(tables, known, wanted.topic, keep_bad=wanted.keep_bad)
        reader = json_reader(known, keep_bad=wanted.keep_bad)
    as_text = frozenset(name for name, form in (("value", value), ("key", key)) if form == "string")
    return Columns(reader, as_text, text_headers=wanted.form() != "parquet"), known


def _offsets(ranges: Iterable[Range]) -> int:
    return sum(max(each.end - each.start, 0) for each in ranges)


# -- writing ----------------------------------------------------------------------------------------------------------


def _export_file(bootstrap: str, wanted: Wanted, ranges: list[Range]) -> int:
    """Write all records to one file, and return their number."""
    from oncelog.cli.tables.outputs import open_output
    from oncelog.cli.tables.progress import progress

    rows = 0
    with _consumer(bootstrap, wanted.isolation_level) as consumer:
        columns, _ = _columns(consumer, wanted, ranges, None)
        with (
            open_output(wanted.to, wanted.form(), columns.schema()) as output,
            progress(os.path.basename(wanted.to), _offsets(ranges)) as advance,
        ):
            for each in ranges:
                for table, _ in _tables(consumer, each, advance, columns.format):
                    output.write(columns.rows(table))
                    rows += len(table)
    return rows


def _export_folder(bootstrap: str, wanted: Wanted, ranges: list[Range], *, continues: bool) -> tuple[int, list[str]]:
    """Write the records that no part in the folder has. Return their number, and the new files."""
    from oncelog.cli.tables.parts import Exported, Folder
    from oncelog.cli.tables.progress import progress

    value, key = wanted.formats()
    topic_id = str(ranges[0].topic_id)
    exported = Exported(wanted.topic, topic_id, wanted.form(), value, key, wanted.keep_bad, wanted.isolation_level)
    rows, files = 0, []
    with closing(Folder(wanted.to, exported)) as folder, _consumer(bootstrap, wanted.isolation_level) as consumer:
        left = list(_left(folder, ranges, continues=continues))
        columns, kind = _columns(consumer, wanted, left, folder.kind)
        if kind is not None and kind != folder.kind:
            folder.store(kind)
        with progress(wanted.to, _offsets(left)) as advance:
            for each in left:
                for path, count in _write_parts(consumer, folder, each, columns, advance):
                    rows += count
                    files.append(path)
    return rows, files


def _left(folder: Folder, ranges: list[Range], *, continues: bool) -> Iterator[Range]:
    """Yield what the parts lack. Raises ClickException if the log is shorter than what they have."""
    done = folder.ends()
    for each in ranges:
        at = f"{each.topic}-{each.partition}"
        end = done.get(each.partition)
        if end is None:
            yield each
            continue
        if each.end < end and continues:
            raise click.ClickException(
                f"{at} ends at offset {each.end}, but {folder.path} has records up to {end}: the log has lost some; "
                "export to another folder"
            )
        if each.start > end:
            note(f"{at}: offsets {end} to {each.start - 1} are not exported; they are not in the log, or before -o")
        yield each._replace(start=max(each.start, end))


def _write_parts(
    consumer: Consumer, folder: Folder, left: Range, columns: Columns, advance: Advance
) -> Iterator[tuple[str, int]]:
    """Write the records of a range in parts. Yield the path of each part, and the number of its rows."""
    from oncelog.cli.tables.parts import Part

    tables = _tables(consumer, left, advance, columns.format)
    start = left.start
    while start < left.end:
        rows, end = 0, left.end
        with folder.write_part(columns.schema()) as output:
            for table, position in tables:
                output.write(columns.rows(table))
                rows += len(table)
                if rows >= PART_ROWS:
                    end = position
                    break
            output.part = part = Part(left.partition, start, end)
        yield folder.path_of(part), rows
        start = end
