"""Read the name in a client's certificate, and map it to a user with the rules of a listener.

Source: RFC 2253, and Kafka's `SslPrincipalMapper`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from oncelog.broker.config.errors import ConfigError

_RULE = re.compile(r"(DEFAULT)|RULE:((?:[^/\\]|\\.)*)/((?:[^/\\]|\\.)*)/([LU]?)")


def principal_mapper(rules: str) -> Callable[[str], str]:
    """Return a function that maps the name in a certificate to the user. Raises ConfigError.

    The first rule whose pattern matches the whole name applies. If no rule matches, the function raises ValueError:
    Kafka rejects such a client.
    """
    parsed: list[tuple[re.Pattern[str] | None, str, str]] = []
    position, text = 0, rules.strip()
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules must be DEFAULT or RULE:PATTERN/REPLACEMENT/[LU], not {text!r}"
            )
        try:
            pattern = None if match[1] else re.compile(match[2].replace("\\/", "/"))
        except re.error as error:
            raise ConfigError(f"ssl.principal.mapping.rules: {match[2]!r} is no pattern: {error}") from None
        parsed.append((pattern, re.sub(r"\$(\d)", r"\\g<\1>", match[3] or ""), match[4] or ""))
        position = match.end()
        rest = text[position:].lstrip()
        if rest.startswith(","):
            rest = rest[1:].lstrip()
        elif rest:
            raise ConfigError(f"ssl.principal.mapping.rules needs commas between its rules, not {text!r}")
        position = len(text) - len(rest)

    def map_name(name: str) -> str:
        for pattern, replacement, case in parsed:
            if pattern is None:
                return name
            found = pattern.fullmatch(name)
            if found is not None:
                user = found.expand(replacement)
                return {"L": user.lower(), "U": user.upper()}.get(case, user)
        raise ValueError(f"no rule of ssl.principal.mapping.rules matches {name!r}")

    return map_name


class _Der:
    """A reader of the values in one DER value. Raises ValueError if the bytes are not DER."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def __bool__(self) -> bool:
        """Return whether there is another value."""
        return self._position < len(self._content)

    def next(self) -> tuple[int, bytes, bytes]:
        """Return the tag of the next value, its content, and the whole value."""
        data, start = self._content, self._position
        if len(data) < start + 2:
            raise ValueError("the certificate is damaged")
        size, content = data[start + 1], start + 2
        if size & 0x80:
            content += size & 0x7F
            size = int.from_bytes(data[start + 2 : content], "big")
        self._position = content + size
        if self._position > len(data):
            raise ValueError("the certificate is damaged")
        return data[start], data[content : self._position], data[start : self._position]

    def inner(self) -> _Der:
        """Return a reader of the next value's content."""
        return _Der(self.next()[1])


_VERSION_TAG = 0xA0
_TEXT_TAGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""The types of texts that Java prints as text (`DerValue.isDerString`): UTF8, Printable, T61, IA5, General, BMP."""
_SHORT = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes with a short name in RFC 2253. Java prints others as object identifiers, with hexadecimal bytes."""


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate as Java prints it (`X500Principal.getName`): `CN=alice,O=shop`.

    `certificate` is in DER. Each character that could begin another part of the name is escaped, so that a value
    such as `x,CN=admin` cannot match a rule for `CN=admin`. Raises ValueError.
    """
    parts = _Der(certificate).inner().inner()
    tag, _, _ = parts.next()
    if tag == _VERSION_TAG:
        parts.next()  # the serial number
    for _ in ("signature algorithm", "issuer", "validity"):
        parts.next()
    subject, names = parts.inner(), []
    while subject:
        attributes, texts = subject.inner(), []
        while attributes:
            texts.append(_attribute(attributes.inner()))
        names.append("+".join(texts))
    return ",".join(reversed(names))


def _attribute(attribute: _Der) -> str:
    number = _object_identifier(attribute.next()[1])
    tag, content, whole = attribute.next()
    name = _SHORT.get(number)
    if name is None or tag not in _TEXT_TAGS:
        return f"{name or number}=#{whole.hex()}"
    return f"{name}={_escaped(content.decode(errors='replace'))}"


def _object_identifier(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError("the certificate is damaged")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(value: str) -> str:
    text = re.sub(r'([,=+<>#;"\\])', r"\\\1", value).replace("\0", "\\00")
    inner = text.strip(" ")
    if not inner:
        return "\\ " * len(text)
    begin = len(text) - len(text.lstrip(" "))
    return "\\ " * begin + inner + "\\ " * (len(text) - begin - len(inner))
