"""Read and write values as Avro. fastavro converts them one by one, and the schema determines the column's type."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.columns.fitting import cast, fitted
from oncelog.columns.values import FRAME, MAGIC, Bad, Schemas, check_schema_id, frame, look_up

try:
    import fastavro
    from fastavro.read import SchemaResolutionError
except ImportError as missing:
    raise ImportError("Avro requires fastavro; run `pip install 'oncelog[avro]'`") from missing

Schema = str | Mapping[str, Any] | list[Any]

UNREADABLE = (ValueError, EOFError, LookupError, TypeError, ArithmeticError, SchemaResolutionError)
"""Errors that the bytes of a value can cause. pyarrow's errors are ValueErrors and TypeErrors."""

PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
"""Logical types that are read and written as plain numbers, so that no Python object is created for each time."""


class Avro:
    """Read and write values that are Avro: each is one datum without a container.

    `schema` is a dict, or its JSON text. Values are written with it, and read with it unless `schemas` is given.

    With `schemas`, the values to read are framed by the schema registry (Confluent's wire format: a zero byte, then an
    id of four bytes). `schemas` is a mapping or a callable from an id to the schema that values were written with.
    Each id is looked up once. If `schema` is also given, values are converted to it by Avro's rules of resolution.

    With `schema_id`, the written values are framed with this id. The values to read are framed, too, and `schema` is
    the schema with this id. `keep_bad` works as in `Json`. A union may have only null and one other type.
    """

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        schemas: Schemas | None = None,
        schema_id: int | None = None,
        keep_bad: bool = False,
    ) -> None:
        if schema is None and schemas is None:
            raise ValueError("Avro requires a schema, or schemas by id")
        self.schema = None if schema is None else _Compiled(schema)
        self._frame = frame(check_schema_id(schema_id))
        self.keep_bad = keep_bad
        self._schemas = schemas
        self._known: dict[int, _Compiled] = {}
        if schema_id is not None and self.schema is not None:
            self._known[schema_id] = self.schema

    @property
    def _framed(self) -> bool:
        return self._schemas is not None or bool(self._frame)

    def decode(self, values: pa.Array) -> tuple[pa.Array, list[Bad]]:
        """See `Format`."""
        bad: list[Bad] = []
        found: list[Any] = []
        into = self.schema
        for row, value in enumerate(values.to_pylist()):
            found.append(None)
            if value is None:
                continue
            try:
                writer, data = self._writer(value)
                if into is None:
                    into = writer
                elif self.schema is None and writer.type != into.type:
                    raise ValueError("its schema differs from that of earlier values; pass a schema for all of them")
                found[row] = into.read(writer, data)
            except UNREADABLE as error:
                bad.append(Bad(row, _reason(error) + self._hint(value)))
                if not self.keep_bad:
                    found += [None] * (len(values) - row - 1)
                    break
        return pa.nulls(len(values)) if into is None else self._column(into, found, bad), bad

    def _column(self, into: _Compiled, found: list[Any], bad: list[Bad]) -> pa.Array:
        """Return the column of the values that were read.

        Add values that its type cannot hold to `bad`, such as a decimal with too many digits.
        """
        try:
            return into.column(found)
        except UNREADABLE as error:
            self._find(into, found, 0, _reason(error), bad)
        bad.sort()
        if not self.keep_bad:
            found[bad[0].row :] = [None] * (len(found) - bad[0].row)
            del bad[1:]
        for item in bad:
            found[item.row] = None
        return into.column(found)

    def _find(self, into: _Compiled, some: list[Any], first: int, reason: str, bad: list[Bad]) -> bool:
        """Find rows that do not fit by bisection, and add them to `bad`. Return whether to continue the search.

        `some` has the values from row `first` on.
        """
        if len(some) == 1:
            bad.append(Bad(first, reason))
            return self.keep_bad
        middle = len(some) // 2
        for start, part in ((first, some[:middle]), (first + middle, some[middle:])):
            try:
                into.column(part)
            except UNREADABLE as error:
                if not self._find(into, part, start, _reason(error), bad):
                    return False
        return True

    def _hint(self, value: bytes) -> str:
        """Return a hint for the error message if a value may have an unexpected frame, or an empty string."""
        if self._framed or len(value) < FRAME or value[0] != MAGIC:
            return ""
        of = int.from_bytes(value[1:FRAME], "big")
        return f"; if the schema registry framed it (id {of}), read with schemas={{{of}: ...}} or schema_id={of}"

    def _writer(self, value: bytes) -> tuple[_Compiled, bytes]:
        """Return the schema that a value was written with, and its bytes without the frame.

        Raises ValueError if the frame is missing, and LookupError if its id is unknown.
        """
        if not self._framed:
            assert self.schema is not None
            return self.schema, value
        if len(value) < FRAME or value[0] != MAGIC:
            raise ValueError("it has no schema id prefix")
        schema_id = int.from_bytes(value[1:FRAME], "big")
        found = self._known.get(schema_id)
        if found is None:
            if self._schemas is None:
                raise LookupError(f"schemas has no schema with id {schema_id}")
            found = self._known[schema_id] = _Compiled(look_up(self._schemas, schema_id))
        return found, value[FRAME:]

    def encode(self, values: pa.Array) -> pa.Array:
        """See `Format`."""
        if self.schema is None:
            raise TypeError("writing Avro requires a schema: Avro(schema)")
        rows = self.schema.rows(values)
        buffer = io.BytesIO()
        ends = np.zeros(len(rows) + 1, np.int64)
        write, schema, before = fastavro.schemaless_writer, self.schema.parsed, self._frame
        for index, row in enumerate(rows):
            if row is not None or self.schema.writes_null:
                buffer.write(before)
                try:
                    write(buffer, schema, row)
                except (ValueError, TypeError, OverflowError, LookupError, AttributeError) as error:
                    raise ValueError(f"row {index} does not fit the Avro schema: {error}") from error
            ends[index + 1] = buffer.tell()
        mask = None if values.null_count == 0 or self.schema.writes_null else _bits(values)
        return pa.Array.from_buffers(
            pa.large_binary(), len(rows), [mask, pa.py_buffer(ends), pa.py_buffer(buffer.getvalue())]
        )


