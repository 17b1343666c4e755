"""The options for typed keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.formats.field import FORMATS, STRATEGIES, TOPIC, FieldFormat
from oncelog.spark.formats.registry import registry_options
from oncelog.spark.options import Options, warn_once

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FAIL, NULL, COLUMN = BAD_RECORDS = ("fail", "null", "column")


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
    if registry is not None and not any(each.registry for each in found):
        warn_once("option schemaRegistryUrl has no effect without valueFormat=avro or keyFormat=avro")
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
    if made.bad != FAIL and not found:
        raise MisuseError(f"option badRecords={made.bad} needs valueFormat or keyFormat")
    return made
