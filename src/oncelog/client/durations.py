"""Durations: a user's seconds, and ISO 8601 as far as Java's `Duration.parse` takes it, PnDTnHnMn.nS."""

from __future__ import annotations

import re
from numbers import Real

from oncelog.errors import UsageError

_PATTERN = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE)
_SECONDS = (86_400, 3_600, 60, 1)


def ms(seconds: float | None) -> float | None:
    """A time-out in seconds, as users give it, in ms; None (the default) stays None. UsageError."""
    given: object = seconds
    if given is not None and not isinstance(given, Real):
        raise UsageError(f"timeout = {given!r}: it must be a number of seconds, not {type(given).__name__}")
    return None if seconds is None else seconds * 1000


def milliseconds(text: str) -> int:
    """`PT1H30M` or `P1DT2.5S` in ms; ValueError. Negative ones are refused, as KIP-1106 wants it."""
    match = _PATTERN.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no ISO 8601 duration such as PT1H or P7DT12H")
    return round(sum(float(part) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True) if part) * 1000)
