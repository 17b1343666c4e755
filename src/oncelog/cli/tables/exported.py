"""The columns of an exported file: those of the value, and _key, _partition, _offset, _timestamp and _headers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import click
import pyarrow as pa

from oncelog import errors
from oncelog.cli.tables.schemas import DocumentTypes
from oncelog.cli.tables.values import chunks
from oncelog.columns.decode import SCHEMA_WITH_HEADERS
from oncelog.columns.json_values import Json
from oncelog.columns.values import joined
from oncelog.protocol.schema_ids import unframed
from oncelog.tables.bounds import HEADERS, OF_RECORD

if TYPE_CHECKING:
    from oncelog.client.serialization.registry import SchemaRegistry

TEXT_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
BAD = "_value_bad"


class Columns(NamedTuple):
    """How records become rows.

    `format` converts values, or is None for bytes. Keys and values of `as_text` become strings. `text_headers` says
    whether the file has no bytes, so that the values of headers become strings.
    """

    format: Any
    as_text: frozenset[str]
    text_headers: bool

    def schema(self) -> pa.Schema:
        """Return the columns of the file. Raises ClickException if two have the same name."""
        empty = SCHEMA_WITH_HEADERS.empty_table()
        if self.format is not None:
            empty = empty.set_column(empty.schema.get_field_index("value"), "value", pa.array([], self.format.type))
            if self.format.keep_bad:
                empty = empty.append_column("value_bad", pa.array([], pa.binary()))
        found = self.rows(empty).schema
        twice = sorted({name for name in found.names if found.names.count(name) > 1})
        if twice:
            raise click.ClickException(
                f"the values have a field {twice[0]!r}, which is also a column of the file; use --value-format string"
            )
        return found

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows of the file. Raises ClickException for a key or value that is not text."""
        value = table.column("value")
        if pa.types.is_struct(value.type):
            names = [field.name for field in value.type]
            columns = list(value.flatten())
        else:
            names, columns = ["value"], [self._text("value", table)]
        for name, source in OF_RECORD.items():
            names.append(name)
            columns.append(self._headers(table) if name == HEADERS else self._text(source, table))
        if "value_bad" in table.column_names:
            names.append(BAD)
            columns.append(table.column("value_bad"))
        return pa.Table.from_arrays(columns, names)

    def _text(self, name: str, table: pa.Table) -> pa.ChunkedArray:
        column = table.column(name)
        if name not in self.as_text or not pa.types.is_binary(column.type):
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowException:
            raise click.ClickException(
                f"a {name} at {_where(table)} is not UTF-8 text; use --{name}-format bytes"
            ) from None

    def _headers(self, table: pa.Table) -> pa.ChunkedArray:
        column = table.column("headers")
        if not self.text_headers:
            return column
        texts = [
            [{"key": pair["key"], "value": _text_of(pair["value"])} for pair in pairs] for pairs in column.to_pylist()
        ]
        return pa.chunked_array([pa.array(texts, TEXT_HEADERS)])


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _where(table: pa.Table) -> str:
    offsets = table.column("offset")
    return f"offsets {offsets[0].as_py()} to {offsets[-1].as_py()} of partition {table.column('partition')[0].as_py()}"


# -- formats ----------------------------------------------------------------------------------------------------------


def avro_reader(registry: SchemaRegistry, subject: str, *, keep_bad: bool) -> Any:
    """Return the format that reads Avro as the latest schema of the subject. Raises ClickException, RegistryError."""
    from oncelog.client.serialization.avro import avro_schemas, whole_schema
    from oncelog.columns.avro.format import Avro

    try:
        latest = whole_schema(registry, registry.latest(subject), f"the latest schema of {subject}")
        return Avro(latest, schemas=avro_schemas(registry), keep_bad=keep_bad, ids_in_headers=True)
    except errors.RegistryError:
        raise
    except LookupError as error:
        raise click.ClickException(f"{error}; name the subject with --subject") from None
    except Exception as error:  # noqa: BLE001 - fastavro has errors of its own
        raise click.ClickException(f"subject {subject}: {error}") from None


def json_reader(kind: pa.DataType | None, *, keep_bad: bool) -> Any:
    """Return the format that reads JSON of this type. Raises ClickException for a type that it cannot read."""
    if kind is None or pa.types.is_null(kind):
        kind = pa.struct([])
    try:
        return Json(kind, keep_bad=keep_bad)
    except TypeError as error:
        raise click.ClickException(f"{error}; use --value-format string") from None


def type_of_json(
    tables: Iterable[pa.Table], known: pa.DataType | None, topic: str, *, keep_bad: bool
) -> pa.DataType | None:
    """Return the type that holds the JSON values of these tables, and those of type `known`. Raises ClickException."""
    found = DocumentTypes(known)
    for table in chunks(tables):
        documents = list(_documents(table, topic, keep_bad=keep_bad))
        if not documents:
            continue
        try:
            found.add(documents)
        except (pa.ArrowException, OverflowError) as error:
            text = " ".join(str(error).split())
            raise click.ClickException(
                f"the values at {_where(table)} and before have no common type: {text}; use --value-format string"
            ) from None
    return found.kind


def _documents(table: pa.Table, topic: str, *, keep_bad: bool) -> Iterator[Any]:
    for row, data in enumerate(joined(table.column("value")).to_pylist()):
        if data is None:
            continue
        try:
            document = json.loads(unframed(data))
            if b"\\u" in data:  # it may have a lone surrogate, which is no text of Arrow
                json.dumps(document, ensure_ascii=False).encode()
            yield document
        except (ValueError, RecursionError) as error:
            if keep_bad:
                continue
            at = table.slice(row, 1)
            where = f"{topic}-{at.column('partition')[0].as_py()} at offset {at.column('offset')[0].as_py()}"
            raise click.ClickException(
                f"the value of {where} is not JSON: {error}; use --keep-bad, or --value-format string"
            ) from None
