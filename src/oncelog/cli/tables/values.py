"""Turn rows of a file into the columns key, value and timestamp of records, and find the format of the value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import click
import pyarrow as pa

from oncelog.cli.exact_json import dumped
from oncelog.cli.tables.schemas import avro_schema
from oncelog.columns.fitting import fitted
from oncelog.columns.json_values import Json
from oncelog.columns.values import joined
from oncelog.errors import RegistryError

if TYPE_CHECKING:
    from oncelog.cli.tables.inputs import Input
    from oncelog.client.serialization.registry import SchemaRegistry
    from oncelog.columns.avro.format import Avro

CHUNK_BYTES = 1 << 24
"""Bytes of columns that are sent, and in a transaction committed, together."""


class Roles(NamedTuple):
    """The columns of a file that do not become part of the value."""

    key: str | None = None
    timestamp: str | None = None

    def values(self, columns: list[str], path: str) -> list[str]:
        """Return the columns of the value. Raises UsageError for columns that the file lacks."""
        for option, name in (("--key", self.key), ("--timestamp", self.timestamp)):
            if name is not None and name not in columns and columns:
                raise click.UsageError(f"{option}: {path} has no column {name!r}; it has {', '.join(columns)}")
        return [name for name in columns if name not in self]


class Shape:
    """How rows become records with the value in JSON, or with `avro` in Avro."""

    def __init__(self, roles: Roles, names: list[str], avro: Avro | None) -> None:
        self._roles = roles
        self._names = names
        self._avro = avro
        self._lines: Json | None = None
        if avro is not None:
            self._lines = Json(avro.type) if _readable(avro.type) else None

    def table(self, rows: pa.RecordBatch | list[dict[str, Any]]) -> pa.Table:
        """Return the columns of the records of some rows.

        Raises ClickException for what cannot be a key, timestamp or value. TypeError and ValueError name a row among
        these rows.
        """
        if isinstance(rows, list):
            return self._of_documents(rows)
        found = {}
        if self._roles.key is not None:
            found["key"] = _key(rows.column(self._roles.key), self._roles.key)
        if self._roles.timestamp is not None:
            found["timestamp"] = _timestamp(rows.column(self._roles.timestamp), self._roles.timestamp)
        form = Json() if self._avro is None else self._avro
        return pa.table({**found, "value": form.encode(_struct(rows, self._names))})

    def _of_documents(self, rows: list[dict[str, Any]]) -> pa.Table:
        found: dict[str, Any] = {}
        if self._roles.key is not None:
            found["key"] = pa.array([_key_text(row.get(self._roles.key)) for row in rows], pa.large_string())
        if self._roles.timestamp is not None:
            name = self._roles.timestamp
            try:
                times = pa.array([row.get(name) for row in rows])
            except pa.ArrowException as error:
                raise click.ClickException(f"--timestamp: field {name!r}: {error}") from None
            found["timestamp"] = _timestamp(times, name)
        apart = {name for name in self._roles if name is not None}
        values = [{name: value for name, value in row.items() if name not in apart} for row in rows]
        texts = pa.array(map(_json_text, values), pa.large_binary())
        return pa.table({**found, "value": texts if self._avro is None else self._encoded(texts, self._avro)})

    def _encoded(self, texts: pa.Array, avro: Avro) -> pa.Array:
        if self._lines is None:
            raise click.ClickException(
                "JSON lines cannot be written with this Avro schema, because it has maps or bytes"
            )
        values, bad = self._lines.decode(texts)
        if bad:
            raise ValueError(f"row {bad[0].row}: {bad[0].reason}")
        return avro.encode(joined(values))


def _json_text(value: Any) -> bytes:
    """Return JSON in UTF-8. Lone surrogates become their escapes."""
    return dumped(value, (",", ":")).encode(errors="backslashreplace")


def _readable(kind: pa.DataType) -> bool:
    try:
        Json(kind)
    except TypeError:
        return False
    return True


def _struct(rows: pa.RecordBatch, names: list[str]) -> pa.Array:
    if not names:
        return pa.array([{}] * rows.num_rows, pa.struct([]))
    fields = [rows.schema.field(name) for name in names]
    return pa.StructArray.from_arrays([rows.column(name) for name in names], fields=fields)


def _key(column: pa.Array, name: str) -> pa.Array:
    """Return the bytes of a binary column, and the text of each other one."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _key(column.dictionary_decode(), name)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.large_binary())
    try:
        return column.cast(pa.large_string())
    except pa.ArrowException:
        raise click.UsageError(f"--key: the column {name!r} of type {kind} has no text; take another one") from None


