"""Compiles a message class, in one version, to a decoder and an encoder.

Both are generated as source: runs of fixed-size fields become one `struct` call, and what a version lacks costs
nothing. Decoders are safe against any input: they raise `DecodeError` and never make more of it than the bytes are
worth.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from oncelog.protocol.schema import MAX_STRING, NO_UUID, DecodeError, Field, Message, UnsupportedVersionError, utf8

_FIXED = {
    "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?", "uuid": "16s",
}  # fmt: skip

Decoder = Callable[[memoryview, int], tuple[Any, int]]
Encoder = Callable[[Any, list[Any]], None]


class TooManyItemsError(DecodeError):
    """A message has more array elements than its reader wants to decode."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One class in one version."""

    decode: Decoder
    encode: Encoder
    cls: type[Message]
    version: int

    def decode_at_most(self, view: memoryview, pos: int, items: int) -> tuple[Any, int]:
        """Decode as `decode` does. Raise TooManyItemsError before decoding more array elements than the limit."""
        return _bounded(self.cls, self.version)(view, pos, items)


@cache
def codec(cls: type[Message], version: int) -> Codec:
    """The codec of a message; UnsupportedVersionError when it has no such version."""
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        message = f"{cls.__name__} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}"
        raise UnsupportedVersionError(message)
    inner = _compile(cls, version, version >= cls.FLEXIBLE_SINCE)

    def decode(view: memoryview, pos: int) -> tuple[Any, int]:
        try:
            return inner.decode(view, pos)
        except (struct.error, IndexError) as error:
            raise DecodeError(f"{cls.__name__} v{version} is cut off") from error

    return Codec(decode, inner.encode, cls, version)


@cache
def _bounded(cls: type[Message], version: int) -> Callable[[memoryview, int, int], tuple[Any, int]]:
    inner = _compile_bounded(cls, version, version >= cls.FLEXIBLE_SINCE)

    def decode(view: memoryview, pos: int, items: int) -> tuple[Any, int]:
        left = items

        def spend(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise TooManyItemsError(f"{cls.__name__} v{version} has more than {items} array elements")

        try:
            message, end = inner(view, pos, spend)
        except (struct.error, IndexError) as error:
            raise DecodeError(f"{cls.__name__} v{version} is cut off") from error
        return message, end

    return decode


@cache
def _compile(cls: type[Message], version: int, flexible: bool) -> Codec:
    return Codec(_Decoder(cls, version, flexible).build(), _Encoder(cls, version, flexible).build(), cls, version)


@cache
def _compile_bounded(cls: type[Message], version: int, flexible: bool) -> Any:
    return _BoundedDecoder(cls, version, flexible).build()


class _Source:
    """Lines of a function and the names that they use."""

    def __init__(self, cls: type[Message], version: int, flexible: bool) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"DecodeError": DecodeError, "UnsupportedVersionError": UnsupportedVersionError}

    def line(self, text: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + text)

    def name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.scope)}"
        self.scope[name] = value
        return name

    def plain(self) -> list[tuple[str, Field]]:
        return [
            (name, field)
            for name, field in self.cls.FIELDS.items()
            if field.present(self.version) and not self.tagged(field)
        ]

    def tagged_fields(self) -> list[tuple[str, Field]]:
        found = [
            (name, field)
            for name, field in self.cls.FIELDS.items()
            if field.present(self.version) and self.tagged(field)
        ]
        return sorted(found, key=lambda entry: entry[1].tag or 0)

    def tagged(self, field: Field) -> bool:
        return field.tag is not None and self.flexible

    def function(self, head: str) -> Any:
        source = "\n".join([head, *self.lines])
        exec(compile(source, f"<{self.cls.__name__} v{self.version}>", "exec"), self.scope)
        return self.scope[head[4 : head.index("(")]]