def _reason(error: Exception) -> str:
    text = str(error) or ("it ends too early" if isinstance(error, EOFError) else "it cannot be decoded")
    return f"{type(error).__name__}: {text}"


def _parsed(schema: object) -> Any:
    """Return the schema in fastavro's form, with full names.

    Raises TypeError or ValueError if it is not a schema, and fastavro's SchemaParseException.
    """
    if not isinstance(schema, str | Mapping | list):
        raise TypeError(f"an Avro schema is a dict or its JSON text, not {type(schema).__name__}")
    plain: Any = schema
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            plain = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"the Avro schema is not valid JSON: {error}") from None
    if isinstance(plain, str) and plain not in PLAIN:
        raise ValueError(
            f"{plain!r} is not an Avro schema; pass a dict, its JSON text (of a file: Path(...).read_text()), or one "
            f"of {', '.join(name for name in PLAIN if name != 'enum')}"
        )
    return fastavro.parse_schema(plain)


def _bits(values: pa.Array) -> pa.Buffer:
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


class _Compiled:
    """A schema in fastavro's form, without logical types except decimals, and the type of its column."""

    def __init__(self, schema: Any) -> None:
        plain = _parsed(schema)  # parse the schema as given, so that errors refer to it
        walk = _Walk()
        self.type, self._physical = walk.types(plain, "")
        self.parsed = fastavro.parse_schema(walk.stripped(plain))
        self._maps = walk.maps
        self.writes_null = isinstance(plain, list) or plain == "null"

    def read(self, writer: _Compiled, data: bytes) -> Any:
        """Return the datum in `data`. Raises ValueError if bytes are left after it."""
        stream = io.BytesIO(data)
        found = fastavro.schemaless_reader(stream, writer.parsed, None if writer is self else self.parsed)
        if stream.tell() != len(data):
            raise ValueError(f"it is followed by {len(data) - stream.tell()} extra bytes")
        return found

    def column(self, rows: list[Any]) -> pa.Array:
        """Return the column of values that `read` returned."""
        return pa.array(rows, self._physical).cast(self.type)

    def rows(self, values: pa.Array) -> list[Any]:
        """Return the rows of a column in the form that fastavro writes.

        Fields of the schema that the column lacks get their defaults. Raises ValueError if the column does not fit.
        """
        logical, physical = (fitted(kind, values.type, "Avro") for kind in (self.type, self._physical))
        plain = cast(values, logical).cast(physical)
        return list(plain.to_pylist(maps_as_pydicts="strict" if self._maps else None))


