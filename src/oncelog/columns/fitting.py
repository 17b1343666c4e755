"""Cast columns to the types of a schema, field by field and by name. Errors name the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns.values import lengths


def fitted(kind: pa.DataType, given: pa.DataType, whose: str, path: str = "", *, complete: bool = False) -> Any:
    """Return `kind` without the struct fields that `given` lacks. The other fields keep the order of `kind`.

    Raises ValueError for a field of `given` that `kind` lacks. With `complete`, also raises ValueError for a field of
    `kind` that `given` lacks. `whose` names the format of the schema, and `path` the parent field, for error messages.
    """
    t = pa.types
    if t.is_struct(kind) and t.is_struct(given):
        known, there = ([field.name for field in fields] for fields in (kind, given))
        require_distinct(given, path)
        unknown = [path + name for name in there if name not in known]
        if unknown:
            has = ", ".join(path + name for name in known)
            raise ValueError(f"the {whose} schema has no field {', '.join(unknown)}; it has {has}")
        missing = [path + name for name in known if name not in there]
        if missing and complete:
            raise ValueError(f"the {whose} schema has {', '.join(missing)}, but the columns do not")
        kept = [field for field in kind if field.name in there]
        return pa.struct([_fitted_field(field, given.field(field.name).type, whose, path, complete) for field in kept])
    if t.is_list(kind) and _is_list(given):
        return pa.list_(
            kind.value_field.with_type(fitted(kind.value_type, given.value_type, whose, path, complete=complete))
        )
    if t.is_map(kind) and t.is_map(given):
        items = fitted(kind.item_type, given.item_type, whose, path, complete=complete)
        return pa.map_(kind.key_type, kind.item_field.with_type(items))
    return kind


def require_distinct(kind: pa.StructType, path: str = "") -> None:
    """Raise ValueError if two fields of a struct have the same name, because one would hide the other."""
    names = [field.name for field in kind]
    twice = [path + name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"two fields have the same name: {', '.join(twice)}")


def plain(values: pa.Array) -> pa.Array:
    """Return the values of a dictionary or of runs as one array, and list views as lists. Return others unchanged.

    polars' Categorical and Enum are dictionaries whose values are views, and Arrow's `take` does not accept views.
    Arrow's cast of list views fails if they are sliced, or have nulls.
    """
    if pa.types.is_run_end_encoded(values.type):
        return plain(pc.run_end_decode(values))
    if _is_list_view(values.type):
        return _list_of(values, values.flatten(), pa.large_list(values.type.value_field))
    if not pa.types.is_dictionary(values.type):
        return values
    words = values.dictionary
    if pa.types.is_string_view(words.type):
        words = words.cast(pa.large_string())
    elif pa.types.is_binary_view(words.type):
        words = words.cast(pa.large_binary())
    return words.take(values.indices)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind) or _is_list_view(kind)


def _list_of(values: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists with the lengths and nulls of `values`, and with these items."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths(values), out=ends[1:])
    mask = values.is_null() if values.null_count else None
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(ends), items, kind, mask=mask)
    return pa.ListArray.from_arrays(pa.array(ends).cast(pa.int32()), items, kind, mask=mask)


def _has_layout(kind: pa.DataType) -> bool:
    """Return whether `plain` changes a part of this type."""
    t = pa.types
    if t.is_struct(kind):
        return any(_has_layout(field.type) for field in kind)
    if _is_list(kind):
        return _is_list_view(kind) or _has_layout(kind.value_type)
    return bool(t.is_dictionary(kind) or t.is_run_end_encoded(kind))


def _fitted_field(field: pa.Field, given: pa.DataType, whose: str, path: str, complete: bool) -> pa.Field:
    return field.with_type(fitted(field.type, given, whose, f"{path}{field.name}.", complete=complete))


def cast(values: pa.Array, kind: pa.DataType, name: str = "") -> pa.Array:
    """Cast values to `kind`, a result of `fitted` for their type. Raises ValueError, which names the column."""
    values = plain(values)
    if values.type == kind:  # Arrow's cast of a list of nulls to its own type fails
        return values
    if not (pa.types.is_struct(kind) and pa.types.is_struct(values.type) and kind.num_fields):
        try:
            if pa.types.is_list(kind) and _is_list(values.type) and _has_layout(values.type):
                return _list_of(values, cast(values.flatten(), kind.value_type, name), kind)
            return values.cast(kind)
        except NotImplementedError:
            raise ValueError(f"{name or 'the value'}: {values.type} cannot become {kind}") from None
        except (ValueError, TypeError) as error:
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