class _Decoder(_Source):
    arguments = "buf, pos"

    def inner(self, cls: type[Message]) -> Any:
        return _compile(cls, self.version, self.flexible).decode

    def build(self) -> Decoder:
        self.scope["new"] = self.cls.__new__
        self.scope["cls"] = self.cls
        self.line("o = new(cls)")
        run: list[tuple[str, Field]] = []
        for name, field in self.plain():
            if field.kind in _FIXED:
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
        decoder: Decoder = self.function(f"def decode({self.arguments}):")
        return decoder

    def default(self, field: Field) -> str:
        if field.kind == "array" and field.default is not None:
            return "[]"
        if field.kind == "struct" and field.default is not None:
            return f"{self.name('struct', field.element)}()"
        return self.name("default", field.default)

    def flush(self, run: list[tuple[str, Field]]) -> None:
        if not run:
            return
        layout = struct.Struct(">" + "".join(_FIXED[field.kind] for _, field in run))
        unpack = self.name("unpack", layout.unpack_from)
        self.line(f"{', '.join(f'o.{name}' for name, _ in run)}, = {unpack}(buf, pos)")
        self.line(f"pos += {layout.size}")
        for name, field in run:
            if field.kind == "uuid":
                self.line(f"o.{name} = {self.name('uuid', _uuid)}(o.{name})")
        run.clear()

    def value(self, target: str, field: Field, depth: int) -> None:
        nullable = field.may_be_null(self.version)
        if field.kind in _FIXED:
            layout = struct.Struct(">" + _FIXED[field.kind])
            unpack = self.name("unpack", layout.unpack_from)
            value = f"{unpack}(buf, pos)[0]"
            if field.kind == "uuid":
                value = f"{self.name('uuid', _uuid)}({value})"
            self.line(f"{target} = {value}", depth)
            self.line(f"pos += {layout.size}", depth)
        elif field.kind == "array":
            self.array(target, field, nullable, depth)
        elif field.kind == "struct":
            self.struct(target, field, nullable, depth)
        else:
            reader = _READERS[field.kind, self.flexible]
            self.line(f"{target}, pos = {self.name('read', reader)}(buf, pos)", depth)
            if not nullable and field.kind != "records":
                self.line(f"if {target} is None: raise DecodeError('null where none may be')", depth)

    def struct(self, target: str, field: Field, nullable: bool, depth: int) -> None:
        decode = self.name("decode", self.inner(field.element))
        if nullable:
            self.line("pos += 1", depth)
            self.line("if buf[pos - 1] >= 128:", depth)
            self.line(f"{target} = None", depth + 1)
            self.line("else:", depth)
            depth += 1
        self.line(f"{target}, pos = {decode}({self.arguments})", depth)

    def array(self, target: str, field: Field, nullable: bool, depth: int) -> None:
        count = self.name("count", _compact_count if self.flexible else _count)
        self.line(f"n, pos = {count}(buf, pos)", depth)
        self.line("if n < 0:", depth)
        self.line(f"{target} = None" if nullable else "raise DecodeError('null where none may be')", depth + 1)
        self.line("else:", depth)
        depth += 1
        self.spend(depth)
        if isinstance(field.element, str):
            kind = field.element
            if kind in _FIXED and kind != "uuid":
                size = struct.calcsize(">" + _FIXED[kind])
                self.line(f"if n * {size} > len(buf) - pos: raise DecodeError('array is cut off')", depth)
                unpack = self.name("unpack", struct.unpack_from)
                self.line(f"{target} = list({unpack}(f'>{{n}}{_FIXED[kind]}', buf, pos))", depth)
                self.line(f"pos += n * {size}", depth)
                return
            reader = self.name("read", _READERS[kind, self.flexible])
            item = f"item, pos = {reader}(buf, pos)"
        else:
            decode = self.name("decode", self.inner(field.element))
            item = f"item, pos = {decode}({self.arguments})"
        self.line("if n > len(buf) - pos: raise DecodeError('array is cut off')", depth)
        self.line(f"{target} = items = []", depth)
        self.line("for _ in range(n):", depth)
        self.line(item, depth + 1)
        if isinstance(field.element, str) and field.element != "uuid":
            self.line("if item is None: raise DecodeError('null where none may be')", depth + 1)
        self.line("items.append(item)", depth + 1)

    def spend(self, depth: int, count: str = "n") -> None:
        """Generate the code that runs before a decoder decodes a number of elements."""

    def tags(self) -> None:
        varint = self.name("varint", read_varint)
        self.line("if buf[pos] == 0:")  # hardly ever is there a tag, and a call costs more than the look
        self.line("pos += 1", 2)
        self.line("else:")
        self.line(f"tags, pos = {varint}(buf, pos)", 2)
        self.spend(2, "tags")
        self.line("for _ in range(tags):", 2)
        self.line(f"tag, pos = {varint}(buf, pos)", 3)
        self.line(f"size, pos = {varint}(buf, pos)", 3)
        self.line("end = pos + size", 3)
        self.line("if end > len(buf): raise DecodeError('tagged field is cut off')", 3)
        for name, field in self.tagged_fields():
            self.line(f"if tag == {field.tag}:", 3)
            self.value(f"o.{name}", field, 4)
            self.line("if pos != end: raise DecodeError('tagged field has another length')", 4)
        self.line("pos = end", 3)


