"""`oncelog sql`: query topics with SQL."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from oncelog import errors
from oncelog.cli.client_settings import client_settings, producer_settings
from oncelog.cli.common import assignments, connected, open_admin, usage
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note
from oncelog.cli.registry_settings import found_registry, with_registry

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.tables.choosing import Wanted
    from oncelog.tables.query import Query
    from oncelog.tables.scan import Progress

T = TypeVar("T")
_STOP_TRIES, _STOP_S = 50, 0.1
"""How often to interrupt the thread of a query after Ctrl-C, and how long to wait each time."""
_FORMS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_FORMATS = "auto, json, avro, string or bytes"


def _duration(context: click.Context, option: click.Parameter, text: str | None) -> timedelta | None:
    from oncelog.client.records import milliseconds

    try:
        return None if text is None else timedelta(milliseconds=milliseconds(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix not in _FORMS:
        raise click.BadParameter(f"the name must end in {', '.join(_FORMS)}")
    return path


@click.command(
    epilog=examples(
        "oncelog sql 'select country, count(*) from orders group by 1'",
        "oncelog sql 'from orders where _timestamp > now() - interval 1 hour limit 10'",
        "oncelog sql 'from orders' --to orders.parquet",
        "oncelog sql 'select id as _key, sum(price) total from orders group by 1' --into totals --once monday",
    )
)
@click.argument("query")
@click.option("--format", "formats", multiple=True, metavar="TOPIC=FORMAT", help=f"Format of values: {_FORMATS}.")
@click.option("--key-format", "key_formats", multiple=True, metavar="TOPIC=FORMAT", help="Format of keys.")
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="TOPIC=SCHEMA",
    help="Schema of values: columns as in CREATE TABLE for JSON, or @FILE with Avro's schema. Default: that of the "
    "registry, or of a sample of the records.",
)
@with_registry
@click.option(
    "--bad-records",
    type=click.Choice(["fail", "null"]),
    default="fail",
    show_default=True,
    help="Whether values that cannot be decoded end the query, or are null.",
)
@click.option(
    "--max-disorder",
    callback=_duration,
    metavar="TIME",
    help="How much older than a record before it a record may be, such as PT10M. A query of records before a time "
    "then ends there. Default: read to the end.",
)
@click.option(
    "--sqlite", "files", multiple=True, metavar="NAME=FILE", help="Use the tables of a SQLite file as NAME.TABLE."
)
@click.option("--memory", metavar="SIZE", help="DuckDB's memory, such as 2GB. Default: 80 % of the machine's.")
@click.option(
    "--output",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="How to print rows. JSON is one object a line.",
)
@click.option("--rows", type=click.IntRange(min=1), default=100, show_default=True, help="The most rows of a table.")
@click.option(
    "--to",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_file,
    metavar="FILE",
    help="Save the rows as FILE.parquet, FILE.csv or FILE.jsonl.",
)
@click.option("--into", "topic", metavar="TOPIC", help="Write the rows to this topic, in one transaction.")
@click.option("--once", metavar="NAME", help="With --into: write nothing if this was done under this name before.")
@click.option("--follow", is_flag=True, help="Run the query again and again, and print the result if it has changed.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 86_400),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: the pause.",
)
@click.option("--explain", is_flag=True, help="Only show what would be read of each topic, and DuckDB's plan.")
@connected
def sql(
    query: str,
    formats: tuple[str, ...],
    key_formats: tuple[str, ...],
    schemas: tuple[str, ...],
    registry: str | None,
    bad_records: str,
    max_disorder: timedelta | None,
    files: tuple[str, ...],
    memory: str | None,
    form: str,
    rows: int,
    file: Path | None,
    topic: str | None,
    once: str | None,
    follow: bool,
    every: float,
    explain: bool,
    bootstrap: str,
) -> None:
    """Run QUERY, a SELECT of DuckDB's SQL. Each topic is a table.

    Its columns are the fields of the values, then _key, _partition, _offset, _timestamp and _headers. Conditions on
    _partition, _offset and _timestamp limit what is read. Records of open and aborted transactions are omitted. Other
    tables are files, such as 'customers.parquet' or 'customers.csv'. Quote names with other characters: "my-topic".
    """
    if once is not None and topic is None:
        raise click.UsageError("--once needs --into")
    if follow and (topic is not None or file is not None or explain):
        raise click.UsageError("--follow cannot be used together with --into, --to or --explain")
    if topic is not None and file is not None:
        raise click.UsageError("use --into or --to, not both")
    with open_admin(bootstrap) as admin:
        if topic is not None:
            admin.describe_topics(topic)  # before the query, which may need long
    wanted = _wanted(formats, schemas)
    keys = assignments("--key-format", key_formats)
    sqlite = assignments("--sqlite", files)

    def prepared() -> Query:
        import oncelog

        return oncelog.sql(
            query,
            bootstrap,
            client_settings(),
            formats=wanted,
            key_formats=keys,
            registry=found_registry(registry),
            sqlite=sqlite,
            bad_records=bad_records,
            max_disorder=max_disorder,
            memory_limit=memory,
            client_id="oncelog-cli",
        )

    try:
        with prepared() as found:
            _require_read({*wanted, *keys}, found)
            if explain:
                _explain(found)
            elif topic is not None:
                _write(found, topic, once)
            elif follow:
                _follow(found, every, form, rows)
            elif file is not None:
                _save(found, file)
            else:
                _run(found, lambda progress: _print(found.reader(progress), form, rows))
    except errors.BadRecordError as error:
        schema = "--schema" if error.column == "value" else "--key-format"
        raise error.with_advice(
            f"Say with {schema} how to read {error.topic}, or read such {error.column}s as null with --bad-records null"
        ) from None
    except errors.ConfigError as error:
        raise click.ClickException(str(error)) from None


def _wanted(formats: tuple[str, ...], schemas: tuple[str, ...]) -> dict[str, Wanted]:
    """Return what the options say about the values of topics. Raises UsageError."""
    from oncelog.tables.choosing import Wanted
    from oncelog.tables.query import schema_of

    found = {topic: Wanted(form) for topic, form in assignments("--format", formats).items()}
    for topic, text in assignments("--schema", schemas).items():
        form = found.get(topic, Wanted()).form
        if not text.startswith("@"):
            with usage("--schema"):
                found[topic] = Wanted(form, schema_of(text))
            continue
        try:
            found[topic] = Wanted(form, Path(text[1:]).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--schema: {text[1:]}: {error}") from None
    return found


def _require_read(named: set[str], query: Query) -> None:
    """Raise UsageError for a topic of --format, --key-format or --schema that the query does not read."""
    topics = [each.topic for each in query.reads()]
    if unread := sorted(named.difference(topics)):
        read = ", ".join(topics) or "no topic"
        raise click.UsageError(f"--format, --key-format or --schema names {', '.join(unread)}; the query reads {read}")


def _explain(query: Query) -> None:
    for scan in query.reads():
        assert scan.found is not None
        read, whole = scan.found.counts()
        key, value = scan.layout.key, scan.layout.value
        click.echo(f"{scan.topic}: values are {value.form} ({value.how}), keys {key.form}")
        click.echo(f"  reads {read:,} of {whole:,} offsets, and the columns {', '.join(scan.schema.names)}")
        for (_, partition), (start, end) in scan.found.ranges.items():
            click.echo(f"  partition {partition}: offsets {start} to {end - 1}")
    click.echo(query.plan())


def _print(result: pa.RecordBatchReader, form: str, rows: int) -> None:
    from oncelog.cli.sql_output import printed

    output = printed(form, result.schema, rows)
    for batch in result:
        output.add(batch)
    output.end()


def _save(query: Query, path: Path) -> None:
    import pyarrow as pa

    from oncelog.cli.tables.outputs import open_output

    def work(progress: Progress) -> None:
        reader = query.reader(progress)
        with open_output(str(path), _FORMS[path.suffix], reader.schema) as file:
            for batch in reader:
                file.write(pa.Table.from_batches([batch]))

    _run(query, work)


def _write(query: Query, topic: str, once: str | None) -> None:
    config = producer_settings()
    written = _run(query, lambda progress: query.into(topic, once=once, progress=progress, config=config))
    if written is None:
        note(f"{once} is written already; nothing was done")
    else:
        note(f"wrote {written:,} records to {topic}")


def _follow(query: Query, pause_s: float, form: str, rows: int) -> None:
    """Print the result each time that it has changed, until Ctrl-C."""
    before = None
    while True:
        table = _run(query, lambda _: query.arrow(), bar=False)
        shown = repr(table.to_pydict())  # NaN does not equal itself
        if shown != before:
            _print(table.to_reader(), form, rows)
            sys.stdout.flush()
            before = shown
        time.sleep(pause_s)
        query.refresh()


def _run(query: Query, work: Callable[[Progress], T], *, bar: bool = True) -> T:
    """Run work in another thread, with a progress bar on a terminal. So Ctrl-C ends it at once."""
    from oncelog.cli.tables.progress import progress

    ended: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run(advance: Progress) -> None:
        try:
            ended.put((work(advance), None))
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            ended.put((None, error))

    offsets = sum(each.found.counts()[0] for each in query.reads() if each.found is not None)
    with progress("reading", offsets) if bar else nullcontext(lambda _: None) as advance:
        thread = threading.Thread(target=run, args=(advance,), daemon=True)
        try:
            thread.start()  # Ctrl-C may come while it starts
            result, error = ended.get()
        except BaseException:
            for _ in range(_STOP_TRIES):  # DuckDB ignores an interrupt while no query runs yet
                query.interrupt()
                with suppress(queue.Empty):
                    ended.get(timeout=_STOP_S)
                    break
            raise
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
