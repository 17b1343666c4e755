"""The options for typed keys and values: formats, schemas, and the schema registry."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.options import Options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from oncelog.client.serialization.registry import SchemaRegistry
    from oncelog.columns.values import Format

FORMATS = ("bytes", "string", "json", "avro")
FAIL, NULL, COLUMN = BAD_RECORDS = ("fail", "null", "column")
TOPIC, RECORD, TOPIC_RECORD = STRATEGIES = ("topic", "record", "topic_record")
"""Names of subjects, as in Confluent's TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy."""
DEFAULT_TIMEOUT_MS = 10_000
"""How long one request to the registry may take with its retries, in ms."""


@dataclass(frozen=True)
class RegistryOptions:
    """How to reach the schema registry."""

    url: str
    username: str | None
    password: str | None
    token: str | None
    ca_file: str | None
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    def connect(self) -> SchemaRegistry:
        """Return a client of the registry. Raises MisuseError."""
        from oncelog.client.serialization.registry import SchemaRegistry
        from oncelog.errors import ConfigError

        try:
            context = None if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise MisuseError(f"option schemaRegistryCaFile={self.ca_file!r}: {error}") from None
        try:
            return SchemaRegistry(
                self.url,
                username=self.username,
                password=self.password,
                token=self.token,
                ssl_context=context,
                timeout=self.timeout_ms / 1000,
            )
        except ConfigError as error:
            raise MisuseError(f"options schemaRegistry...: {error}") from None


def registry_options(options: Options) -> RegistryOptions | None:
    """Return how to reach the registry, or None without the option schemaRegistryUrl."""
    names = ("Username", "Password", "Token", "CaFile", "TimeoutMs")
    url = options.text("schemaRegistryUrl")
    given = {name: options.text(f"schemaRegistry{name}") for name in names}
    if not url:
        if lonely := [name for name, value in given.items() if value is not None]:
            raise MisuseError(f"option schemaRegistry{lonely[0]} needs the option schemaRegistryUrl")
        return None
    timeout_ms = options.number("schemaRegistryTimeoutMs", DEFAULT_TIMEOUT_MS) or DEFAULT_TIMEOUT_MS
    return RegistryOptions(
        url, given["Username"], given["Password"], given["Token"], given["CaFile"], timeout_ms=timeout_ms
    )