class _BoundedDecoder(_Decoder):
    """Its decoders call a function with each array's number of elements before they decode it."""

    arguments = "buf, pos, spend"

    def inner(self, cls: type[Message]) -> Any:
        return _compile_bounded(cls, self.version, self.flexible)

    def spend(self, depth: int, count: str = "n") -> None:
        self.line(f"spend({count})", depth)


class _Encoder(_Source):
    def build(self) -> Encoder:
        run: list[tuple[str, Field]] = []
        for name, field in self.plain():
            if field.kind in _FIXED:
                run.append((name, field))
                continue
            self.flush(run)
            self.value(f"o.{name}", field, 1)
        self.flush(run)
        self.refuse_absent()
        if self.flexible:
            self.tags()
        if not self.lines:
            self.line("pass")
        encoder: Encoder = self.function("def encode(o, out):")
        return encoder

    def refuse_absent(self) -> None:
        for name, field in self.cls.FIELDS.items():
            if field.present(self.version) or field.ignorable:
                continue
            message = f"{self.cls.__name__}.{name} does not exist in version {self.version}"
            self.line(f"if {self.differs(name, field)}: raise UnsupportedVersionError({message!r})")

    def differs(self, name: str, field: Field) -> str:
        """Source that is true when the field is not its default."""
        if field.kind == "array" and field.default is not None:
            return f"o.{name} is None or o.{name}" if field.nullable <= 32767 else f"o.{name}"
        if field.kind == "struct" and field.default is not None:
            return f"o.{name} != {self.name('empty', field.element())}"
        if field.default is None:
            return f"o.{name} is not None"
        return f"o.{name} != {self.name('default', field.default)}"

    def flush(self, run: list[tuple[str, Field]]) -> None:
        if not run:
            return
        pack = self.name("pack", struct.Struct(">" + "".join(_FIXED[field.kind] for _, field in run)).pack)
        values = ", ".join(f"o.{name}.bytes" if field.kind == "uuid" else f"o.{name}" for name, field in run)
        self.line(f"out.append({pack}({values}))")
        run.clear()

    def value(self, source: str, field: Field, depth: int) -> None:
        nullable = field.may_be_null(self.version)
        if field.kind in _FIXED:
            pack = self.name("pack", struct.Struct(">" + _FIXED[field.kind]).pack)
            self.line(f"out.append({pack}({source}{'.bytes' if field.kind == 'uuid' else ''}))", depth)
        elif field.kind == "array":
            self.array(source, field, nullable, depth)
        elif field.kind == "struct":
            encode = self.name("encode", _compile(field.element, self.version, self.flexible).encode)
            if nullable:
                self.line(f"if {source} is None: out.append(b'\\xff')", depth)
                self.line("else:", depth)
                self.line("out.append(b'\\x01')", depth + 1)
                depth += 1
            self.line(f"{encode}({source}, out)", depth)
        else:
            if not nullable and field.kind != "records":
                self.null_check(source, depth)
            writer = _WRITERS[field.kind, self.flexible]
            self.line(f"{self.name('write', writer)}({source}, out)", depth)

    def null_check(self, source: str, depth: int) -> None:
        message = f"{self.cls.__name__}: {source.removeprefix('o.')} must not be null in version {self.version}"
        self.line(f"if {source} is None: raise UnsupportedVersionError({message!r})", depth)

    def array(self, source: str, field: Field, nullable: bool, depth: int) -> None:
        count = self.name("count", _write_compact_count if self.flexible else _write_count)
        if nullable:
            self.line(f"if {source} is None: {count}(-1, out)", depth)
            self.line("else:", depth)
            depth += 1
        else:
            self.null_check(source, depth)
        self.line(f"{count}(len({source}), out)", depth)
        if isinstance(field.element, str):
            if field.element in _FIXED and field.element != "uuid":
                pack = self.name("pack", struct.pack)
                self.line(f"out.append({pack}(f'>{{len({source})}}{_FIXED[field.element]}', *{source}))", depth)
                return
            writer = self.name("write", _WRITERS[field.element, self.flexible])
        else:
            writer = self.name("encode", _compile(field.element, self.version, self.flexible).encode)
        self.line(f"for item in {source}: {writer}(item, out)", depth)

    def tags(self) -> None:
        tagged = self.tagged_fields()
        if not tagged:
            self.line("out.append(b'\\x00')")
            return
        self.line("tags = []")
        for name, field in tagged:
            self.line(f"if {self.differs(name, field)}:")
            self.line("outer, out = out, []", 2)
            self.value(f"o.{name}", field, 2)
            self.line(f"tags.append(({field.tag}, out))", 2)
            self.line("out = outer", 2)
        self.line(f"{self.name('write', _write_tags)}(tags, out)")


