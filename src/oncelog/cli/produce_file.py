"""`oncelog topic produce --from FILE`: send the rows of a file, and continue an interrupted run with `--once`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from oncelog import errors
from oncelog.cli.common import Command, existing, open_admin, with_options
from oncelog.cli.log_format import note
from oncelog.cli.registry_settings import connect, with_registry
from oncelog.cli.tables import FILE_FORMATS

if TYPE_CHECKING:
    from oncelog import Producer
    from oncelog.cli.tables.inputs import Input, InputFile
    from oncelog.cli.tables.position import Run
    from oncelog.cli.tables.progress import Advance
    from oncelog.cli.tables.values import Shape
    from oncelog.client.admin.blocking import Admin
    from oncelog.client.producer.tables import TableFuture

Header = tuple[str, bytes | None]

MOST_WAITING = 4
"""Parts of the file that wait for the brokers at a time."""


class FileOptions(NamedTuple):
    """The options of `topic produce` that are about a file. `path` is None without `--from`."""

    path: str | None
    file_format: str | None
    key: str | None
    timestamp: str | None
    types: tuple[str, ...]
    value_format: str | None
    registry: str | None
    schema: str | None
    subject: str | None
    register: bool
    once: str | None

    def check(self) -> None:
        """Raise UsageError if an option is given without the one that it needs."""
        if self.path is None:
            self._refuse(self._fields[1:], "--from FILE")
        if self.value_format != "avro":
            self._refuse(("registry", "schema", "subject", "register"), "--value-format avro")

    def _refuse(self, fields: tuple[str, ...], needed: str) -> None:
        for field in fields:
            if getattr(self, field):
                name = "type" if field == "types" else field.replace("_", "-")
                raise click.UsageError(f"--{name} needs {needed}")


def with_file(command: Command) -> Command:
    """Add the options of FileOptions, in its order."""
    options = (
        click.option(
            *("--from", "path"),
            metavar="FILE",
            help="Send the rows of this Parquet, CSV or JSON-lines file instead of the lines of stdin.",
        ),
        click.option(
            "--file-format",
            type=click.Choice(FILE_FORMATS),
            help="Format of the file. Default: what its name ends with (.parquet, .csv, .jsonl or .ndjson, and .gz).",
        ),
        click.option("--key", metavar="COLUMN", help="Column with the keys. Default: records have no key."),
        click.option("--timestamp", metavar="COLUMN", help="Column with the times. Default: the current time."),
        click.option(
            *("--type", "types"),
            multiple=True,
            metavar="COLUMN=TYPE",
            help="Arrow type of a column of a CSV file, such as id=string. Default: what its first 16 MB look like.",
        ),
        click.option(
            "--value-format",
            type=click.Choice(("json", "avro")),
            help="Format of the values, which have all other columns. Default: json.",
        ),
        with_registry,
        click.option(
            "--schema",
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="Avro schema of the values. Default: the subject's latest; with --register, one for the columns.",
        ),
        click.option("--subject", help="Subject of the schema. Default: TOPIC-value."),
        click.option("--register", is_flag=True, help="Register the schema."),
        click.option(
            "--once",
            metavar="NAME",
            help="Send each row exactly once: a later run with the same NAME and file continues where this one ended.",
        ),
    )
    return with_options(command, options)


class Sent(NamedTuple):
    """The outcome: rows that this run has sent, rows that earlier ones have sent, and batches that were sent again."""

    rows: int
    before: int
    again: int


class _Work(NamedTuple):
    """An opened file, and how its rows become records."""

    file: InputFile
    source: Input
    shape: Shape
    topic: str
    fixed: Callable[[Any], Any]
    """Adds the columns that are the same in each row."""
    options: Mapping[str, Any]
    """What decides which records the rows become, for JSON."""

    def tables(self, skip: int) -> Iterator[Any]:
        """Yield the tables to send, without the first `skip` rows."""
        from oncelog.cli.tables.inputs import reading
        from oncelog.cli.tables.values import chunks

        row = skip
        parts = chunks(self.source.batches(skip))
        while True:
            with reading(self.file):
                part = next(parts, None)
            if part is None:
                return
            self.file.require_unchanged()
            try:
                table = self.fixed(self.shape.table(part))
            except (ValueError, TypeError) as error:
                where = f"rows {row} to {row + len(part) - 1} of {self.file.path}"
                raise click.ClickException(f"{where}, counted from 0 as in what follows: {error}") from None
            yield table
            row += len(part)


def send_file(
    bootstrap: str,
    topic: str,
    given: FileOptions,
    producer_options: Mapping[str, Any],
    partition: int | None,
    headers: list[Header],
) -> Sent:
    """Send the rows of the file. Raises UsageError, ClickException and the errors of a producer."""
    from oncelog import Producer

    work = _prepared(topic, given, partition, headers)
    if given.once is not None:
        return _send_once(bootstrap, work, given.once, producer_options)
    with Producer(bootstrap, dict(producer_options)) as producer, _bar(work, 0) as advance:
        if producer.options["transactional_id"] is None:
            rows = _send(producer, work, advance)
        else:
            with producer.transaction():
                rows = _send(producer, work, advance)
        return Sent(rows, 0, producer.metrics().record_retry_total)


@contextmanager
def _bar(work: _Work, done: int) -> Iterator[Advance]:
    from oncelog.cli.tables.progress import progress

    with progress(work.file.name, work.source.rows, done) as advance:
        yield advance


def _prepared(topic: str, given: FileOptions, partition: int | None, headers: list[Header]) -> _Work:
    from oncelog.cli.tables.inputs import InputFile, file_format, open_input
    from oncelog.cli.tables.schemas import column_types
    from oncelog.cli.tables.values import AvroOptions, Roles, Shape, avro_format

    assert given.path is not None
    form = file_format(given.path, given.file_format, "--from")
    types = column_types(given.types)
    file = InputFile(given.path)
    source = open_input(file, form, types)
    roles = Roles(given.key, given.timestamp)
    names = roles.values(source.columns, given.path)
    avro = None
    if given.value_format == "avro":
        options = AvroOptions(given.schema, given.subject or f"{topic}-value", given.register)
        avro = avro_format(source, names, topic, connect(given.registry), options)
    decisive = {
        "key": given.key,
        "timestamp": given.timestamp,
        "types": sorted(given.types),
        "file_format": form,
        "schema": None if avro is None else avro.schema_id,
        "partition": partition,
        "headers": repr(headers),
    }
    shape = Shape(roles, names, None if avro is None else avro.format)
    return _Work(file, source, shape, topic, _fixed_columns(partition, headers), decisive)


def _fixed_columns(partition: int | None, headers: list[Header]) -> Callable[[Any], Any]:
    """Return the function that adds the partition and the headers, if they are given, to a table."""
    import pyarrow as pa

    def add(table: pa.Table) -> pa.Table:
        if partition is not None:
            table = table.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), len(table)))
        if headers:
            pairs = pa.map_(pa.string(), pa.binary())
            table = table.append_column("headers", pa.array([headers] * len(table), pairs))
        return table

    return add


def _send(producer: Producer, work: _Work, advance: Advance) -> int:
    """Send all rows, and return their number. If the command is interrupted, say how many are not acknowledged."""
    waiting: deque[tuple[int, TableFuture]] = deque()
    sent = done = 0
    try:
        for table in work.tables(0):
            waiting.append((len(table), producer.send_table(work.topic, table)))
            sent += len(table)
            while waiting and (len(waiting) > MOST_WAITING or waiting[0][1].done()):
                done += _finished(waiting, advance)
        producer.flush()
        while waiting:
            done += _finished(waiting, advance)
    except KeyboardInterrupt:
        producer.purge()  # otherwise, `close` would wait for the records until --timeout
        outcome = f"{done} of {work.source.rows} rows are acknowledged; others may be in the log"
        if producer.options["transactional_id"] is not None:
            outcome = "the transaction is aborted, so none of the rows becomes visible"
        note(f"interrupted: {outcome}")
        raise
    return sent


def _finished(waiting: deque[tuple[int, TableFuture]], advance: Advance) -> int:
    rows, future = waiting.popleft()
    future.result()
    advance(rows)
    return rows


def _send_once(bootstrap: str, work: _Work, name: str, producer_options: Mapping[str, Any]) -> Sent:
    """Send the rows that no earlier run of the name has sent. Each transaction has some rows, and the position."""
    from oncelog import Producer
    from oncelog.cli.tables.position import rows_sent, run_id

    identity, at = run_id(name), (work.topic, 0)
    # The start of the producer ends the transaction of an earlier run, and fences that run. So its position is final.
    with Producer(bootstrap, {**producer_options, "transactional_id": identity}) as producer:
        producer.partitions_for(work.topic)
        with open_admin(bootstrap) as admin:
            run = _run(work, _topic_id(admin, work.topic))
            before = row = rows_sent(name, run, admin.committed(identity).get(at))
        if before == run.rows:
            with producer.transaction() as transaction:  # renew the position: brokers forget old ones
                transaction.send_offsets(identity, {at: run.at(before)})
        elif before:
            note(f"earlier runs of {name!r} have sent {before} of {run.rows} rows")
        try:
            with _bar(work, before) as advance:
                for table in work.tables(before):
                    with producer.transaction() as transaction:
                        transaction.send_table(work.topic, table)
                        transaction.send_offsets(identity, {at: run.at(row + len(table))})
                    row += len(table)
                    advance(len(table))
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, errors.OncelogError)):
                note(f"{row} of {run.rows} rows are sent; the same command continues there")
            raise
        with open_admin(bootstrap) as admin:
            topic_id = _topic_id(admin, work.topic)
        if topic_id != run.topic_id:
            raise click.ClickException(
                f"the topic was deleted and created again while {name!r} sent {run.file} to it, so it has the last rows"
                f" only; delete the topic and group {identity!r}, create the topic, and run the command again"
            )
        return Sent(row - before, before, producer.metrics().record_retry_total)


def _topic_id(admin: Admin, topic: str) -> str:
    with existing(topic):
        (known,) = admin.describe_topics(topic)
        return str(known.topic_id)


def _run(work: _Work, topic_id: str) -> Run:
    from oncelog.cli.tables.position import Run, digest_of

    digest = work.file.digest()
    work.file.require_unchanged()
    return Run(work.file.name, work.file.size, digest, work.source.rows, topic_id, digest_of(work.options))
