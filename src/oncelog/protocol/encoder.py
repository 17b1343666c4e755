"""Generate the encoder of a message class in one version. Runs of fixed-size fields become one `struct` call."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from oncelog.protocol.fields import Field, MessageType
from oncelog.protocol.generated import Source
from oncelog.protocol.primitives import FIXED, WRITERS, Writer, write_compact_count, write_count, write_tags


@cache
def encoder(cls: MessageType, version: int, flexible: bool) -> Writer:
    """Return the encoder of a class. It raises UnsupportedVersionError for fields that the version cannot carry."""
    made: Writer = _EncoderSource(cls, version, flexible).build()
    return made


class _EncoderSource(Source):
    def build(self) -> Any:
        run: list[tuple[str, Field]] = []
        for name, field in self.plain():
            if field.kind in FIXED:
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
        return self.function("def encode(o, out):")

    def refuse_absent(self) -> None:
        for name, field in self.cls.FIELDS.items():
            if field.present(self.version) or field.ignorable:
                continue
            message = f"{self.cls.__name__}.{name} does not exist in version {self.version}"
            self.line(f"if {self.differs(name, field)}: raise UnsupportedVersionError({message!r})")

    def differs(self, name: str, field: Field) -> str:
        """Return source that is true if the field does not have its default value."""
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
        pack = self.name("pack", struct.Struct(">" + "".join(FIXED[field.kind] for _, field in run)).pack)
        values = ", ".join(f"o.{name}.bytes" if field.kind == "uuid" else f"o.{name}" for name, field in run)
        self.line(f"out.append({pack}({values}))")
        run.clear()

    def value(self, source: str, field: Field, depth: int) -> None:
        nullable = field.may_be_null(self.version)
        if field.kind in FIXED:
            pack = self.name("pack", struct.Struct(">" + FIXED[field.kind]).pack)
            self.line(f"out.append({pack}({source}{'.bytes' if field.kind == 'uuid' else ''}))", depth)
        elif field.kind == "array":
            self.array(source, field, nullable, depth)
        elif field.kind == "struct":
            encode = self.name("encode", encoder(field.element, self.version, self.flexible))
            if nullable:
                null = b"\xff" if field.tag is None else b"\0"  # a tagged struct has a varint in front, others an int8
                self.line(f"if {source} is None: out.append({null!r})", depth)
                self.line("else:", depth)
                self.line("out.append(b'\\x01')", depth + 1)
                depth += 1
            self.line(f"{encode}({source}, out)", depth)
        else:
            if not nullable and field.kind != "records":
                self.null_check(source, depth)
            writer = WRITERS[field.kind, self.flexible]
            self.line(f"{self.name('write', writer)}({source}, out)", depth)

    def null_check(self, source: str, depth: int) -> None:
        message = f"{self.cls.__name__}: {source.removeprefix('o.')} must not be null in version {self.version}"
        self.line(f"if {source} is None: raise UnsupportedVersionError({message!r})", depth)

    def array(self, source: str, field: Field, nullable: bool, depth: int) -> None:
        count = self.name("count", write_compact_count if self.flexible else write_count)
        if nullable:
            self.line(f"if {source} is None: {count}(-1, out)", depth)
            self.line("else:", depth)
            depth += 1
        else:
            self.null_check(source, depth)
        self.line(f"{count}(len({source}), out)", depth)
        if isinstance(field.element, str):
            if field.element in FIXED and field.element != "uuid":
                pack = self.name("pack", struct.pack)
                self.line(f"out.append({pack}(f'>{{len({source})}}{FIXED[field.element]}', *{source}))", depth)
                return
            writer = self.name("write", WRITERS[field.element, self.flexible])
        else:
            writer = self.name("encode", encoder(field.element, self.version, self.flexible))
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
        self.line(f"{self.name('write', write_tags)}(tags, out)")