class _Walk:
    """Convert a schema to Arrow types, and keep its named types for later references."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[pa.DataType, pa.DataType]] = {}
        self._open: set[str] = set()
        self.maps = False

    def types(self, schema: Any, path: str) -> tuple[pa.DataType, pa.DataType]:
        """Return the column's type, and the type of the numbers and texts that fastavro reads.

        Raises TypeError if no column can hold the values. `path` names the field for the error message.
        """
        if isinstance(schema, list):
            others = [item for item in schema if item != "null"]
            if len(others) > 1:
                raise TypeError(f"{path or 'the value'}: no column type can hold a union of several types")
            return self.types(others[0] if others else "null", path)
        if isinstance(schema, str):
            if schema in PLAIN:
                return PLAIN[schema], PLAIN[schema]
            if schema in self._open or schema not in self._named:
                raise TypeError(
                    f"{path or 'the value'}: no column type can hold a type that contains itself ({schema})"
                )
            return self._named[schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.types(kind, path)
        name = schema.get("name")
        self._open.add(name)
        found = self._complex(schema, kind, path)
        self._open.discard(name)
        if name is not None:
            self._named[name] = found
        return found

    def _complex(self, schema: Mapping[str, Any], kind: str, path: str) -> tuple[pa.DataType, pa.DataType]:
        logical = schema.get("logicalType", "")
        if kind in ("record", "error"):
            fields = [(field["name"], *self.types(field["type"], field["name"])) for field in schema["fields"]]
            return (
                pa.struct([(name, of_column) for name, of_column, _ in fields]),
                pa.struct([(name, physical) for name, _, physical in fields]),
            )
        if kind == "array":
            of_column, physical = self.types(schema["items"], path)
            return pa.list_(of_column), pa.list_(physical)
        if kind == "map":
            self.maps = True
            of_column, physical = self.types(schema["values"], path)
            return pa.map_(pa.string(), of_column), pa.map_(pa.string(), physical)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            precision = schema["precision"]
            of = (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, schema.get("scale", 0))
            return of, of
        if kind == "fixed":
            return pa.binary(schema["size"]), pa.binary(schema["size"])
        if (kind, logical) in LOGICAL:
            return LOGICAL[kind, logical], pa.int32() if kind == "int" else pa.int64()
        return self.types(kind, path)

    def stripped(self, schema: Any) -> Any:
        """Return the schema without its logical types, except decimals."""
        if isinstance(schema, list):
            return [self.stripped(item) for item in schema]
        if not isinstance(schema, Mapping):
            return schema
        kept = {name: value for name, value in schema.items() if name != "logicalType" and name[:2] != "__"}
        if schema.get("logicalType") == "decimal":
            kept["logicalType"] = "decimal"
        for name in ("type", "items", "values"):
            if name in kept:
                kept[name] = self.stripped(kept[name])
        if "fields" in kept:
            kept["fields"] = [self.stripped(field) for field in kept["fields"]]
        return kept
