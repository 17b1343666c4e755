"""Build the source of a function from the fields of a message class, and compile it."""

from __future__ import annotations

from typing import Any

from oncelog.protocol.fields import DecodeError, Field, MessageType, UnsupportedVersionError


class Source:
    """The lines of a generated function, and the values that it refers to by name."""

    def __init__(self, cls: MessageType, version: int, flexible: bool) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"DecodeError": DecodeError, "UnsupportedVersionError": UnsupportedVersionError}

    def line(self, text: str, depth: int = 1) -> None:
        """Append a line."""
        self.lines.append("    " * depth + text)

    def name(self, prefix: str, value: Any) -> str:
        """Make a value available to the function, and return its name there."""
        name = f"{prefix}{len(self.scope)}"
        self.scope[name] = value
        return name

    def plain(self) -> list[tuple[str, Field]]:
        """Return the fields of the version that are not tagged."""
        return [
            (name, field)
            for name, field in self.cls.FIELDS.items()
            if field.present(self.version) and not self.tagged(field)
        ]

    def tagged_fields(self) -> list[tuple[str, Field]]:
        """Return the tagged fields of the version in the order of their tags (KIP-482)."""
        found = [
            (name, field)
            for name, field in self.cls.FIELDS.items()
            if field.present(self.version) and self.tagged(field)
        ]
        return sorted(found, key=lambda entry: entry[1].tag or 0)

    def tagged(self, field: Field) -> bool:
        """Return whether a field is sent as a tagged field. Only flexible versions have tags."""
        return field.tag is not None and self.flexible

    def function(self, head: str) -> Any:
        """Compile the lines below a `def` line, and return the function."""
        source = "\n".join([head, *self.lines])
        exec(compile(source, f"<{self.cls.__name__} v{self.version}>", "exec"), self.scope)
        return self.scope[head[4 : head.index("(")]]
