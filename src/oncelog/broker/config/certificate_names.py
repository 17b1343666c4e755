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


_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""The attributes with a short name in RFC 2253. Java prints others as object identifiers, with hexadecimal bytes."""


def distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """Return the subject of a certificate as Java prints it (RFC 2253): `CN=alice,O=shop`.

    `subject` has the form of `ssl.SSLSocket.getpeercert()`.
    """
    return ",".join(
        "+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in part) for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    text = re.sub(r"^([ #])", r"\\\1", text)
    return re.sub(r" $", r"\\ ", text)
