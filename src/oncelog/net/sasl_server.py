"""The server's side of the SASL mechanisms, without I/O.

Pass each message of the client to `answer`, which returns the server's next message. The login is complete when
`user` is set. Sources: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM); Kafka's `PlainSaslServer`, `ScramSaslServer`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from oncelog.net.credentials import Secret
from oncelog.net.sasl import MIN_ITERATIONS, SCRAM_HASHES

OTHER_USER = "Authentication failed: Client requested an authorization id that is different from username"


class RejectedLoginError(Exception):
    """The login has failed. The message is for the client, so it does not say which credential is wrong."""


class ServerExchange(Protocol):
    """One login with one mechanism."""

    @property
    def user(self) -> str:
        """The name of the user. It is empty until the login is complete."""

    @property
    def expires_ms(self) -> int | None:
        """When the credentials expire, in ms since 1970, or None if they do not."""

    @property
    def by_token(self) -> bool:
        """Whether the client has logged in with a delegation token."""

    def answer(self, message: bytes) -> bytes:
        """Return the response to a message of the client. Raises RejectedLoginError."""


class PlainServer:
    """The mechanism PLAIN: the client sends user name and password, and the server compares the password."""

    expires_ms = None
    by_token = False

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users
        self.user = ""

    def answer(self, message: bytes) -> bytes:
        """Check the client's only message. Return an empty response. Raises RejectedLoginError."""
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3:
            raise RejectedLoginError("Invalid SASL/PLAIN response: it must be three texts with NUL between them")
        other, user, password = parts
        if not user or not password:
            raise RejectedLoginError("Authentication failed: user name and password must not be empty")
        expected = self._users.get(user)
        same = hmac.compare_digest(password.encode(), (expected or Secret("\0")).value.encode())
        if expected is None or not same:
            raise RejectedLoginError("Authentication failed: Invalid username or password")
        if other not in ("", user):
            raise RejectedLoginError(OTHER_USER)
        self.user = user
        return b""


_KEYS = "salt", "stored_key", "server_key"


class ScramCredential(NamedTuple):
    """What the broker stores instead of a password: it can check a login, but a client cannot log in with it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"

    def encode(self) -> str:
        """Return the credential in the format of Kafka's ZooKeeper nodes (`ScramCredentialUtils`)."""
        texts = [f"{name}={b64encode(getattr(self, name)).decode()}" for name in _KEYS]
        return ",".join([*texts, f"iterations={self.iterations}"])

    @classmethod
    def decode(cls, text: str) -> ScramCredential:
        """Parse the text of `encode`. Raises ValueError, whose message contains nothing of the text."""
        fields = {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
        try:
            salt, stored, server = (
                b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            iterations = int(fields["iterations"])
        except (KeyError, ValueError):
            raise ValueError("it is no SCRAM credential") from None
        if not 1 <= iterations < 2**31:
            raise ValueError("it is no SCRAM credential")
        return cls(salt, stored, server, iterations)


def scram_credential(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential to store for a password. The time that this takes grows with `iterations`."""
    return salted_credential(
        mechanism, hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password.encode(), salt, iterations), salt, iterations
    )


def salted_credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential to store for a password that is already hashed with its salt."""
    name = SCRAM_HASHES[mechanism]
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored, hmac.digest(salted, b"Server Key", name), iterations)


class TokenLogin(NamedTuple):
    """What a server needs for the login with a delegation token. Without such a token, no password matches."""

    credential: ScramCredential
    owner: str
    """The name of the user. It is empty if the token does not exist or has expired."""
    expires_ms: int


_NAME = r"[^,\0]+"
"""Without a check of the escapes, because an expression for them takes 50 ms for a name of 500 KB."""
_FIRST = re.compile(rf"n,(?:a=({_NAME}))?,((?:m=[^,]*,)?n=({_NAME}),r=([\x21-\x2b\x2d-\x7e]+))(?:,(.*))?")
_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^p][^,]*)*),p=([A-Za-z0-9+/=]+)")


