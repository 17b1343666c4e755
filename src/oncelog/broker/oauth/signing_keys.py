"""The public keys with which identity providers' tokens are checked (RFC 7517, RFC 7518, RFC 8037), without I/O.

This module needs the package joserfc.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry
from joserfc.jws import JWSRegistry

ALGORITHMS = frozenset(
    {
        *("RS256", "RS384", "RS512"),
        *("PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512"),
        *("EdDSA", "Ed25519", "Ed448"),
    }
)
"""Only asymmetric algorithms: with others, everyone who can check a token can also forge one."""
MAX_KEYS = 200
MAX_TRIED = 4
"""How many keys are tried for a token that does not name its key."""
RSA_BITS = range(2048, 8193)
_KINDS = ("RSA", "EC", "OKP")
_UNUSABLE = (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, OverflowError)
"""What joserfc raises for a damaged or unknown key."""


class UnknownKeyError(Exception):
    """No key has the id in the token's header."""


class _Key(NamedTuple):
    """A key, with its id, and the only algorithm for which it may be used. Both may be absent."""

    kid: str | None
    algorithm: str | None
    key: Any


class SigningKeys:
    """A set of keys. It never changes."""

    def __init__(self, keys: Sequence[_Key], skipped: int) -> None:
        self._keys = tuple(keys)
        self.skipped = skipped
        """The number of keys in the document that cannot be used: symmetric, too short, damaged or for encryption."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SigningKeys:
        """Return the keys of a JSON Web Key Set. Skip keys that cannot be used. Raises ValueError if it is no set."""
        found = document.get("keys")
        if not isinstance(found, list):
            raise ValueError("the content is no JSON Web Key Set, because it has no list 'keys'")
        if len(found) > MAX_KEYS:
            raise ValueError(f"the key set has {len(found)} keys; at most {MAX_KEYS} are allowed")
        usable = [key for key in map(_usable, found) if key is not None]
        return cls(usable, len(found) - len(usable))

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, algorithm: str, kid: str | None, signed: bytes, signature: bytes) -> bool:
        """Return whether a key with this id has made the signature. Raises UnknownKeyError.

        Without an id, try the keys that the algorithm can use. `algorithm` is one of ALGORITHMS.
        """
        model = JWSRegistry.algorithms[algorithm]
        named = [each for each in self._keys if kid is None or each.kid == kid]
        if not named:
            raise UnknownKeyError
        tried = 0
        for each in named:
            if each.algorithm not in (None, algorithm) or tried == MAX_TRIED:
                continue
            try:
                model.check_key(each.key)
                tried += 1
                if model.verify(signed, signature, each.key):
                    return True
            except _UNUSABLE:  # the key is of another type, or cannot be used so
                continue
        return False


def _usable(data: Any) -> _Key | None:
    """Return a key for signatures, or None if it cannot be used."""
    if not isinstance(data, dict) or data.get("use") not in (None, "sig"):
        return None
    if "key_ops" in data and (not isinstance(data["key_ops"], list) or "verify" not in data["key_ops"]):
        return None
    kind = data.get("kty")
    if kind not in _KINDS:
        return None
    try:
        if kind == "RSA" and _bits(data["n"]) not in RSA_BITS:  # joserfc would only print a warning
            return None
        key = JWKRegistry.import_key(data)
    except _UNUSABLE:
        return None
    return _Key(key.kid, key.alg, key)


def _bits(number: str) -> int:
    return int.from_bytes(urlsafe_b64decode(number + "=" * (-len(number) % 4))).bit_length()