@dataclass(frozen=True)
class FieldFormat:
    """The format of the key or the value. `schema` is DDL for JSON, and Avro's JSON text for Avro.

    `field` is empty for the functions of `oncelog.spark.functions`, which have arguments in place of options.
    """

    field: str
    name: str
    schema: str | None
    subject: str | None
    registry: RegistryOptions | None
    schema_id: int | None = None
    """The id that written values begin with."""
    strategy: str = TOPIC
    record: str | None = None
    """The full name of the record, for the strategies that need it."""
    ids_in_headers: bool = False
    """Whether the ids of read values may be in headers."""

    def name_of(self, what: str) -> str:
        """Return the name of an option of this field, such as valueSchema for Schema."""
        return f"{self.field}{what}" if self.field else f"{what[0].lower()}{what[1:]}"

    @property
    def option(self) -> str:
        """The name of the option with the schema."""
        return self.name_of("Schema")

    def converter(self, *, reading: bool, keep_bad: bool = False, only: pa.DataType | None = None) -> Format:
        """Return what decodes or encodes the column. Raises MisuseError for a schema that no column can have.

        `only` is the part of the column's type to read.
        """
        from oncelog.columns.json_values import Json
        from oncelog.columns.text import Text
        from oncelog.spark.formats.ddl import parse_ddl

        if self.name == "string":
            return Text(keep_bad=keep_bad)
        try:
            if self.name == "json":
                schema = None if self.schema is None else parse_ddl(self.schema, self.option)
                return Json(schema if only is None else only, keep_bad=keep_bad)
            from oncelog.columns.avro.format import Avro

            if self.schema is None:
                raise MisuseError(f"option {self.option} is missing; set it if the query has a schema of its own")
            if not reading:
                return Avro(self.schema, schema_id=self.schema_id, intervals=False)
            form = Avro(
                self.schema,
                schemas=self._schemas(),
                keep_bad=keep_bad,
                intervals=False,
                ids_in_headers=self.ids_in_headers,
            )
            form.framed_advice = "set option schemaRegistryUrl"
            if only is not None and form.schema is not None:
                from oncelog.spark.formats.selection import pruned

                form.narrow(pruned(form.schema.node, only, self.field))
            return form
        except (ValueError, TypeError) as error:
            raise MisuseError(f"option {self.option}: {error}") from None

    def _schemas(self) -> Any:
        """Return the lookup of writers' schemas by id, or None if values have no ids."""
        if self.registry is None:
            return None
        from oncelog.client.serialization.avro import avro_schemas

        return avro_schemas(self.registry.connect())

    def resolved(self, topics: list[str]) -> FieldFormat:
        """Return the format with the registry's latest schema, if the options have none. Raises MisuseError, SinkError.

        The schema stays the same for the whole query.
        """
        if self.name != "avro" or self.schema is not None or self.registry is None:
            return self
        return self._latest(self._subject(topics))

    def for_writing(self, topic: str | None, *, register: bool) -> FieldFormat:
        """Return the format with the id of its schema in the registry. Raises MisuseError, SinkError.

        With `register`, the registry gets the schema, and refuses one that is incompatible with earlier ones.
        """
        if self.registry is None:
            return self
        subject = self._subject([] if topic is None else [topic])
        if self.schema is None:
            return self._latest(subject)
        schema = self.schema
        with self._errors(self.registry):
            registry = self.registry.connect()
            found = registry.register(subject, schema) if register else registry.find(subject, schema)
        return replace(self, subject=subject, schema_id=found)

    def _latest(self, subject: str) -> FieldFormat:
        from oncelog.client.serialization.avro import whole_schema

        assert self.registry is not None
        with self._errors(self.registry):
            registry = self.registry.connect()
            answer = registry.latest(subject)
            schema_id = registry.id_of(answer, subject)
            found = whole_schema(registry, answer, f"the latest schema of {subject}")
        return replace(self, schema=json.dumps(found), subject=subject, schema_id=schema_id)

    def _subject(self, topics: list[str]) -> str:
        if self.subject is not None:
            return self.subject
        from oncelog.client.serialization.avro import STRATEGIES as SUBJECTS
        from oncelog.client.serialization.functions import SerializationContext

        if self.strategy != RECORD and len(topics) != 1:
            raise MisuseError(
                f"option {self.field}Format=avro: without one topic, set {self.field}Subject (or, for a source, "
                f"{self.option})"
            )
        record = None if self.strategy == TOPIC else self._record()
        return SUBJECTS[self.strategy](SerializationContext("".join(topics[:1]), self.field), record)

    def _record(self) -> str:
        """Return the full name of the record: that of the option, or of the schema. Raises MisuseError."""
        from oncelog.columns.avro.schemas import parsed, tree

        try:
            found = self.record or ("" if self.schema is None else tree(parsed(self.schema)).name)
        except (ValueError, TypeError) as error:
            raise MisuseError(f"option {self.option}: {error}") from None
        if not found:
            raise MisuseError(
                f"option {self.name_of('SubjectStrategy')}={self.strategy} needs the record's full name; set "
                f"{self.name_of('RecordName')}, or {self.option} to the schema of a record"
            )
        return found

    @contextmanager
    def _errors(self, registry: RegistryOptions) -> Iterator[None]:
        """Convert errors of the registry."""
        from oncelog.errors import RegistryError

        try:
            yield
        except LookupError as error:
            advice = f"set {self.option} or {self.name_of('Subject')}, or, to write, autoRegister=true"
            where = f"option {self.field}Format=avro: " if self.field else ""
            raise MisuseError(f"{where}{error}; {advice}") from None
        except (RegistryError, ValueError) as error:
            raise SinkError(f"option schemaRegistryUrl={registry.url}: {error}") from error


