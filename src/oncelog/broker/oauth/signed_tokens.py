"""Check signed tokens (JWT) of identity providers: their form, signature and claims. No I/O.

Sources: RFC 7515, RFC 7519, RFC 8725; Kafka's `BrokerJwtValidator`, and the rules of jose4j, which it uses.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from oncelog.broker.config.token_settings import TokenRules
from oncelog.broker.oauth.signing_keys import ALGORITHMS, SigningKeys, UnknownKeyError
from oncelog.net.oauth_server import TokenUser
from oncelog.net.repeated_lines import RepeatedLines

MAX_TOKEN = 131_072
"""The maximum number of characters of a token."""
MAX_HEADER = 8192
"""The maximum number of characters of a token's first part. It is parsed before the signature is checked."""
MAX_KID = 1000
"""The maximum number of characters of a key's id, as in Kafka's `RefreshingHttpsJwks`."""
_MAX_S = 2**63 // 1000 - 1
_PART = re.compile("[A-Za-z0-9_-]+")
_UNFIT = re.compile("[\\x00-\\x1f\\x7f\\ud800-\\udfff]")
"""Characters that would begin a new line in the log, or that UTF-8 cannot encode."""
_NOT_UNDERSTOOD = ("crit", "b64")
"""Header parameters that demand extensions. None is supported, so a token with one must be rejected (RFC 7515)."""


class RejectedTokenError(Exception):
    """The token is not valid. The text has nothing of the token, so it may be logged."""


class Keys(Protocol):
    """Where the keys come from."""

    @property
    def current(self) -> SigningKeys:
        """The newest keys."""

    def request(self) -> None:
        """Get new keys soon, because a token names a key that is unknown. Strangers can cause any number of calls."""


class SignedTokens:
    """The check of the tokens of one listener. `now_ms` returns the wall-clock time."""

    def __init__(self, rules: TokenRules, keys: Keys, now_ms: Callable[[], int], lines: RepeatedLines) -> None:
        self._rules = rules
        self._keys = keys
        self._now_ms = now_ms
        self._lines = lines

    def check(self, token: str) -> TokenUser | None:
        """Return the user of a token, or None if it is not valid. Log why it is not, at a bounded rate."""
        try:
            return self.verify(token)
        except RejectedTokenError as error:
            text = f"a login with OAUTHBEARER was rejected: {error}"
            self._lines.log(f"token: {error}", "OAUTHBEARER", text, level=logging.WARNING)
            return None

    def verify(self, token: str) -> TokenUser:
        """Return the user of a token. Raises RejectedTokenError."""
        if len(token) > MAX_TOKEN:
            raise RejectedTokenError(f"the token has more than {MAX_TOKEN} characters")
        parts = token.split(".")
        if len(parts) != 3:
            raise RejectedTokenError("the token is no signed JWT, which has three parts")
        header_part, payload_part, signature_part = parts
        if len(header_part) > MAX_HEADER:
            raise RejectedTokenError(f"the token's header has more than {MAX_HEADER} characters")
        header = _json_object(_decoded(header_part), "header")
        algorithm, kid = _algorithm(header), _kid(header)
        signed = f"{header_part}.{payload_part}".encode()
        signature = _decoded(signature_part)
        try:
            genuine = self._keys.current.verify(algorithm, kid, signed, signature)
        except UnknownKeyError:
            self._keys.request()
            raise RejectedTokenError(
                "no key of sasl.oauthbearer.jwks.endpoint.url has the id (kid) in the token's header"
            ) from None
        if not genuine:
            raise RejectedTokenError("the token's signature is wrong")
        return claimed_user(_json_object(_decoded(payload_part), "claims"), self._rules, self._now_ms())


def _decoded(part: str) -> bytes:
    """Return the bytes of a part of the token. Reject all but one encoding of the same bytes."""
    content = urlsafe_b64decode(part + "=" * (-len(part) % 4)) if _PART.fullmatch(part) and len(part) % 4 != 1 else b""
    if not content or urlsafe_b64encode(content).rstrip(b"=") != part.encode():
        raise RejectedTokenError("a part of the token is empty, or not base64url")
    return content


