"""The options of `oncelog sql`: how topics are read, and what becomes of the result."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from oncelog.cli.client_settings import client_settings
from oncelog.cli.common import Command, assignments, duration, usage, with_options
from oncelog.cli.registry_settings import found_registry, with_registry

if TYPE_CHECKING:
    from oncelog.tables.choosing import Wanted
    from oncelog.tables.query import Query


def _file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        from oncelog.cli.tables.inputs import SUFFIXES

        if path.suffix.lower() not in SUFFIXES:
            raise click.BadParameter(f"the name must end in {', '.join(SUFFIXES)}")
    return path


class Reading(NamedTuple):
    """The options about tables."""

    formats: tuple[str, ...]
    key_formats: tuple[str, ...]
    schemas: tuple[str, ...]
    registry: str | None
    bad_records: str
    max_disorder: int | None
    """In ms."""
    files: tuple[str, ...]
    memory: str | None

    def open(self, query: str, bootstrap: str) -> Query:
        """Prepare a query. Raises UsageError, and the errors of `oncelog.sql`."""
        import oncelog

        return oncelog.sql(
            query,
            bootstrap,
            client_settings(),
            formats=self._wanted(),
            key_formats=assignments("--key-format", self.key_formats),
            registry=found_registry(self.registry),
            sqlite=assignments("--sqlite", self.files),
            bad_records=self.bad_records,
            max_disorder=None if self.max_disorder is None else timedelta(milliseconds=self.max_disorder),
            memory_limit=self.memory,
            client_id="oncelog-cli",
        )

    def require_read(self, query: Query) -> None:
        """Raise UsageError for a topic of --format, --key-format or --schema that the query does not read."""
        given = {"--format": self.formats, "--key-format": self.key_formats, "--schema": self.schemas}
        named = {topic for option, texts in given.items() for topic in assignments(option, texts)}
        topics = [each.topic for each in query.reads()]
        if unread := sorted(named.difference(topics)):
            read = ", ".join(topics) or "no topic"
            raise click.UsageError(
                f"--format, --key-format or --schema names {', '.join(unread)}; the query reads {read}"
            )

    def _wanted(self) -> dict[str, Wanted]:
        """Return what the options say about the values of topics."""
        from oncelog.tables.choosing import Wanted
        from oncelog.tables.query import schema_of

        found = {topic: Wanted(form) for topic, form in assignments("--format", self.formats).items()}
        for topic, text in assignments("--schema", self.schemas).items():
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


class Result(NamedTuple):
    """The options about the result."""

    form: str
    rows: int
    file: Path | None
    topic: str | None
    once: str | None
    follow: bool
    every: float
    explain: bool

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.once is not None and self.topic is None:
            raise click.UsageError("--once needs --into")
        if self.follow and (self.topic is not None or self.file is not None or self.explain):
            raise click.UsageError("--follow cannot be used together with --into, --to or --explain")
        if self.topic is not None and self.file is not None:
            raise click.UsageError("use --into or --to, not both")


def with_reading(command: Command) -> Command:
    """Add the options of Reading, in its order."""
    options = (
        click.option(
            *("--format", "formats"),
            multiple=True,
            metavar="TOPIC=FORMAT",
            help="Format of values: auto, json, avro, string or bytes.",
        ),
        click.option(*("--key-format", "key_formats"), multiple=True, metavar="TOPIC=FORMAT", help="Format of keys."),
        click.option(
            *("--schema", "schemas"),
            multiple=True,
            metavar="TOPIC=SCHEMA",
            help="Schema of values: columns as in CREATE TABLE for JSON, or @FILE with Avro's schema. Default: that of "
            "the registry, or of a sample of the records.",
        ),
        with_registry,
        click.option(
            "--bad-records",
            type=click.Choice(["fail", "null"]),
            default="fail",
            show_default=True,
            help="Whether values that cannot be decoded end the query, or are null.",
        ),
        click.option(
            "--max-disorder",
            type=duration,
            metavar="TIME",
            help="How much older than a record before it a record may be, such as PT10M. A query of records before a "
            "time then ends there. Default: read to the end.",
        ),
        click.option(
            *("--sqlite", "files"),
            multiple=True,
            metavar="NAME=FILE",
            help="Use the tables of a SQLite file as NAME.TABLE.",
        ),
        click.option("--memory", metavar="SIZE", help="DuckDB's memory, such as 2GB. Default: 80 % of the machine's."),
    )
    return with_options(command, options)


def with_result(command: Command) -> Command:
    """Add the options of Result, in its order."""
    options = (
        click.option(
            *("--output", "form"),
            type=click.Choice(["table", "json", "csv"]),
            default="table",
            show_default=True,
            help="How to print rows. JSON is one object a line.",
        ),
        click.option(
            "--rows", type=click.IntRange(min=1), default=100, show_default=True, help="The most rows of a table."
        ),
        click.option(
            *("--to", "file"),
            type=click.Path(path_type=Path, dir_okay=False),
            callback=_file,
            metavar="FILE",
            help="Save the rows as FILE.parquet, FILE.csv or FILE.jsonl.",
        ),
        click.option("--into", "topic", metavar="TOPIC", help="Write the rows to this topic, in one transaction."),
        click.option(
            "--once", metavar="NAME", help="With --into: write nothing if this was done under this name before."
        ),
        click.option(
            "--follow", is_flag=True, help="Run the query again and again, and print the result if it has changed."
        ),
        click.option(
            "--every",
            type=click.FloatRange(0.1, 86_400),
            default=2.0,
            show_default=True,
            metavar="SECONDS",
            help="With --follow: the pause.",
        ),
        click.option("--explain", is_flag=True, help="Only show what would be read of each topic, and DuckDB's plan."),
    )
    return with_options(command, options)
