"""The version of the package, and whether its hot modules are compiled."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"

NOT_COMPILED = "not_compiled.txt"
"""The file in a pure-Python wheel that has the reason why it is not compiled. `hatch_build.py` writes it."""


def build() -> str:
    """Return "compiled", or "pure Python" with the reason if a wheel could not be compiled (see `hatch_build.py`)."""
    spec = find_spec("oncelog.protocol.records")
    if spec is not None and spec.origin is not None and not spec.origin.endswith(".py"):
        return "compiled"
    try:
        reason = Path(__file__).with_name(NOT_COMPILED).read_text()
    except OSError:
        return "pure Python"
    return f"pure Python: {reason.strip()}"
