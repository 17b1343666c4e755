"""The client's side of the SASL mechanisms: bytes in, bytes out. No I/O.

An exchange begins with `first()`. Each message of the server goes to `answer`, which returns the next message, or None
if there is none. The login is complete if the server accepts it and `done` is true.

Sources: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM), RFC 7628 and KIP-342 (OAUTHBEARER).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Protocol

MIN_ITERATIONS = 4096
"""The smallest number that RFC 7677 allows. A server that requests fewer could guess passwords faster."""
MAX_ITERATIONS = 1_000_000
"""A server that requests more would occupy a CPU for longer than a second with each login."""
MOST_ITERATIONS = 16_384
"""The largest number for a new password, as in Kafka. A client computes as many hashes with each login."""
SALT_BYTES = 32
"""The length of the salt of a new password."""
MAX_SHOWN = 300
"""Maximum number of characters of a server's text in an error."""
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *SCRAM_HASHES, "OAUTHBEARER")


def new_salt() -> bytes:
    """Return a random salt for a new password of SCRAM."""
    return secrets.token_bytes(SALT_BYTES)


class SaslError(Exception):
    """The server's message is malformed, or proves that the server does not know the password."""


class Exchange(Protocol):
    """One login with one mechanism."""

    @property
    def done(self) -> bool:
        """Whether the client needs no further message to trust the server."""

    @property
    def computes(self) -> bool:
        """Whether the next `answer` may take long, because the server chooses how much it computes."""

    @property
    def reason(self) -> str:
        """What the server has sent about its rejection; empty if nothing."""

    def first(self) -> bytes:
        """Return the first message to the server."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the answer to a message of the server, or None. Raises SaslError."""


class Plain:
    """PLAIN: the password as text. Use it with TLS only."""

    computes = False
    reason = ""

    def __init__(self, username: str, password: str) -> None:
        self._token = b"\0".join((b"", username.encode(), password.encode()))
        self.done = False

    def first(self) -> bytes:
        """Return user name and password."""
        self.done = True
        return self._token

    def answer(self, challenge: bytes) -> None:
        """Ignore the server's message, which is empty."""


class Scram:
    """SCRAM: client and server prove to each other that they know the password.

    `nonce` is a random text of printable ASCII characters without a comma. Kafka compares names and passwords as UTF-8
    without SASLprep (`ScramFormatter.normalize`), so this class does, too.
    """

    reason = ""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str, *, token: bool = False) -> None:
        """With `token`, the user name is the id of a delegation token, and the password its HMAC as base64 (KIP-48)."""
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}" + (",tokenauth=true" if token else "")
        self._signature: bytes | None = None
        self.done = False

    @property
    def computes(self) -> bool:
        """Whether the next `answer` is the proof, with as many iterations of the hash as the server requests."""
        return self._signature is None

    def first(self) -> bytes:
        """Return the client-first-message."""
        return f"n,,{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the client-final-message; at the second call, check the server's signature."""
        try:
            fields = _attributes(challenge)
            if "e" in fields:
                raise SaslError(f"the server rejected the login: {shown(fields['e'])}")
            if self._signature is None:
                return self._prove(challenge.decode(), fields)
            self._check(self._signature, fields)
        except (ValueError, KeyError) as error:  # of UTF-8, base64 and int, and of a missing attribute
            raise SaslError(f"the server's SCRAM message is malformed: {shown(repr(error))}") from None
        return None

    def _prove(self, server_first: str, fields: Mapping[str, str]) -> bytes:
        nonce, salt, iterations = fields["r"], b64decode(fields["s"], validate=True), int(fields["i"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError("the server's nonce does not begin with the client's, so the message is not for this login")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise SaslError(
                f"the server requests {iterations} iterations; allowed are {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}"  # biws: "n,," in base64
        message = f"{self._bare},{server_first},{without_proof}".encode()
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, message), strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _check(self, signature: bytes, fields: Mapping[str, str]) -> None:
        if not hmac.compare_digest(b64decode(fields["v"], validate=True), signature):
            raise SaslError("the server's signature is wrong: it does not know the password, so it may be an impostor")
        self.done = True

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _attributes(message: bytes) -> dict[str, str]:
    """Return the attributes of a SCRAM message by their letters. Raises ValueError."""
    pairs = [part.partition("=") for part in message.decode().split(",")]
    return {letter: value for letter, _, value in pairs}


_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class OAuthBearer:
    """OAUTHBEARER: a token of an identity provider, with optional extensions (KIP-342). Raises ValueError.

    The broker answers a wrong token with a JSON object. The client must answer that with the byte 1. Only then the
    broker rejects the login.
    """

    computes = False

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not _TOKEN.fullmatch(token):
            raise ValueError("the OAuth token has characters that RFC 6750 does not allow")
        self._token = token
        self._extensions = dict(extensions or {})
        for name, value in self._extensions.items():
            if not _NAME.fullmatch(name) or name == "auth" or not _VALUE.fullmatch(value):
                raise ValueError(
                    f"the SASL extension {name!r} needs a name of letters, not 'auth', and a value of text"
                )
        self.reason = ""
        self.done = True

    def first(self) -> bytes:
        """Return the token and the extensions."""
        pairs = {"auth": f"Bearer {self._token}", **self._extensions}
        return ("n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs.items()) + "\x01").encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Keep the reason of a rejection, and answer with the byte 1. Return None for an empty message."""
        if not challenge:
            return None
        if not self.done:
            raise SaslError(f"the server does not end the login after its error: {self.reason}")
        self.reason, self.done = _reason(challenge), False
        return b"\x01"


def _reason(challenge: bytes) -> str:
    """Return the fields of an error message of RFC 7628, or the message as it is."""
    text = challenge.decode(errors="replace")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return shown(text)
    if not isinstance(fields, dict):
        return shown(text)
    return shown(", ".join(f"{name}: {value}" for name, value in fields.items()))


def shown(text: str) -> str:
    """Return a server's text for an error: on one line, and at most MAX_SHOWN characters."""
    line = "".join(each if each.isprintable() else " " for each in text[: MAX_SHOWN + 1])
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}..."
