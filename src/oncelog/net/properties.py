"""Java's `.properties` text, the form of Kafka's `server.properties` (java.util.Properties.load)."""

from __future__ import annotations

import re

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPLIT = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of the text. If a key is repeated, its last value wins."""
    found = {}
    for line in _logical_lines(text):
        match = _SPLIT.fullmatch(line)
        assert match is not None  # the pattern matches any text
        found[_unescape(match[1])] = _unescape(match[2])
    return found


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments. Join a line that ends with an odd number of `\\` with the next one."""
    lines: list[str] = []
    continued = False
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if continued:
            lines[-1] += line
        elif not line or line[0] in "#!":
            continue
        else:
            lines.append(line)
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        if continued:
            lines[-1] = lines[-1][:-1]
    return lines


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(replace, text)
