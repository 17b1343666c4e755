"""Whether values of one Avro schema can be read with another: the schema resolution of Avro's specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Type of a value -> the other types that may read it."""


def incompatibility(reader: Any, writer: Any) -> str | None:
    """Return why values of the schema `writer` cannot be read with the schema `reader`, or None if they can.

    Schemas are JSON values. The reason names the field.
    """
    return _Comparison(_named(reader, {}), _named(writer, {})).reason(reader, writer, "")


def _named(schema: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Collect the named types of a schema, by their names without namespace."""
    for each in schema if isinstance(schema, list) else (schema,):
        if not isinstance(each, Mapping):
            continue
        if "name" in each:
            found[_last(each["name"])] = each
        for part in ("type", "items", "values"):
            _named(each.get(part), found)
        for field in each.get("fields") or ():
            _named(field.get("type"), found)
    return found


def _last(name: str) -> str:
    return name.rpartition(".")[2]


class _Comparison:
    """A comparison of two schemas. Types that contain themselves are compared once."""

    def __init__(self, of_reader: Mapping[str, Any], of_writer: Mapping[str, Any]) -> None:
        self._named = of_reader, of_writer
        self._seen: set[tuple[str, str]] = set()

    def reason(self, reader: Any, writer: Any, path: str) -> str | None:
        reader, writer = self._resolved(reader, 0), self._resolved(writer, 1)
        if isinstance(writer, list):
            found = (self.reason(reader, branch, path) for branch in writer)
            return next((why for why in found if why is not None), None)
        if isinstance(reader, list):
            if any(self.reason(branch, writer, path) is None for branch in reader):
                return None
            return f"{path or 'the value'}: no branch of the union reads {_kind(writer)}"
        theirs, ours = _kind(writer), _kind(reader)
        if theirs != ours:
            if ours in PROMOTIONS.get(theirs, ()):
                return None
            return f"{path or 'the value'}: {ours} cannot read {theirs}"
        if ours in ("array", "map"):
            part = "items" if ours == "array" else "values"
            return self.reason(reader[part], writer[part], path)
        return self._of_named(reader, writer, ours, path) if ours in ("record", "enum", "fixed") else None

    def _resolved(self, schema: Any, side: int) -> Any:
        """Return a type in place of its name, and without `{"type": ...}` around it."""
        while True:
            if isinstance(schema, str) and _last(schema) in self._named[side]:
                schema = self._named[side][_last(schema)]
            elif isinstance(schema, Mapping) and isinstance(schema.get("type"), list | Mapping):
                schema = schema["type"]
            else:
                return schema

    def _of_named(self, reader: Any, writer: Any, kind: str, path: str) -> str | None:
        where = path or "the value"
        names = {_last(name) for name in (reader.get("name", ""), *reader.get("aliases", ()))}
        if _last(writer.get("name", "")) not in names:
            return f"{where}: {kind} {reader.get('name')} has another name than {writer.get('name')}"
        if kind == "fixed":
            return None if reader.get("size") == writer.get("size") else f"{where}: the sizes differ"
        if kind == "enum":
            missing = set(writer.get("symbols", ())) - set(reader.get("symbols", ()))
            lacks = missing and "default" not in reader
            return f"{where}: the enum lacks {', '.join(sorted(missing))}" if lacks else None
        pair = (reader["name"], writer["name"])
        if pair in self._seen:
            return None
        self._seen.add(pair)
        return self._of_records(reader, writer, path)

    def _of_records(self, reader: Any, writer: Any, path: str) -> str | None:
        there = {field["name"]: field for field in writer.get("fields", ())}
        for field in reader.get("fields", ()):
            below = f"{path}.{field['name']}" if path else field["name"]
            names = (field["name"], *field.get("aliases", ()))
            source = next((there[name] for name in names if name in there), None)
            if source is None:
                if "default" not in field:
                    return f"{below}: the field is new, and has no default"
                continue
            why = self.reason(field["type"], source["type"], below)
            if why is not None:
                return why
        return None


def _kind(schema: Any) -> str:
    found = str(schema["type"] if isinstance(schema, Mapping) else schema)
    return "record" if found == "error" else found
