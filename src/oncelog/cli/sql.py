"""`oncelog sql`: query topics with SQL."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog import errors
from oncelog.cli.client_settings import producer_settings
from oncelog.cli.common import connected, open_admin
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note
from oncelog.cli.sql_options import Reading, Result, with_reading, with_result

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.tables.query import Query
    from oncelog.tables.scan import Progress

T = TypeVar("T")
_STOP_TRIES, _STOP_S = 50, 0.1
"""How often to interrupt the thread of a query after Ctrl-C, and how long to wait each time."""


@click.command(
    epilog=examples(
        "oncelog sql 'select country, count(*) from orders group by 1'",
        "oncelog sql 'from orders where _timestamp > now() - interval 1 hour limit 10'",
        "oncelog sql 'from orders' --to orders.parquet",
        "oncelog sql 'select id as _key, sum(price) total from orders group by 1' --into totals --once monday",
    )
)
@click.argument("query")
@with_reading
@with_result
@connected
def sql(query: str, bootstrap: str, **options: Any) -> None:
    """Run QUERY, a SELECT of DuckDB's SQL. Each topic is a table.

    Its columns are the fields of the values, then _key, _partition, _offset, _timestamp and _headers. Conditions on
    _partition, _offset and _timestamp limit what is read. Records of open and aborted transactions are omitted. Other
    tables are files, such as 'customers.parquet' or 'customers.csv'. Quote names with other characters: "my-topic".
    """
    reading = Reading(*map(options.pop, Reading._fields))
    result = Result(**options)
    result.check()
    with open_admin(bootstrap) as admin:
        if result.topic is not None:
            admin.describe_topics(result.topic)  # before the query, which may need long
    try:
        with reading.open(query, bootstrap) as found:
            reading.require_read(found)
            if result.explain:
                _explain(found)
            elif result.topic is not None:
                _write(found, result.topic, result.once)
            elif result.follow:
                _follow(found, result)
            elif result.file is not None:
                _save(found, result.file)
            else:
                _run(found, lambda progress: _print(found.reader(progress), result))
    except errors.BadRecordError as error:
        schema = "--schema" if error.column == "value" else "--key-format"
        raise error.with_advice(
            f"Say with {schema} how to read {error.topic}, or read such {error.column}s as null with --bad-records null"
        ) from None
    except errors.ConfigError as error:
        raise click.ClickException(str(error)) from None


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


def _print(reader: pa.RecordBatchReader, result: Result) -> None:
    from oncelog.cli.sql_output import printed

    output = printed(result.form, reader.schema, result.rows)
    for batch in reader:
        output.add(batch)
    output.end()


def _save(query: Query, path: Path) -> None:
    import pyarrow as pa

    from oncelog.cli.tables.inputs import SUFFIXES
    from oncelog.cli.tables.outputs import open_output

    def work(progress: Progress) -> None:
        reader = query.reader(progress)
        with open_output(str(path), SUFFIXES[path.suffix.lower()], reader.schema) as file:
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


def _follow(query: Query, result: Result) -> None:
    """Print the result each time that it has changed, until Ctrl-C."""
    before = None
    while True:
        table = _run(query, lambda _: query.arrow(), bar=False)
        shown = repr(table.to_pydict())  # NaN does not equal itself
        if shown != before:
            _print(table.to_reader(), result)
            sys.stdout.flush()
            before = shown
        time.sleep(result.every)
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