@dataclass(frozen=True)
class TypedOptions:
    """What becomes of keys and values. Fields without a format stay bytes."""

    formats: tuple[FieldFormat, ...] = ()
    bad: str = FAIL
    flatten: bool = False
    wanted: StructType | None = None
    """The schema that the user gave: the columns and fields to read."""

    @property
    def converts(self) -> bool:
        """Whether rows differ from the plain columns of the source."""
        return bool(self.formats) or self.wanted is not None

    @property
    def reads_headers(self) -> bool:
        """Whether headers are needed to read keys and values."""
        return any(each.ids_in_headers for each in self.formats)

    def resolved(self, topics: list[str]) -> TypedOptions:
        """Return the options with the schemas of the registry. Raises MisuseError and SinkError."""
        return replace(self, formats=tuple(each.resolved(topics) for each in self.formats))


def field_formats(options: Options, *, reading: bool) -> tuple[FieldFormat, ...]:
    """Return the formats of key and value, except bytes. Raises MisuseError."""
    registry = registry_options(options)
    found = []
    for field in ("key", "value"):
        name = options.choice(f"{field}Format", FORMATS, "bytes")
        schema, subject = options.text(f"{field}Schema"), options.text(f"{field}Subject")
        if name in ("bytes", "string") and (schema is not None or subject is not None):
            which = f"{field}Schema" if schema is not None else f"{field}Subject"
            raise MisuseError(f"option {which} needs {field}Format=json or avro")
        strategy, record = _strategy(options, field, framed=name == "avro" and registry is not None)
        if name == "bytes":
            continue
        if name == "json" and schema is None and reading:
            raise MisuseError(f"option {field}Format=json needs {field}Schema, such as 'id bigint, name string'")
        if name == "avro" and schema is None and registry is None:
            raise MisuseError(f"option {field}Format=avro needs {field}Schema, schemaRegistryUrl, or both")
        found.append(
            FieldFormat(
                field, name, schema, subject, registry if name == "avro" else None, strategy=strategy, record=record
            )
        )
    return tuple(found)


def _strategy(options: Options, field: str, *, framed: bool) -> tuple[str, str | None]:
    """Return the strategy for names of subjects, and the name of the record. Raises MisuseError."""
    names = f"{field}SubjectStrategy", f"{field}RecordName"
    strategy, record = options.choice(names[0], STRATEGIES, TOPIC), options.text(names[1])
    given = [name for name in names if options.text(name) is not None]
    if given and not framed:
        raise MisuseError(f"option {given[0]} needs {field}Format=avro and schemaRegistryUrl")
    if given and options.text(f"{field}Subject") is not None:
        raise MisuseError(f"option {given[0]} computes a subject, and {field}Subject names one; omit one of them")
    if record is not None and strategy == TOPIC:
        raise MisuseError(f"option {names[1]} needs {names[0]}=record or topic_record")
    return strategy, record


def typed_options(options: Options) -> TypedOptions:
    """Return the checked options of the source. Raises MisuseError."""
    found = field_formats(options, reading=True)
    if options.flag("schemaIdsInHeaders"):
        if not any(each.registry for each in found):
            raise MisuseError("option schemaIdsInHeaders=true needs a format avro and schemaRegistryUrl")
        found = tuple(replace(each, ids_in_headers=each.registry is not None) for each in found)
    made = TypedOptions(found, options.choice("badRecords", BAD_RECORDS, FAIL), options.flag("flatten"))
    if made.flatten and not any(each.field == "value" and each.name in ("json", "avro") for each in found):
        raise MisuseError("option flatten=true needs valueFormat=json or avro")
    return made