# -- primitives ------------------------------------------------------------------------------------------------------

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def read_varint(buf: memoryview, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    byte = buf[pos]
    if byte < 0x80:
        return byte, pos + 1
    value, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = buf[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise DecodeError("varint of more than 5 bytes")
    return value & 0xFFFFFFFF, pos + 1


def varint(value: int) -> bytes:
    """The reverse of `read_varint`."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(1024)
def _uuid(raw: bytes) -> UUID:
    """The same few ids of topics come in every request, and to make one costs more than all else in it."""
    return UUID(bytes=raw) if any(raw) else NO_UUID


def _take(buf: memoryview, pos: int, size: int) -> tuple[memoryview | None, int]:
    if size == -1:
        return None, pos
    end = pos + size
    if size < 0 or end > len(buf):
        raise DecodeError(f"field of {size} bytes where {len(buf) - pos} are left")
    return buf[pos:end], end


def _sized16(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    return _take(buf, pos + 2, _INT16.unpack_from(buf, pos)[0])


def _sized32(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    return _take(buf, pos + 4, _INT32.unpack_from(buf, pos)[0])


def _compact(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    size, pos = read_varint(buf, pos)
    return _take(buf, pos, size - 1)


def _string(sized: Decoder) -> Decoder:
    def read(buf: memoryview, pos: int) -> tuple[str | None, int]:
        raw, pos = sized(buf, pos)
        if raw is None:
            return None, pos
        if len(raw) > MAX_STRING:
            raise DecodeError(f"string of {len(raw)} bytes, {MAX_STRING} at most are allowed")
        try:
            return str(raw, "utf-8"), pos
        except UnicodeDecodeError as error:
            raise DecodeError("string is not UTF-8") from error

    return read


def _bytes(sized: Decoder) -> Decoder:
    def read(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
        raw, pos = sized(buf, pos)
        return None if raw is None else bytes(raw), pos

    return read


def _read_uuid(buf: memoryview, pos: int) -> tuple[UUID, int]:
    raw, end = _take(buf, pos, 16)
    assert raw is not None
    return _uuid(bytes(raw)), end


def _count(buf: memoryview, pos: int) -> tuple[int, int]:
    count = _INT32.unpack_from(buf, pos)[0]
    if count < -1:
        raise DecodeError(f"array of {count} elements")
    return count, pos + 4


def _compact_count(buf: memoryview, pos: int) -> tuple[int, int]:
    count, pos = read_varint(buf, pos)
    return count - 1, pos


_READERS: dict[tuple[str, bool], Decoder] = {
    ("string", False): _string(_sized16),
    ("string", True): _string(_compact),
    ("bytes", False): _bytes(_sized32),
    ("bytes", True): _bytes(_compact),
    ("records", False): _sized32,
    ("records", True): _compact,
    ("uuid", False): _read_uuid,
    ("uuid", True): _read_uuid,
}


def _write_string(value: str | None, out: list[Any]) -> None:
    if value is None:
        out.append(b"\xff\xff")
    else:
        raw = utf8(value)
        out.append(_INT16.pack(len(raw)) + raw)


def _write_compact_string(value: str | None, out: list[Any]) -> None:
    if value is None:
        out.append(b"\x00")
    else:
        raw = utf8(value)
        out.append(varint(len(raw) + 1) + raw)


def _write_bytes(value: Any, out: list[Any]) -> None:
    if value is None:
        out.append(b"\xff\xff\xff\xff")
    else:
        out.append(_INT32.pack(len(value)))
        out.append(value)


def _write_compact_bytes(value: Any, out: list[Any]) -> None:
    if value is None:
        out.append(b"\x00")
    else:
        out.append(varint(len(value) + 1))
        out.append(value)


def _write_uuid(value: UUID, out: list[Any]) -> None:
    out.append(value.bytes)


def _write_count(count: int, out: list[Any]) -> None:
    out.append(_INT32.pack(count))


def _write_compact_count(count: int, out: list[Any]) -> None:
    out.append(varint(count + 1))


def _write_tags(tags: list[tuple[int, list[Any]]], out: list[Any]) -> None:
    out.append(varint(len(tags)))
    for tag, chunks in tags:
        out.append(varint(tag))
        out.append(varint(sum(map(len, chunks))))
        out.extend(chunks)


_WRITERS: dict[tuple[str, bool], Encoder] = {
    ("string", False): _write_string,
    ("string", True): _write_compact_string,
    ("bytes", False): _write_bytes,
    ("bytes", True): _write_compact_bytes,
    ("records", False): _write_bytes,
    ("records", True): _write_compact_bytes,
    ("uuid", False): _write_uuid,
    ("uuid", True): _write_uuid,
}
