"""Credentials in settings: texts that no log shows, and `sasl.jaas.config`, the login of Kafka clients and brokers."""

from __future__ import annotations

import re
from enum import Enum

MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
"""The name of a login module without its package, which repackaged clients change -> the mechanisms that it serves."""

_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}


class Secret:
    """A value that no log, error or `repr` shows."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "[hidden]"

    def __bool__(self) -> bool:
        return bool(self.value)


def parse_jaas(line: str, mechanism: str) -> dict[str, str]:
    """Return the options of a JAAS line. Raises ValueError, whose message shows no value of the line.

    The form is `package.Module required name="value" ...;`, with quotes of either kind, or none for a plain word.
    """
    tokens = _tokens(line)
    form = 'it must be: MODULE required NAME="VALUE" ...;'
    if len(tokens) < 3 or tokens[-1] is not _END or _END in tokens[:-1] or _EQUALS in tokens[:2]:
        raise ValueError(f"{form} (one module, and a semicolon at its end)")
    module = str(tokens[0]).rpartition(".")[2]
    if module not in MODULES:
        raise ValueError(f"the login module is not supported; supported are {', '.join(MODULES)}")
    if mechanism not in MODULES[module]:
        raise ValueError(f"{module} is for {' and '.join(MODULES[module])}, but sasl.mechanism = {mechanism}")
    rest = tokens[2:-1]
    names, signs, values = rest[::3], rest[1::3], rest[2::3]
    if len(rest) % 3 or any(sign is not _EQUALS for sign in signs) or _EQUALS in (*names, *values):
        raise ValueError(form)
    return {str(name): str(value) for name, value in zip(names, values, strict=True)}


class _Sign(Enum):
    """A character that separates words, unless it is quoted."""

    EQUALS = "="
    END = ";"


_EQUALS, _END = _Sign.EQUALS, _Sign.END


def _tokens(line: str) -> list[str | _Sign]:
    tokens: list[str | _Sign] = []
    pos, line = 0, line.rstrip()
    while pos < len(line):
        match = _TOKEN.match(line, pos)
        if match is None:
            raise ValueError("a quote has no end")
        pos = match.end()
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is not None:
            tokens.append(_ESCAPED.sub(lambda found: _LETTERS.get(found[1], found[1]), quoted))
        else:
            tokens.append(match[3] or _Sign(match[4]))
    return tokens
