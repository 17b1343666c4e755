"""Methods that were made from functions, or methods, of elsewhere."""

from __future__ import annotations


def adopt(kind: type) -> None:
    """Let what `kind` has of others (`functools.wraps`) tell its place here: in `help` and in error messages."""
    for name, found in vars(kind).items():
        if hasattr(found, "__wrapped__"):
            found.__module__, found.__name__, found.__qualname__ = kind.__module__, name, f"{kind.__qualname__}.{name}"