def _key_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return _json_text(value).decode()


def _timestamp(column: pa.Array, name: str) -> pa.Array:
    """Return times, or integers in ms. Texts are read as ISO 8601, in UTC if they have no zone."""
    kind = column.type
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return _parsed_times(column)
        if pa.types.is_date(kind):
            return column.cast(pa.timestamp("ms"))
        if pa.types.is_null(kind):
            return column.cast(pa.int64())
    except pa.ArrowException as error:
        reason = str(error).partition(": expected")[0]
        raise click.ClickException(f"--timestamp: column {name!r}: {reason}") from None
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise click.UsageError(
            f"--timestamp: the column {name!r} has type {kind}, but must have times, or ms since 1970"
        )
    return column


def _parsed_times(texts: pa.Array) -> pa.Array:
    """Return the times of ISO 8601 texts, all with a zone or all without. Raises ArrowException."""
    try:
        return texts.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid as error:
        try:
            return texts.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            raise error from None


def chunks(batches: Iterable[Any]) -> Iterator[Any]:
    """Divide batches into parts of about CHUNK_BYTES, but of at least one row."""
    for batch in batches:
        if isinstance(batch, list):
            yield batch
            continue
        step = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, CHUNK_BYTES))
        yield from (batch.slice(first, step) for first in range(0, batch.num_rows, step))


# -- Avro -------------------------------------------------------------------------------------------------------------


class AvroOptions(NamedTuple):
    """The schema of written values: a file with it or None, its subject, and whether to register it."""

    schema_file: str | None
    subject: str
    register: bool


class WrittenAvro(NamedTuple):
    """A format that writes values, and the id of its schema in the registry."""

    format: Avro
    schema_id: int


def avro_format(
    source: Input, names: list[str], topic: str, registry: SchemaRegistry, options: AvroOptions
) -> WrittenAvro:
    """Return the format that writes values with a schema of the registry.

    That is the schema of the file, with `register` otherwise one for the columns, and without it the latest one of the
    subject. Raises ClickException, also if the columns do not fit the schema, and RegistryError.
    """
    from oncelog.client.serialization.avro import whole_schema
    from oncelog.columns.avro.format import Avro

    kind = source.type_of(names)
    try:
        if options.schema_file is None and not options.register:
            answer = registry.latest(options.subject)
            schema: Any = whole_schema(registry, answer, f"the latest schema of {options.subject}")
            return WrittenAvro(_fitting(Avro(schema, schema_id=answer["id"]), kind), answer["id"])
        text = _schema_text(options.schema_file) or json.dumps(avro_schema(kind, topic))
        _fitting(Avro(text), kind)  # a schema that does not fit must not be registered
        ask = registry.register if options.register else registry.find
        found = ask(options.subject, text)
        return WrittenAvro(Avro(text, schema_id=found), found)
    except LookupError as error:
        advice = "use --register to register a schema for the columns, or name another --subject"
        raise click.ClickException(f"{error}; {advice}") from None
    except (RegistryError, click.ClickException):
        raise
    except Exception as error:  # noqa: BLE001 - fastavro has errors of its own
        raise click.ClickException(f"subject {options.subject}: {error}") from None


def _fitting(avro: Avro, kind: pa.StructType) -> Avro:
    """Return the format. Raises ValueError if its schema lacks a column."""
    fitted(avro.type, kind, "Avro")
    return avro


def _schema_text(path: str | None) -> str:
    if path is None:
        return ""
    with open(path, encoding="utf-8") as stream:
        return stream.read()
