"""Cast columns to the types of a schema, field by field and by name. Errors name the field."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def fitted(kind: pa.DataType, given: pa.DataType, whose: str, path: str = "", *, complete: bool = False) -> Any:
    """Return `kind` without the struct fields that `given` lacks. The other fields keep the order of `kind`.

    Raises ValueError for a field of `given` that `kind` lacks. With `complete`, also raises ValueError for a field of
    `kind` that `given` lacks. `whose` names the format of the schema, and `path` the parent field, for error messages.
    """
    t = pa.types
    if t.is_struct(kind) and t.is_struct(given):
        known, there = ([field.name for field in fields] for fields in (kind, given))
        unknown = [path + name for name in there if name not in known]
        if unknown:
            has = ", ".join(path + name for name in known)
            raise ValueError(f"the {whose} schema has no field {', '.join(unknown)}; it has {has}")
        missing = [path + name for name in known if name not in there]
        if missing and complete:
            raise ValueError(f"the {whose} schema has {', '.join(missing)}, but the columns do not")
        kept = [field for field in kind if field.name in there]
        return pa.struct([_fitted_field(field, given.field(field.name).type, whose, path, complete) for field in kept])
    lists = t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)
    if t.is_list(kind) and lists:
        return pa.list_(
            kind.value_field.with_type(fitted(kind.value_type, given.value_type, whose, path, complete=complete))
        )
    if t.is_map(kind) and t.is_map(given):
        items = fitted(kind.item_type, given.item_type, whose, path, complete=complete)
        return pa.map_(kind.key_type, kind.item_field.with_type(items))
    return kind


def without_dictionary(values: pa.Array) -> pa.Array:
    """Return the values of a dictionary. Return other arrays unchanged.

    polars' Categorical and Enum are dictionaries whose values are views, and Arrow's `take` does not accept views.
    """
    if not pa.types.is_dictionary(values.type):
        return values
    words = values.dictionary
    if pa.types.is_string_view(words.type):
        words = words.cast(pa.large_string())
    elif pa.types.is_binary_view(words.type):
        words = words.cast(pa.large_binary())
    return words.take(values.indices)


def _fitted_field(field: pa.Field, given: pa.DataType, whose: str, path: str, complete: bool) -> pa.Field:
    return field.with_type(fitted(field.type, given, whose, f"{path}{field.name}.", complete=complete))


def cast(values: pa.Array, kind: pa.DataType, name: str = "") -> pa.Array:
    """Cast values to `kind`, a result of `fitted` for their type. Raises ValueError, which names the column."""
    if not (pa.types.is_struct(kind) and pa.types.is_struct(values.type) and kind.num_fields):
        try:
            return without_dictionary(values).cast(kind)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ValueError(f"{name}: {error}" if name else str(error)) from error
    theirs = dict(zip([field.name for field in values.type], values.flatten(), strict=True))
    columns = []
    for field in kind:
        path = f"{name}.{field.name}" if name else field.name
        column = cast(theirs[field.name], field.type, path)
        if not field.nullable and column.null_count:
            _refuse_nulls(values, column, path)
        columns.append(column)
    nulls = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=nulls)


def _refuse_nulls(values: pa.Array, column: pa.Array, path: str) -> None:
    """Raise ValueError for the first null of `column` in a row where the struct itself is not null."""
    for row, (whole, one) in enumerate(zip(values.is_valid().to_pylist(), column.is_valid().to_pylist(), strict=True)):
        if whole and not one:
            raise ValueError(f"{path}: null in row {row}, which the schema does not allow")