def _decoded(name: str) -> str:
    """Return the name of a user without the escapes of SCRAM. Raises RejectedLoginError."""
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        raise RejectedLoginError("Invalid SCRAM client first message")
    return name.replace("=2C", ",").replace("=3D", "=")


class ScramServer:
    """The mechanism SCRAM: client and server prove to each other that they know the password.

    `find` returns the credential of a user, or None. An unknown user's login has the same steps as one with a wrong
    password, and fails at the end. The server derives the salt of an unknown user from `disguise`, a secret of the
    cluster. `find_token` does the same as `find` for the id of a delegation token (KIP-48), which a client sends
    instead of a name with the extension `tokenauth=true`.
    """

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], ScramCredential | None],
        nonce: str,
        disguise: bytes,
        find_token: Callable[[str], TokenLogin | None] = lambda token_id: None,
    ) -> None:
        self._mechanism = mechanism
        self._hash = SCRAM_HASHES[mechanism]
        self._find = find
        self._find_token = find_token
        self._nonce = nonce
        self._disguise = disguise
        self._claimed = self._first = self._bare = ""
        self._credential: ScramCredential | None = None
        self.user = ""
        self.expires_ms: int | None = None
        self.by_token = False

    def answer(self, message: bytes) -> bytes:
        """Return the server-first-message of RFC 5802, then the server-final-message. Raises RejectedLoginError."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise RejectedLoginError("Invalid SASL/SCRAM message: it is not UTF-8") from None
        return self._begin(text) if self._credential is None else self._finish(text, self._credential)

    def _begin(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise RejectedLoginError("Invalid SCRAM client first message")
        if found[2].startswith("m="):
            raise RejectedLoginError("Authentication failed: the client demands an extension that is not supported")
        user = _decoded(found[3])
        if found[1] is not None and _decoded(found[1]) != user:
            raise RejectedLoginError(OTHER_USER)
        self._credential = self._found(user, found[5] or "")
        self._bare = found[2] + ("" if found[5] is None else f",{found[5]}")
        self._nonce = found[4] + self._nonce
        salt = b64encode(self._credential.salt).decode()
        self._first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._first.encode()

    def _found(self, name: str, extensions: str) -> ScramCredential:
        """Return the credential of a user, or of a token with the extension `tokenauth`. Set who would be logged in."""
        options = dict(part.partition("=")[::2] for part in extensions.split(","))
        if options.get("tokenauth", "").lower() != "true":
            self._claimed = name
            return self._find(name) or self._unknown(name)
        self.by_token = True
        token = self._find_token(name)
        if token is None:
            return self._unknown(name)
        self._claimed, self.expires_ms = token.owner, token.expires_ms
        return token.credential

    def _unknown(self, user: str) -> ScramCredential:
        """Return a credential for an unknown user. No password matches it."""
        salt = hmac.digest(self._disguise, f"{self._mechanism} {user}".encode(), "sha256")
        key = hmac.digest(self._disguise, b"key" + user.encode(), self._hash)
        return ScramCredential(salt, key, key, MIN_ITERATIONS)

    def _finish(self, text: str, credential: ScramCredential) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None or found[3] != self._nonce:
            raise RejectedLoginError("Invalid SCRAM client final message")
        try:
            binding, proof = b64decode(found[2], validate=True), b64decode(found[4], validate=True)
        except ValueError:
            raise RejectedLoginError("Invalid SCRAM client final message") from None
        signed = f"{self._bare},{self._first},{found[1]}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        wrong = RejectedLoginError(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            + self._mechanism
        )
        if len(proof) != len(signature) or not binding.startswith(b"n,"):
            raise wrong
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key):
            raise wrong
        if not self._claimed:
            raise wrong
        self.user = self._claimed
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, self._hash))
