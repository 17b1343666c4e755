"""Parse Spark's DDL, such as `id bigint, tags array<string>`, without Spark's JVM: workers have none."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from oncelog.spark.commit.errors import MisuseError

PLAIN: Final = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 0),
    "dec": pa.decimal128(10, 0),
    "numeric": pa.decimal128(10, 0),
}
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[\w.-]+|'(?:[^'\\]|\\.|'')*'|[<>(),:])")
MOST_DEPTH: Final = 100
EXAMPLE: Final = "id bigint, name string, tags array<string>"


def parse_ddl(text: str, option: str) -> pa.Schema:
    """Return the fields of a DDL text. Raises MisuseError, which names the option and the place."""
    if text.lstrip().startswith("{"):
        raise MisuseError(f"option {option}: for JSON, it must be DDL, such as {EXAMPLE!r}, and not a JSON text")
    parser = _Parser(text, option)
    fields = parser.fields(("",))
    parser.end()
    if not fields:
        parser.fail("a field")
    return pa.schema(fields)


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, text: str, option: str) -> None:
        self._text, self._option = text, option
        self._tokens: list[tuple[str, int]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                self._tokens.append((text[position:].strip()[:1], position))
                break
            self._tokens.append((match[1], match.start(1)))
            position = match.end()
        self._next = 0
        self._depth = 0

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if wanted and token.lower() != wanted:
            self.fail(f"{wanted!r}")
        self._next += 1
        return token

    def fail(self, wanted: str) -> None:
        """Raise MisuseError: something else was expected at the next token."""
        place = self._tokens[self._next][1] if self._next < len(self._tokens) else len(self._text)
        found = repr(self._peek()) if self._peek() else "the end"
        raise MisuseError(
            f"option {self._option}={self._text!r}: expected {wanted} at character {place + 1}, not {found}; an "
            f"example is {EXAMPLE!r}"
        )

    def end(self) -> None:
        """Raise MisuseError unless all tokens are read."""
        if self._peek():
            self.fail("a comma or the end")

    def fields(self, ends: tuple[str, ...]) -> list[pa.Field]:
        """Read fields until one of these tokens."""
        found: list[pa.Field] = []
        while self._peek() not in ends:
            if found:
                self._take(",")
            name = self._peek()
            if not name or name in "<>(),:":
                self.fail("the name of a field")
            self._take()
            if self._peek() == ":":
                self._take()
            kind = self._type()
            if self._peek().lower() == "not":  # a record may lack any field, as for Spark's from_json
                self._take()
                self._take("null")
            if self._peek().lower() == "comment":
                self._take()
                self._take()
            found.append(pa.field(name[1:-1].replace("``", "`") if name[0] == "`" else name, kind))
        return found

    def _type(self) -> pa.DataType:
        word = self._peek().lower()
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self.fail("a type that is less deep")
        if word in ("array", "map", "struct"):
            self._take()
            self._take("<")
            kind = self._nested(word)
            self._take(">")
        elif word in PLAIN:
            self._take()
            kind = PLAIN[word]
            if pa.types.is_decimal(kind) and self._peek() == "(":
                kind = self._decimal()
        else:
            self.fail("a type")
        self._depth -= 1
        return kind

    def _nested(self, word: str) -> pa.DataType:
        if word == "array":
            return pa.list_(self._type())
        if word == "struct":
            return pa.struct(self.fields((">", "")))
        key = self._type()
        self._take(",")
        return pa.map_(key, self._type())

    def _decimal(self) -> pa.DataType:
        self._take("(")
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._take()
            scale = self._number()
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            self.fail("decimal(precision, scale) with at most 38 digits")
        self._take(")")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        if not self._peek().isdecimal():
            self.fail("a number")
        return int(self._take())
