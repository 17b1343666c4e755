"""The format of keys or values: which schema it has, and what decodes and encodes the column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.formats.registry import RegistryOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.columns.values import Format

FORMATS = ("bytes", "string", "json", "avro")
TOPIC, RECORD, TOPIC_RECORD = STRATEGIES = ("topic", "record", "topic_record")
"""Names of subjects, as in Confluent's TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy."""


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
                made = Json(schema if only is None else only, keep_bad=keep_bad)
                made.threads = False  # other tasks use the other cores
                return made
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
                f"option {self.field}Format=avro: unless there is exactly one topic, set {self.field}Subject (or, for "
                f"a source, {self.option})"
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
            given = self.schema is not None
            advice = f"set {'autoRegister=true' if given else self.option} or {self.name_of('Subject')}"
            where = f"option {self.field}Format=avro: " if self.field else ""
            raise MisuseError(f"{where}{error}; {advice}") from None
        except (RegistryError, ValueError) as error:
            raise SinkError(f"option schemaRegistryUrl={registry.url}: {error}") from error
