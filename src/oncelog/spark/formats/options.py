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
    from oncelog.client.serialization.registry import SchemaRegistry
    from oncelog.columns.values import Format

FORMATS = ("bytes", "string", "json", "avro")
FAIL, NULL, COLUMN = BAD_RECORDS = ("fail", "null", "column")


@dataclass(frozen=True)
class RegistryOptions:
    """How to reach the schema registry."""

    url: str
    username: str | None
    password: str | None
    token: str | None
    ca_file: str | None

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
                self.url, username=self.username, password=self.password, token=self.token, ssl_context=context
            )
        except ConfigError as error:
            raise MisuseError(f"options schemaRegistry...: {error}") from None


def registry_options(options: Options) -> RegistryOptions | None:
    """Return how to reach the registry, or None without the option schemaRegistryUrl."""
    names = ("Username", "Password", "Token", "CaFile")
    url = options.text("schemaRegistryUrl")
    given = {name: options.text(f"schemaRegistry{name}") for name in names}
    if not url:
        if lonely := [name for name, value in given.items() if value is not None]:
            raise MisuseError(f"option schemaRegistry{lonely[0]} needs the option schemaRegistryUrl")
        return None
    return RegistryOptions(url, given["Username"], given["Password"], given["Token"], given["CaFile"])


@dataclass(frozen=True)
class FieldFormat:
    """The format of the key or the value. `schema` is DDL for JSON, and Avro's JSON text for Avro."""

    field: str
    name: str
    schema: str | None
    subject: str | None
    registry: RegistryOptions | None
    schema_id: int | None = None
    """The id that written values begin with."""

    @property
    def option(self) -> str:
        """The name of the option with the schema."""
        return f"{self.field}Schema"

    def converter(self, *, reading: bool, keep_bad: bool = False) -> Format:
        """Return what decodes or encodes the column. Raises MisuseError for a schema that no column can have."""
        from oncelog.columns.json_values import Json
        from oncelog.columns.text import Text
        from oncelog.spark.formats.ddl import parse_ddl

        if self.name == "string":
            return Text(keep_bad=keep_bad)
        try:
            if self.name == "json":
                return Json(None if self.schema is None else parse_ddl(self.schema, self.option), keep_bad=keep_bad)
            from oncelog.columns.avro.format import Avro

            if self.schema is None:
                raise MisuseError(f"option {self.option} is missing; set it if the query has a schema of its own")
            if reading:
                found = Avro(self.schema, schemas=self._schemas(), keep_bad=keep_bad, intervals=False)
                found.framed_advice = "set option schemaRegistryUrl"
                return found
            return Avro(self.schema, schema_id=self.schema_id, intervals=False)
        except (ValueError, TypeError) as error:
            raise MisuseError(f"option {self.option}: {error}") from None

    def _schemas(self) -> Any:
        """Return the lookup of writers' schemas by id, or None if values have no ids."""
        if self.registry is None:
            return None
        from oncelog.client.serialization.avro import whole_schema

        registry = self.registry.connect()
        return lambda schema_id: whole_schema(registry, registry.schema(schema_id), f"schema {schema_id}")

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
            found = whole_schema(registry, answer, f"the latest schema of {subject}")
        return replace(self, schema=json.dumps(found), subject=subject, schema_id=answer.get("id"))

    def _subject(self, topics: list[str]) -> str:
        if self.subject is not None:
            return self.subject
        if len(topics) != 1:
            raise MisuseError(
                f"option {self.field}Format=avro: without one topic, set {self.field}Subject (or, for a source, "
                f"{self.option})"
            )
        return f"{topics[0]}-{self.field}"

    @contextmanager
    def _errors(self, registry: RegistryOptions) -> Iterator[None]:
        """Convert errors of the registry."""
        from oncelog.errors import RegistryError

        try:
            yield
        except LookupError as error:
            advice = f"set {self.option} or {self.field}Subject, or, for a sink, autoRegister=true"
            raise MisuseError(f"option {self.field}Format=avro: {error}; {advice}") from None
        except (RegistryError, ValueError) as error:
            raise SinkError(f"option schemaRegistryUrl={registry.url}: {error}") from error


@dataclass(frozen=True)
class TypedOptions:
    """What becomes of keys and values. Fields without a format stay bytes."""

    formats: tuple[FieldFormat, ...] = ()
    bad: str = FAIL
    flatten: bool = False

    def resolved(self, topics: list[str]) -> TypedOptions:
        """Return the options with the schemas of the registry."""
        return TypedOptions(tuple(each.resolved(topics) for each in self.formats), self.bad, self.flatten)


def field_formats(options: Options, *, reading: bool) -> tuple[FieldFormat, ...]:
    """Return the formats of key and value, except bytes. Raises MisuseError."""
    registry = registry_options(options)
    found = []
    for field in ("key", "value"):
        name = options.choice(f"{field}Format", FORMATS, "bytes")
        schema, subject = options.text(f"{field}Schema"), options.text(f"{field}Subject")
        if name in ("bytes", "string"):
            if schema is not None or subject is not None:
                which = f"{field}Schema" if schema is not None else f"{field}Subject"
                raise MisuseError(f"option {which} needs {field}Format=json or avro")
            if name == "bytes":
                continue
        if name == "json" and schema is None and reading:
            raise MisuseError(f"option {field}Format=json needs {field}Schema, such as 'id bigint, name string'")
        if name == "avro" and schema is None and registry is None:
            raise MisuseError(f"option {field}Format=avro needs {field}Schema, schemaRegistryUrl, or both")
        found.append(FieldFormat(field, name, schema, subject, registry if name == "avro" else None))
    return tuple(found)


def typed_options(options: Options) -> TypedOptions:
    """Return the checked options of the source. Raises MisuseError."""
    found = field_formats(options, reading=True)
    made = TypedOptions(found, options.choice("badRecords", BAD_RECORDS, FAIL), options.flag("flatten"))
    if made.flatten and not any(each.field == "value" and each.name in ("json", "avro") for each in found):
        raise MisuseError("option flatten=true needs valueFormat=json or avro")
    return made
