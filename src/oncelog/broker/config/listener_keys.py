"""Names of settings that apply to one listener, or to one mechanism of its logins (KIP-103, KIP-226)."""

from __future__ import annotations

import re
from typing import NamedTuple

JAAS = "sasl.jaas.config"
_OF_LISTENER = re.compile(r"listener\.name\.([^.]+)\.(.+)")
_JAAS = re.compile(r"([a-z0-9-]+)\.sasl\.jaas\.config")
_OF_MECHANISM = re.compile(r"(plain|scram-sha-256|scram-sha-512|oauthbearer|gssapi)\.(.+)")


class ListenerKey(NamedTuple):
    """A name in its parts. `listener` and `mechanism` are in lower case, and None if the setting applies to all."""

    listener: str | None
    mechanism: str | None
    key: str


def listener_key(name: str) -> ListenerKey | None:
    """Return the parts of `listener.name.LISTENER[.MECHANISM].KEY` or `MECHANISM.sasl.jaas.config`, otherwise None."""
    found = _OF_LISTENER.fullmatch(name)
    listener, rest = (found[1], found[2]) if found else (None, name)
    login = _JAAS.fullmatch(rest)
    if login:
        return ListenerKey(listener, login[1], JAAS)
    of_mechanism = _OF_MECHANISM.fullmatch(rest) if found else None
    if of_mechanism:
        return ListenerKey(listener, of_mechanism[1], of_mechanism[2])
    return ListenerKey(listener, None, rest) if found else None
