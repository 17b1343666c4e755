"""Describe an option, and read values of the usual types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from oncelog.net.credentials import Secret


class Option(NamedTuple):
    """The default of an option, the function that reads a value, and the description for the reference.

    `read` converts the user's value, which may be a string. It raises ValueError or TypeError for a wrong value.
    """

    default: Any
    read: Callable[[Any], Any]
    doc: str
    """What the option does, for the reference. Markdown."""
    secret: bool = False
    """Whether errors must not show the value."""


def integer(low: int, high: int = 2**63 - 1) -> Callable[[Any], int]:
    """Return a reader of a whole number within bounds."""

    def read(value: Any) -> int:
        try:
            whole = not isinstance(value, bool) and isinstance(value, int | str | float) and int(value) == float(value)
        except (ValueError, OverflowError):  # text that is no number, NaN, infinity
            whole = False
        if not whole:
            raise ValueError("it must be a whole number")
        if not low <= int(value) <= high:
            raise ValueError(f"it must be {low} to {high}")
        return int(value)

    return read


def boolean(value: Any) -> bool:
    """Read True or False, or their names."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("it must be true or false")


def text(value: Any) -> str:
    """Read a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("it must be a string that is not empty")
    return value


def optional_text(value: Any) -> str | None:
    """Read a string that is not empty, or None."""
    return None if value is None else text(value)


def anything(value: Any) -> Any:
    """Accept any value. Another function checks it."""
    return value


def optional_secret(value: Any) -> Secret | None:
    """Read a string that is not empty, or None. The result hides it."""
    if value is None or isinstance(value, Secret):
        return value
    return Secret(text(value))
