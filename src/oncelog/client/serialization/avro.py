"""Serializers for Avro with a schema registry, in Confluent's wire format: a zero byte, the schema's id, the datum."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from oncelog.client.serialization.functions import SerializationContext
from oncelog.client.serialization.registry import SchemaRegistry
from oncelog.errors import ConfigError
from oncelog.protocol.schema_ids import frame, guid_header, schema_header, schema_in_header, split_frame

try:
    import fastavro
except ImportError as missing:
    raise ImportError("Avro requires fastavro; run `pip install 'oncelog[avro]'`") from missing

MOST_CACHED = 1_000
"""Schemas, or subjects, that a serializer remembers. After that, it forgets the oldest."""
MOST_REFERENCES = 1_000
MOST_UNSAFE_BYTES = 1_000
"""Longer data of a type that contains itself is read in Python: fastavro's compiled reader calls itself for each level,
and crashes the process if there are some thousands. Each level has a byte at least."""

Schema = str | Mapping[str, Any] | list[Any]
Subject = Callable[[SerializationContext, str | None], str]


def _record(context: SerializationContext, name: str | None) -> str:
    if name is None:
        raise ValueError("the subject is that of a record, but the schema has no name")
    return name


STRATEGIES: dict[str, Subject] = {
    "topic": lambda context, name: f"{context.topic}-{context.field}",
    "record": _record,
    "topic_record": lambda context, name: f"{context.topic}-{_record(context, name)}",
}
"""Subject name strategies of Confluent's serializers: from context and the record's full name to the subject."""


class AvroSerializer:
    """Serialize objects as Avro with `schema`, a dict or its JSON text.

    `subject` is the subject of the schema in the registry: "topic" (TOPIC-value or TOPIC-key), "record" (the schema's
    full name), "topic_record" (TOPIC-NAME), or a function (context, name) -> subject. The first record of a subject
    registers the schema. With `register=False`, the schema must already be registered. With `header`, the schema's
    GUID is in the header `__value_schema_id` or `__key_schema_id`, and not before the datum.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: Schema,
        *,
        subject: str | Subject = "topic",
        register: bool = True,
        header: bool = False,
    ) -> None:
        strategy = subject if callable(subject) else STRATEGIES.get(subject)
        if strategy is None:
            raise ConfigError(f"subject = {subject!r}: it must be {', '.join(STRATEGIES)} or a function")
        self._subject: Subject = strategy
        self._registry = registry
        self._register = register
        plain = _plain(schema)
        self._text = schema if isinstance(schema, str) and schema != plain else json.dumps(plain)
        self._parsed = _checked(plain)
        self._name: str | None = self._parsed.get("name") if isinstance(self._parsed, dict) else None
        self._header = header
        self._ids: dict[str, int | UUID] = {}

    def ready(self, data: Any, context: SerializationContext) -> bool:
        """Return whether the schema's id is known. If it is, a call sends no request."""
        return self._subject(context, self._name) in self._ids

    def __call__(self, data: Any, context: SerializationContext) -> bytes:
        """Return the framed datum. Raises RegistryError, and fastavro's errors if the data does not fit the schema."""
        subject = self._subject(context, self._name)
        schema_id = self._ids.get(subject)
        if schema_id is None:
            schema_id = self._ask(subject)
            _remember(self._ids, subject, schema_id)
        out = io.BytesIO()
        if isinstance(schema_id, int):
            out.write(frame(schema_id))
        fastavro.schemaless_writer(out, self._parsed, data)
        if isinstance(schema_id, UUID):
            if not isinstance(context.headers, list):
                raise TypeError("a schema id in a header requires a context with a list of headers")
            context.headers.append((schema_header(context.field), guid_header(schema_id)))
        return out.getvalue()

    def _ask(self, subject: str) -> int | UUID:
        """Return the id that the registry has for the schema, or its GUID for a header."""
        if self._header:
            return self._registry.guid(subject, self._text, register=self._register)
        return (self._registry.register if self._register else self._registry.find)(subject, self._text)


class AvroDeserializer:
    """Deserialize Avro with the schemas of a registry. A record becomes a dict.

    Each datum is read with its writer's schema. With `schema`, a dict or its JSON text, the datum is converted to that
    schema by Avro's rules of schema resolution. The schema's id may be before the datum, or in a header.
    """

    def __init__(self, registry: SchemaRegistry, schema: Schema | None = None) -> None:
        self._registry = registry
        self._reader = None if schema is None else _checked(_plain(schema))
        self._writers: dict[int | UUID, tuple[Any, bool]] = {}
        """The schema of an id, and whether a type contains itself."""

    def ready(self, data: bytes, context: SerializationContext) -> bool:
        """Return whether the schema with the datum's id is known. If it is, a call sends no request."""
        framed = _schema_and_data(data, context)
        return framed is None or framed[0] in self._writers

    def __call__(self, data: bytes, context: SerializationContext) -> Any:
        """Return the object. Raises RegistryError, and other errors if the bytes are not a framed datum."""
        framed = _schema_and_data(data, context)
        if framed is None:
            raise ValueError("it has no schema id prefix, and no header with a schema id")
        schema_id, datum = framed
        known = self._writers.get(schema_id)
        if known is None:
            answer = self._registry.schema(schema_id)
            parsed, named = _parsed_with_references(self._registry, answer, f"schema {schema_id}")
            known = parsed, _contains_itself([*named.values()])
            _remember(self._writers, schema_id, known)
        writer, is_recursive = known
        stream = io.BytesIO(datum)
        read = fastavro.schemaless_reader
        if is_recursive and len(datum) > MOST_UNSAFE_BYTES:
            from fastavro._read_py import schemaless_reader as read
        found = read(stream, writer, self._reader)
        if stream.tell() != len(datum):
            raise ValueError(f"it is followed by {len(datum) - stream.tell()} extra bytes")
        return found


