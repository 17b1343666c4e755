"""Generate the decoder of a message class in one version.

Runs of fixed-size fields become one `struct` call, and fields that the version lacks cost nothing. Decoders are safe
against any input: they raise DecodeError, and allocate memory only in proportion to the input.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from oncelog.protocol.fields import Field, MessageType
from oncelog.protocol.generated import Source
from oncelog.protocol.primitives import FIXED, READERS, Reader, read_compact_count, read_count, read_varint, to_uuid

BoundedReader = Callable[[memoryview, int, Callable[[int], None]], tuple[Any, int]]


@cache
def decoder(cls: MessageType, version: int, flexible: bool) -> Reader:
    """Return the decoder of a class. Besides DecodeError it raises struct.error and IndexError at the input's end."""
    made: Reader = _DecoderSource(cls, version, flexible).build()
    return made


@cache
def bounded_decoder(cls: MessageType, version: int, flexible: bool) -> BoundedReader:
    """Return a decoder with a third argument, a function that limits the work.

    The decoder calls it with the number of elements of each array, and of tagged fields, before it decodes them.
    """
    made: BoundedReader = _BoundedSource(cls, version, flexible).build()
    return made


class _DecoderSource(Source):
    arguments = "buf, pos"

    def inner(self, cls: MessageType) -> Any:
        return decoder(cls, self.version, self.flexible)

    def build(self) -> Any:
        self.scope["new"] = self.cls.__new__
        self.scope["cls"] = self.cls
        self.line("o = new(cls)")
        run: list[tuple[str, Field]] = []
        for name, field in self.plain():
            if field.kind in FIXED:
                run.append((name, field))
                continue
            self.flush(run)
            self.value(f"o.{name}", field, 1)
        self.flush(run)
        present = {name for name, _ in self.plain()}
        for name, field in self.cls.FIELDS.items():
            if name not in present:
                self.line(f"o.{name} = {self.default(field)}")
        if self.flexible:
            self.tags()
        self.line("return o, pos")
        return self.function(f"def decode({self.arguments}):")

    def default(self, field: Field) -> str:
        if field.kind == "array" and field.default is not None:
            return "[]"
        if field.kind == "struct" and field.default is not None:
            return f"{self.name('struct', field.element)}()"
        return self.name("default", field.default)

    def flush(self, run: list[tuple[str, Field]]) -> None:
        if not run:
            return
        layout = struct.Struct(">" + "".join(FIXED[field.kind] for _, field in run))
        unpack = self.name("unpack", layout.unpack_from)
        self.line(f"{', '.join(f'o.{name}' for name, _ in run)}, = {unpack}(buf, pos)")
        self.line(f"pos += {layout.size}")
        for name, field in run:
            if field.kind == "uuid":
                self.line(f"o.{name} = {self.name('uuid', to_uuid)}(o.{name})")
        run.clear()

    def value(self, target: str, field: Field, depth: int) -> None:
        nullable = field.may_be_null(self.version)
        if field.kind in FIXED:
            layout = struct.Struct(">" + FIXED[field.kind])
            unpack = self.name("unpack", layout.unpack_from)
            value = f"{unpack}(buf, pos)[0]"
            if field.kind == "uuid":
                value = f"{self.name('uuid', to_uuid)}({value})"
            self.line(f"{target} = {value}", depth)
            self.line(f"pos += {layout.size}", depth)
        elif field.kind == "array":
            self.array(target, field, nullable, depth)
        elif field.kind == "struct":
            self.struct(target, field, nullable, depth)
        else:
            reader = READERS[field.kind, self.flexible]
            self.line(f"{target}, pos = {self.name('read', reader)}(buf, pos)", depth)
            if not nullable and field.kind != "records":
                self.line(f"if {target} is None: raise DecodeError('null in a field that is not nullable')", depth)

    def struct(self, target: str, field: Field, nullable: bool, depth: int) -> None:
        decode = self.name("decode", self.inner(field.element))
        if nullable:
            self.line("pos += 1", depth)
            self.line(f"if buf[pos - 1] {'>= 128' if field.tag is None else '== 0'}:", depth)
            self.line(f"{target} = None", depth + 1)
            self.line("else:", depth)
            depth += 1
        self.line(f"{target}, pos = {decode}({self.arguments})", depth)

    def array(self, target: str, field: Field, nullable: bool, depth: int) -> None:
        count = self.name("count", read_compact_count if self.flexible else read_count)
        self.line(f"n, pos = {count}(buf, pos)", depth)
        self.line("if n < 0:", depth)
        self.line(
            f"{target} = None" if nullable else "raise DecodeError('null in a field that is not nullable')", depth + 1
        )
        self.line("else:", depth)
        depth += 1
        self.spend(depth)
        if isinstance(field.element, str):
            kind = field.element
            if kind in FIXED and kind != "uuid":
                size = struct.calcsize(">" + FIXED[kind])
                self.line(f"if n * {size} > len(buf) - pos: raise DecodeError('array is truncated')", depth)
                unpack = self.name("unpack", struct.unpack_from)
                self.line(f"{target} = list({unpack}(f'>{{n}}{FIXED[kind]}', buf, pos))", depth)
                self.line(f"pos += n * {size}", depth)
                return
            reader = self.name("read", READERS[kind, self.flexible])
            item = f"item, pos = {reader}(buf, pos)"
        else:
            decode = self.name("decode", self.inner(field.element))
            item = f"item, pos = {decode}({self.arguments})"
        self.line("if n > len(buf) - pos: raise DecodeError('array is truncated')", depth)
        self.line(f"{target} = items = []", depth)
        self.line("for _ in range(n):", depth)
        self.line(item, depth + 1)
        if isinstance(field.element, str) and field.element != "uuid":
            self.line("if item is None: raise DecodeError('null in a field that is not nullable')", depth + 1)
        self.line("items.append(item)", depth + 1)

    def spend(self, depth: int, count: str = "n") -> None:
        """Generate the code that runs before a decoder decodes array elements or tagged fields."""

    def tags(self) -> None:
        varint = self.name("varint", read_varint)
        self.line("if buf[pos] == 0:")  # tags are rare, and a call costs more than this test
        self.line("pos += 1", 2)
        self.line("else:")
        self.line(f"tags, pos = {varint}(buf, pos)", 2)
        self.spend(2, "tags")
        self.line("for _ in range(tags):", 2)
        self.line(f"tag, pos = {varint}(buf, pos)", 3)
        self.line(f"size, pos = {varint}(buf, pos)", 3)
        self.line("end = pos + size", 3)
        self.line("if end > len(buf): raise DecodeError('tagged field is truncated')", 3)
        for name, field in self.tagged_fields():
            self.line(f"if tag == {field.tag}:", 3)
            self.value(f"o.{name}", field, 4)
            self.line("if pos != end: raise DecodeError('tagged field has a wrong length')", 4)
        self.line("pos = end", 3)


class _BoundedSource(_DecoderSource):
    """Generate decoders that call a function with each number of array elements or tagged fields, to limit the work."""

    arguments = "buf, pos, spend"

    def inner(self, cls: MessageType) -> Any:
        return bounded_decoder(cls, self.version, self.flexible)

    def spend(self, depth: int, count: str = "n") -> None:
        self.line(f"spend({count})", depth)
