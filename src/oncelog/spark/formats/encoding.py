"""Encode the columns that the sink writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.formats.field import FieldFormat


def encoded(
    batches: Iterator[pa.RecordBatch], formats: Sequence[FieldFormat], columns: dict[str, int | list[int]]
) -> Iterator[pa.RecordBatch]:
    """Yield the sink's columns, with keys and values as bytes. `columns` has their places, or those of their fields.

    Raises MisuseError for a row that does not fit its schema.
    """
    writers = {each.field: each.converter(reading=False) for each in formats}
    for batch in batches:
        arrays = {name: _column(batch, place) for name, place in columns.items()}
        for each in formats:
            if each.field in arrays:
                try:
                    arrays[each.field] = writers[each.field].encode(arrays[each.field])
                except (ValueError, TypeError) as error:
                    raise MisuseError(f"column {each.field}, option {each.field}Format={each.name}: {error}") from None
        yield pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _column(batch: pa.RecordBatch, place: int | list[int]) -> pa.Array:
    if isinstance(place, int):
        return batch.column(place)
    fields = [batch.schema.field(index) for index in place]
    return pa.StructArray.from_arrays([batch.column(index) for index in place], fields=fields)