def _schema_and_data(data: bytes, context: SerializationContext) -> tuple[int | UUID, bytes] | None:
    """Return the schema's id and the encoded data: the id is in a header, or before the data. None: there is no id.

    Raises ValueError if the header has no id.
    """
    name = schema_header(context.field)
    found = next((value for header, value in context.headers if header == name), None)
    return split_frame(data) if found is None else (schema_in_header(found), data)


def _plain(schema: object) -> Any:
    """Return a schema as Python objects. Raises ConfigError."""
    if isinstance(schema, dict):  # fastavro adds fields of its own to a schema that it has parsed
        return {name: value for name, value in schema.items() if not name.startswith("__")}
    if not isinstance(schema, str):
        return schema
    if schema.lstrip()[:1] not in ("{", "[", '"'):
        return schema  # the name of a primitive type
    try:
        return json.loads(schema)
    except ValueError as error:
        raise ConfigError(f"schema: it is not valid JSON: {error}") from None


def _checked(plain: Any) -> Any:
    """Return a schema in fastavro's form. Raises ConfigError."""
    try:
        return fastavro.parse_schema(plain)
    except Exception as error:  # noqa: BLE001 - fastavro raises errors of many classes
        raise ConfigError(f"schema: it is not an Avro schema: {type(error).__name__}: {error}") from None


def _contains_itself(part: Any, within: frozenset[str] = frozenset()) -> bool:
    """Return whether a type in a schema, in fastavro's form, contains itself.

    A name is defined before it is used, so such a type has its name in its definition.
    """
    if isinstance(part, str):
        return part in within
    if isinstance(part, list):
        return any(_contains_itself(item, within) for item in part)
    if not isinstance(part, dict):
        return False
    inside = within | {part["name"]} if "fields" in part else within
    return any(_contains_itself(part.get(key), inside) for key in ("type", "items", "values", "fields"))


def avro_schemas(registry: SchemaRegistry) -> Callable[[int | UUID], Any]:
    """Return a function from an id or a GUID to the registry's schema, for `oncelog.formats.Avro(schemas=...)`."""
    return lambda schema_id: whole_schema(registry, registry.schema(schema_id), f"schema {schema_id}")


def whole_schema(registry: SchemaRegistry, answer: Mapping[str, Any], what: str) -> Any:
    """Return a schema of the registry in fastavro's form, with each type that it refers to defined in its first place.

    Raises ValueError, which names `what`, RegistryError and LookupError.
    """
    schema, named = _parsed_with_references(registry, answer, what)
    defined: set[str] = set()

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return [whole(item) for item in part]
        if isinstance(part, str):
            return part if part in defined or part not in named else whole(named[part])
        defined.add(part.get("name", ""))
        kept = {name: value for name, value in part.items() if not name.startswith("__")}
        for name in kept.keys() & {"type", "items", "values"}:
            kept[name] = whole(kept[name])
        if "fields" in kept:
            kept["fields"] = [{**field, "type": whole(field["type"])} for field in kept["fields"]]
        return kept

    return whole(schema)


def _parsed_with_references(
    registry: SchemaRegistry, answer: Mapping[str, Any], what: str
) -> tuple[Any, dict[str, Any]]:
    """Return a schema in fastavro's form, and the named types of it and of those that it refers to."""
    named: dict[str, Any] = {}
    done: set[tuple[str, int]] = set()

    def parse(found: Mapping[str, Any]) -> Any:
        if found.get("schemaType", "AVRO") != "AVRO":
            raise ValueError(f"{what} is {found['schemaType']}, not AVRO")
        for reference in found.get("references") or ():
            at = (reference["subject"], reference["version"])
            if at not in done:
                done.add(at)
                if len(done) > MOST_REFERENCES:
                    raise ValueError(f"{what} refers to more than {MOST_REFERENCES} schemas")
                parse(registry.version(*at))
        try:
            plain = json.loads(found["schema"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{what} is not JSON") from None
        try:
            return fastavro.parse_schema(plain, named_schemas=named)
        except fastavro.schema.SchemaParseException as error:
            raise ValueError(f"{what} is not an Avro schema: {error}") from None

    return parse(answer), named


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry. If the cache is full, remove the oldest ones. Threads may share the cache."""
    for oldest in list(cache)[: max(len(cache) - MOST_CACHED + 1, 0)]:
        cache.pop(oldest, None)
    cache[key] = value