def _json_object(content: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(content.decode(), object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RejectedTokenError(f"the token's {what} are no JSON object, or have a name twice")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject a name that is there twice, because programs differ in which of the values they use."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# -- header ---------------------------------------------------------------------------------------------------------


def _algorithm(header: Mapping[str, Any]) -> str:
    algorithm = header.get("alg")
    if not isinstance(algorithm, str):
        raise RejectedTokenError("the token's header names no algorithm")
    if algorithm.lower() == "none":
        raise RejectedTokenError("the token is not signed (algorithm none), so anyone could have made it")
    if algorithm not in ALGORITHMS:
        raise RejectedTokenError(f"the token's algorithm is none of {', '.join(sorted(ALGORITHMS))}")
    if any(name in header for name in _NOT_UNDERSTOOD):
        raise RejectedTokenError("the token's header demands an extension (crit), which is not supported")
    return algorithm


def _kid(header: Mapping[str, Any]) -> str | None:
    if "kid" not in header:
        return None
    kid = header["kid"]
    if not isinstance(kid, str) or len(kid) > MAX_KID:
        raise RejectedTokenError("the id of the key (kid) in the token's header is no text, or too long")
    return kid


# -- claims ---------------------------------------------------------------------------------------------------------


def claimed_user(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> TokenUser:
    """Return the user in the claims of a genuine token. Raises RejectedTokenError.

    Kafka accepts a token that was issued in the future, and control characters in the user's name.
    """
    expires = _seconds(claims, "exp", required=True)
    issued = _seconds(claims, "iat", required=True)
    begins = _seconds(claims, "nbf", required=False)
    now = now_ms // 1000
    if now - rules.clock_skew_s >= expires:
        raise RejectedTokenError("the token has expired")
    if expires < issued or expires < begins:
        raise RejectedTokenError("the token's end (exp) is before its beginning (iat, nbf)")
    if now + rules.clock_skew_s < begins:
        raise RejectedTokenError("the token is not valid yet (nbf)")
    if now + rules.clock_skew_s < issued:
        raise RejectedTokenError("the token was issued in the future (iat)")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise RejectedTokenError("the token's issuer (iss) is not sasl.oauthbearer.expected.issuer")
    _check_audience(claims, rules)
    _check_scope(claims.get(rules.scope_claim), rules.scope_claim)
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip() or _UNFIT.search(user):
        raise RejectedTokenError(f"the token's claim {rules.user_claim} is missing, empty, or no plain text")
    return TokenUser(user.strip(), expires * 1000)


def _seconds(claims: Mapping[str, Any], name: str, *, required: bool) -> int:
    """Return a time in seconds since 1970. Fractions are dropped, as in Kafka. 0 if it is missing."""
    value = claims.get(name)
    if value is None and not required:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_S:
        raise RejectedTokenError(f"the token's claim {name} is missing, or no time")
    return int(value)


def _check_audience(claims: Mapping[str, Any], rules: TokenRules) -> None:
    """Check for whom the token was issued. As in Kafka, a token for others is not valid without a setting, either."""
    found = claims.get("aud")
    if found is None and not rules.audiences:
        return
    audiences = [found] if isinstance(found, str) else found
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise RejectedTokenError("the token's audience (aud) is missing, or no text")
    if not rules.audiences.intersection(audiences):
        raise RejectedTokenError("the token's audience (aud) is not in sasl.oauthbearer.expected.audience")


def _check_scope(scope: Any, name: str) -> None:
    """Check the form of the scope as Kafka does. It has no effect otherwise."""
    scopes = [scope] if isinstance(scope, str) else scope if isinstance(scope, list) else []
    texts = {each.strip() for each in scopes if isinstance(each, str)}
    if len(texts) < len(scopes) or "" in texts:
        raise RejectedTokenError(f"the token's claim {name} has an empty text, or one twice")
