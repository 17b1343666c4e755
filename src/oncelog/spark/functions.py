"""Functions for columns of `format("kafka")` and other sources: values as Confluent's Avro serializers write them.

    orders = kafka.select(from_confluent_avro("value", schemaRegistryUrl=url, subject="orders-value").alias("order"))
    rows = orders.select(to_confluent_avro("order", schemaRegistryUrl=url, subject="copies-value").alias("value"))

They decode and encode as source and sink of `format("oncelog")` do, in the same kernels. They are Arrow functions,
which PySpark has since 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as spark
from pyspark.sql.pandas.types import from_arrow_type

from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.formats.field import FieldFormat
from oncelog.spark.formats.options import BAD_RECORDS, COLUMN, FAIL
from oncelog.spark.formats.registry import REGISTRY_OPTIONS, registry_options
from oncelog.spark.options import Options
from oncelog.spark.user_errors import translate_batches, translate_errors

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["from_confluent_avro", "to_confluent_avro"]

READING: Final = (*REGISTRY_OPTIONS, "badRecords")
WRITING: Final = (*REGISTRY_OPTIONS, "autoRegister")
Option = str | int | bool
"""The value of an option. As in Spark, True is "true"."""


@translate_errors
def from_confluent_avro(
    column: Column | str, schema: str | None = None, *, subject: str | None = None, **options: Option
) -> Column:
    """Return a column with the values of a binary column: a zero byte, the id of a schema in four bytes, and Avro.

    Each value is read with the schema that it was written with, and converted to `schema` by Avro's rules. `schema` is
    its JSON text, or by default the latest schema of `subject` now, when the function is called. The options are those
    of the source: `schemaRegistryUrl` (required), the other options `schemaRegistry...`, and `badRecords`: with `fail`
    (the default), a value that cannot be read fails the query; with `null`, it becomes null.

    The registry is asked now, and by each task for the ids in its values. Raises MisuseError and SinkError.
    """
    given = _Given("from_confluent_avro", options, READING)
    form = given.form(schema, subject).resolved([])
    bad = given.options.choice("badRecords", BAD_RECORDS, FAIL)
    if bad == COLUMN:
        raise MisuseError(
            "option badRecords='column': a function returns one column; set it to null, and select the column with the "
            "bytes as well"
        )
    from oncelog.spark.formats.columns import spark_type

    kind = spark_type(form.converter(reading=True).type, "the value")

    def read(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return translate_batches(_decoded(batches, form, kind, bad))

    return _arrow_function(read, from_arrow_type(kind, prefer_timestamp_ntz=True))(column)


@translate_errors
def to_confluent_avro(column: Column | str, schema: str | None = None, *, subject: str, **options: Option) -> Column:
    """Return a binary column with the values of a column as Avro, after a zero byte and the schema's id in four bytes.

    `schema` is the JSON text of a schema that is registered for `subject`, or by default the latest one of `subject`.
    With `autoRegister=True`, `schema` is registered now; the registry refuses one that is incompatible with earlier
    ones. The other options are `schemaRegistryUrl` (required) and the other options `schemaRegistry...` of the source.
    A value that does not fit the schema fails the query. Raises MisuseError and SinkError.
    """
    given = _Given("to_confluent_avro", options, WRITING)
    form = given.form(schema, subject).for_writing(None, register=given.options.flag("autoRegister"))
    form.converter(reading=False)

    def encoded(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return translate_batches(_encoded(batches, form))

    return _arrow_function(encoded, "binary")(column)


class _Given:
    """The arguments of a function."""

    def __init__(self, function: str, options: Mapping[str, Option], known: tuple[str, ...]) -> None:
        names = {name.lower() for name in known}
        unknown = [name for name in options if name.lower() not in names]
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        self.options = Options(texts, known)
        if unknown:
            raise MisuseError(f"{function} has no option {unknown[0]}; its options are {', '.join(known)}")
        self._function = function

    def form(self, schema: str | None, subject: str | None) -> FieldFormat:
        registry = registry_options(self.options)
        if registry is None:
            raise MisuseError(f"{self._function} needs the option schemaRegistryUrl")
        if schema is None and subject is None:
            raise MisuseError(f"{self._function} needs a schema or a subject, such as subject='orders-value'")
        return FieldFormat("", "avro", schema, subject, registry)


def _decoded(batches: Iterator[pa.Array], form: FieldFormat, kind: pa.DataType, bad: str) -> Iterator[pa.Array]:
    from oncelog.spark.formats.columns import as_spark

    reader = form.converter(reading=True, keep_bad=bad != FAIL)
    for batch in batches:
        if not (pa.types.is_binary(batch.type) or pa.types.is_large_binary(batch.type)):
            raise MisuseError(f"from_confluent_avro reads a column of binary values, not of {batch.type}")
        found, wrong = as_spark(*reader.decode(batch), kind)
        if wrong and bad == FAIL:
            raise SinkError(
                f"from_confluent_avro cannot read a value: {wrong[0].reason.rstrip('. ')}. To read such values as "
                "null, set badRecords='null'"
            )
        yield found


def _encoded(batches: Iterator[pa.Array], form: FieldFormat) -> Iterator[pa.Array]:
    writer = form.converter(reading=False)
    for batch in batches:
        try:
            yield writer.encode(batch).cast(pa.binary())
        except (ValueError, TypeError) as error:
            raise MisuseError(f"to_confluent_avro: {error}") from None


def _arrow_function(run: Callable[[Iterator[pa.Array]], Iterator[pa.Array]], returned: Any) -> Callable[..., Column]:
    """Return a function of a column. One call of `run`, which PySpark knows by its annotations, converts a task."""
    if not hasattr(spark, "arrow_udf"):
        raise MisuseError(
            "from_confluent_avro and to_confluent_avro need PySpark 4.1 or later; with 4.0, read and write with "
            "format('oncelog') and valueFormat=avro"
        )
    made: Callable[..., Column] = spark.arrow_udf(run, returned)
    return made
