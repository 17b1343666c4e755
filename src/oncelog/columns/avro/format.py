"""Read and write values as Avro. The schema determines the column's type."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa

from oncelog.columns.avro.reading import Encoded, Reader, Run
from oncelog.columns.avro.schemas import Node, Schema, parsed, tree
from oncelog.columns.avro.writing import Writer
from oncelog.columns.values import Bad, Schemas, look_up
from oncelog.protocol.schema_ids import FRAME, frame, guid_header, schema_in_header, split_frame

NO_ID = -1
UNREADABLE = (ValueError, LookupError, TypeError, RecursionError, OverflowError)
"""Errors of a lookup of a schema that make values bad. The registry's own errors are not among them."""


class Avro:
    """Read and write values that are Avro: each is one datum without a container.

    `schema` is a dict, or its JSON text. Values are written with it, and read with it unless `schemas` is given.

    With `schemas`, the values to read are framed by the schema registry (Confluent's wire format: a zero byte, then an
    id of four bytes). `schemas` is a mapping or a callable from an id to the schema that values were written with.
    Each id is looked up once. If `schema` is also given, values are converted to it by Avro's rules of resolution.

    With `ids_in_headers`, the ids may also be in the headers `__value_schema_id` and `__key_schema_id`, as Confluent's
    HeaderSchemaIdSerializer writes them; `schemas` then also gets GUIDs (uuid.UUID). `schema_guid` is the GUID that is
    written to this header of each record.

    With `schema_id`, the written values are framed with this id. The values to read are framed, too, and `schema` is
    the schema with this id. `keep_bad` works as in `Json`. A union of null and one type is a column of that type. A
    union of more types is a struct with the fields `member0`, `member1` and so on for its types except null, in their
    order; one of them has a value. A duration is an interval of months, days and nanoseconds. With `intervals=False`,
    it is 12 bytes, because some libraries have no such type.
    """

    framed_advice = "read with schemas={{{0}: ...}} or schema_id={0}"
    """What an error advises for a value that seems to have an unexpected frame. {0} is the id."""

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        schemas: Schemas | None = None,
        schema_id: int | None = None,
        keep_bad: bool = False,
        intervals: bool = True,
        ids_in_headers: bool = False,
        schema_guid: str | UUID | None = None,
    ) -> None:
        if ids_in_headers and schemas is None:
            raise ValueError("ids_in_headers requires schemas by GUID")
        if schema_guid is not None and schema_id is not None:
            raise ValueError("schema_id is written before each value, and schema_guid as a header: set one of them")
        if schema is None and schemas is None:
            raise ValueError("Avro requires a schema, or schemas by id")
        self._intervals = intervals
        self.schema = None if schema is None else Reader(self._tree(schema))
        """Reads values as the schema demands. Its `type` is that of the column."""
        self._unframed = None if self.schema is None else self.schema.node
        prefix = frame(schema_id)
        self._writing = None if self.schema is None else Writer(self.schema.node, self.schema.type, prefix)
        self.keep_bad = keep_bad
        self._schemas = schemas
        self._framed = schemas is not None or schema_id is not None
        self.ids_in_headers = ids_in_headers
        self.header = None if schema_guid is None else guid_header(UUID(str(schema_guid)))
        self._writers: dict[int | UUID, Node] = {}
        self._readers: dict[Node, Reader] = {}
        if schema_id is not None and self.schema is not None:
            self._writers[schema_id] = self.schema.node

    @property
    def type(self) -> pa.DataType | None:
        """The type of the column, or None without a schema of its own."""
        return None if self.schema is None else self.schema.type

    def decode(self, values: pa.Array) -> tuple[pa.Array, list[Bad]]:
        """See `Format`."""
        return self._decode(values, None)

    def decode_with_ids(self, values: pa.Array, ids: pa.Array) -> tuple[pa.Array, list[Bad]]:
        """See `HeaderFormat`."""
        return self._decode(values, ids)

    def _decode(self, values: pa.Array, headers: pa.Array | None) -> tuple[pa.Array, list[Bad]]:
        column = Encoded(values)
        if self.schema is not None and not self._framed:
            run = Run(0, column.rows, 0, self._unframed)
            found, bad = self.schema.read(column, [run], keep_bad=self.keep_bad)
            return found, [Bad(row, reason + self._hint(values[row].as_py())) for row, reason in bad]
        into, runs = self.schema, []
        failed: dict[bytes | int, str] = {}  # a later batch asks again: the schema may be registered meanwhile
        for first, last, found_id in column.schema_ids(headers):
            skip = 0 if isinstance(found_id, bytes) else FRAME
            try:
                if found_id in failed:
                    runs.append(Run(first, last, skip, None, failed[found_id]))
                    continue
                writer = self._writer(found_id if isinstance(found_id, int) else schema_in_header(found_id))
                into = into or self._reader(writer)
                if self.schema is None and self._reader(writer).type != into.type:
                    raise ValueError("its schema differs from that of earlier values; pass a schema for all of them")
                runs.append(Run(first, last, skip, writer))
            except UNREADABLE as error:
                failed[found_id] = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
                runs.append(Run(first, last, skip, None, failed[found_id]))
                if not self.keep_bad:
                    break
        if into is None:
            return pa.nulls(column.rows), [Bad(row, run.reason) for run in runs for row in column.valid_rows(run)]
        return into.read(column, runs, keep_bad=self.keep_bad)

    def narrow(self, node: Node) -> None:
        """Read values into this part of the schema. The schema that they were written with stays the same."""
        self.schema = Reader(node)

    def _writer(self, schema_id: int | UUID) -> Node:
        """Return the schema with this id, or -1 for a value without an id. Raises LookupError and ValueError."""
        if schema_id == NO_ID:
            also = ", and no header with a schema id" if self.ids_in_headers else ""
            raise ValueError(f"it has no schema id prefix{also}")
        found = self._writers.get(schema_id)
        if found is None:
            if self._schemas is None:
                raise LookupError(f"schemas has no schema with id {schema_id}")
            found = self._writers[schema_id] = self._tree(look_up(self._schemas, schema_id))
        return found

    def _tree(self, schema: object) -> Node:
        return tree(parsed(schema), intervals=self._intervals)

    def _reader(self, node: Node) -> Reader:
        if node not in self._readers:
            self._readers[node] = Reader(node)
        return self._readers[node]

    def encode(self, values: pa.Array) -> pa.Array:
        """See `Format`."""
        if self._writing is None:
            raise TypeError("writing Avro requires a schema: Avro(schema)")
        return self._writing.write(values)

    def _hint(self, value: bytes) -> str:
        """Return a hint for the error message if a value may have an unexpected frame, or an empty string."""
        framed = split_frame(value)
        if framed is None:
            return ""
        return f"; if the schema registry framed it (id {framed[0]}), {self.framed_advice.format(framed[0])}"
