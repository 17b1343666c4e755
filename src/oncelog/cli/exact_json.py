"""JSON whose numbers keep all digits: Python's floats would round some of them."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any


class Number(Decimal):
    """A number of JSON. Other decimals may be texts in JSON."""


def exact(text: str) -> float | Number:
    """Return a number of JSON without loss, for `parse_float`. Raises ValueError if its exponent is too large."""
    number = float(text)
    if repr(number) == text:
        return number
    try:
        whole = Number(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]} has too large an exponent") from None
    return number if whole == Decimal(repr(number)) else whole


def dumped(value: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """Return JSON. A `Number` becomes a number, and lone surrogates stay as they are."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=separators)
    except TypeError:  # a Number is in it
        comma, colon = separators
    match value:
        case dict():
            items = (f"{dumped(name)}{colon}{dumped(item, separators)}" for name, item in value.items())
            return "{" + comma.join(items) + "}"
        case list():
            return "[" + comma.join(dumped(item, separators) for item in value) + "]"
    return str(value)
