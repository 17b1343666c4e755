"""Choose how a topic's keys and values become columns: as the user says, by the registry, or by a sample of records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from oncelog.client.serialization.registry import SchemaRegistry
from oncelog.columns.json_values import Json
from oncelog.columns.text import Text
from oncelog.columns.values import Format
from oncelog.errors import ConfigError
from oncelog.protocol.schema_ids import FRAME, MAGIC
from oncelog.tables.json_types import type_of

FORMATS = ("auto", "json", "avro", "string", "bytes")

Make = Callable[[frozenset[str] | None, bool], Format | None]
"""Returns what decodes a column: only these fields of a record (None: all), and whether bad values become null."""


class Field(NamedTuple):
    """How keys or values are read."""

    form: str
    type: pa.DataType
    make: Make
    how: str
    """Where the format and the schema come from, for `explain`."""


class Wanted(NamedTuple):
    """What the user says about keys or values."""

    form: str = "auto"
    schema: pa.Schema | pa.DataType | str | None = None
    """The type for JSON, or Avro's schema as JSON text."""


def chosen(
    part: str, topic: str, wanted: Wanted, registry: SchemaRegistry | None, sample: Callable[[], pa.Array]
) -> Field:
    """Return how a topic's `part` (key or value) is read. `sample` returns some of its bytes.

    Raises ConfigError if the schema cannot be found out, and RegistryError.
    """
    form, how = wanted.form, "as given"
    if form not in FORMATS:
        raise ConfigError(f"format of {topic}: it must be {', '.join(FORMATS)}, not {form!r}")
    if form == "auto" and wanted.schema is not None:
        form = "avro" if isinstance(wanted.schema, str) else "json"
    if form == "auto":
        form, how = _guessed(sample(), part, registry), "from a sample"
    if form == "bytes":
        return Field(form, pa.binary(), lambda fields, keep_bad: None, how)
    if form == "string":
        return Field(form, pa.string(), lambda fields, keep_bad: Text(keep_bad=keep_bad), how)
    if form == "json":
        return _json(topic, part, wanted, sample, how)
    return _avro(topic, part, wanted, registry, sample, how)


def _guessed(sample: pa.Array, part: str, registry: SchemaRegistry | None) -> str:
    values = sample.drop_null().to_pylist()
    if not values:
        return "bytes"
    if all(len(each) >= FRAME and each[0] == MAGIC for each in values):
        return "bytes" if registry is None else "avro"
    try:
        texts = [each.decode() for each in values]
    except UnicodeDecodeError:
        return "bytes"
    if part == "value" and all(_is_object(text) for text in texts):
        return "json"
    return "string"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # the latter: thousands of nested brackets
        return False


def _json(topic: str, part: str, wanted: Wanted, sample: Callable[[], pa.Array], how: str) -> Field:
    kind = wanted.schema
    if isinstance(kind, str):
        raise ConfigError(f"schema of {topic}: for JSON, it is a pyarrow.Schema")
    if kind is None:
        kind, how = _inferred(topic, part, sample()), "schema from a sample"
    if isinstance(kind, pa.Schema):
        kind = pa.struct(list(kind))
    whole = kind

    def make(fields: frozenset[str] | None, keep_bad: bool) -> Json:
        if fields is None or not pa.types.is_struct(whole):
            return Json(whole, keep_bad=keep_bad)
        return Json(pa.struct([field for field in whole if field.name in fields]), keep_bad=keep_bad)

    try:
        return Field("json", make(None, False).type, make, how)
    except TypeError as error:
        raise ConfigError(f"schema of {topic}: {error}") from None


def _inferred(topic: str, part: str, sample: pa.Array) -> pa.DataType:
    """Return the type of JSON values."""
    advice = f"give the schema of {topic}'s {part}, such as {topic}='id bigint, name varchar'"
    try:
        values = [json.loads(each) for each in sample.drop_null().to_pylist()]
        found = type_of(values)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a {part} of {topic} is no JSON that can be read ({error}); {advice}") from None
    if not values:
        raise ConfigError(f"{topic} has no JSON {part} yet; {advice}")
    return found


def _avro(
    topic: str,
    part: str,
    wanted: Wanted,
    registry: SchemaRegistry | None,
    sample: Callable[[], pa.Array],
    how: str,
) -> Field:
    from oncelog.client.serialization.avro import avro_schemas
    from oncelog.columns.avro.format import Avro

    schema: Any = wanted.schema
    if registry is None and schema is None:
        raise ConfigError(f"Avro of {topic}: give the schema registry, or the schema")
    schemas = None
    if registry is not None:
        if schema is None:
            schema, how = _latest(topic, part, registry, sample)
        schemas = avro_schemas(registry)
    try:
        reader = json.loads(schema) if isinstance(schema, str) else schema
        kind = Avro(reader, schemas=schemas, intervals=False).type
    except (ValueError, TypeError) as error:
        raise ConfigError(f"Avro schema of {topic}'s {part}: {error}") from None

    def make(fields: frozenset[str] | None, keep_bad: bool) -> Format:
        form = Avro(reader, schemas=schemas, keep_bad=keep_bad, intervals=False)
        if fields is not None and form.schema is not None and form.schema.node.kind == "record":
            node = form.schema.node
            form.narrow(replace(node, fields=[each for each in node.fields if each.name in fields]))
        return form

    return Field("avro", kind, make, how)


def _latest(topic: str, part: str, registry: SchemaRegistry, sample: Callable[[], pa.Array]) -> tuple[Any, str]:
    """Return the schema of the subject TOPIC-value or TOPIC-key, or that of the newest record of the sample."""
    from oncelog.client.serialization.avro import avro_schemas, whole_schema

    subject = f"{topic}-{part}"
    try:
        return whole_schema(registry, registry.latest(subject), subject), f"schema of subject {subject}"
    except LookupError:
        pass
    except ValueError as error:
        raise ConfigError(str(error)) from None
    framed = [each for each in sample().drop_null().to_pylist() if len(each) >= FRAME and each[0] == MAGIC]
    if not framed:
        raise ConfigError(f"Avro of {topic}: the registry has no subject {subject}; give the schema")
    schema_id = int.from_bytes(framed[-1][1:FRAME], "big")
    try:
        return avro_schemas(registry)(schema_id), f"schema {schema_id}"
    except (LookupError, ValueError) as error:
        raise ConfigError(f"Avro of {topic}'s {part}: {error}") from None
