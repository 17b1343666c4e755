"""kcat's `-f` format: tokens such as `%s` for parts of a record, escapes such as `\\n` for characters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Header = tuple[str, bytes | None]


class Shown(NamedTuple):
    """The parts of a record that a format can print."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    is_marker: bool = False
    """Whether this is the end of a transaction, whose value has no format."""


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(shown: Shown) -> bytes:
    pairs = (name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in shown.headers)
    return b",".join(pairs)


TOKENS: dict[str, Callable[[Shown], bytes]] = {
    "s": lambda shown: shown.value or b"",
    "S": lambda shown: b"%d" % _length(shown.value),
    "R": lambda shown: _length(shown.value).to_bytes(4, "big", signed=True),
    "k": lambda shown: shown.key or b"",
    "K": lambda shown: b"%d" % _length(shown.key),
    "t": lambda shown: shown.topic.encode(),
    "p": lambda shown: b"%d" % shown.partition,
    "o": lambda shown: b"%d" % shown.offset,
    "T": lambda shown: b"%d" % shown.timestamp,
    "h": _headers,
    "%": lambda shown: b"%",
}
"""The function of each token. The length of a null key or value is -1."""

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_PIECE = re.compile(r"%(.?)|\\x([0-9A-Fa-f]+)|\\(0[0-7]*|[1-9][0-9]*)|\\(.)|([^%\\]+|\\)", re.DOTALL)


def compile_format(text: str) -> Callable[[Shown], bytes]:
    """Compile a format to a function from a record to its output. Raises ValueError for an unknown token.

    As in kcat, `\\x` takes all hexadecimal digits that follow. `\\` takes all decimal digits that follow, or octal ones
    after a 0. The output is the low eight bits of the number.
    """
    parts: list[Callable[[Shown], bytes] | bytes] = []
    for piece in _PIECE.finditer(text):
        token, hexadecimal, number, escape, plain = piece.groups()
        if token is not None:
            if token not in TOKENS:
                raise ValueError(f"unknown token %{token}; the tokens are {' '.join('%' + known for known in TOKENS)}")
            parts.append(TOKENS[token])
        elif hexadecimal or number:
            value = int(hexadecimal, 16) if hexadecimal else int(number, 8 if number.startswith("0") else 10)
            parts.append(bytes([value & 0xFF]))
        elif escape is not None:
            parts.append(_ESCAPES.get(escape, escape.encode()))
        else:
            parts.append(plain.encode())
    return lambda shown: b"".join(part if isinstance(part, bytes) else part(shown) for part in parts)
