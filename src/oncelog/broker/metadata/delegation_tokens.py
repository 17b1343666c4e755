"""Create, renew, expire and remove delegation tokens, and find the token of a login (KIP-48).

The password of a token is the HMAC of its id with `delegation.token.secret.key`, as base64. Source: Kafka's
`DelegationTokenControlManager` and `DelegationTokenManager`.
"""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.workers import Runtime
from oncelog.cluster import delegation_tokens
from oncelog.cluster.delegation_tokens import DelegationToken
from oncelog.cluster.image import MetadataCache
from oncelog.net.sasl import MIN_ITERATIONS, SCRAM_HASHES
from oncelog.net.sasl_server import ScramCredential, TokenLogin, scram_credential
from oncelog.protocol.errors import ErrorCode, ProtocolError

MOST_TOKENS = 10_000
"""The maximum number of tokens of a cluster."""
MOST_OF_REQUESTER = 1_000
"""The maximum number of tokens that one principal has created."""
MOST_RENEWERS = 100
"""The maximum number of renewers of a token."""
LONGEST_PRINCIPAL = 1_000
"""The maximum length of the principals of a token, in characters."""
_HASH = "sha512"
_Changed = Callable[[DelegationToken, int], DelegationToken | None]
"""Return a token after a change at a time, None to remove it. Raises ProtocolError."""


class TokenAdministration:
    """Carry out the changes of tokens that clients request."""

    def __init__(self, loader: MetadataLoader, cache: MetadataCache, config: DynamicConfig, runtime: Runtime) -> None:
        self._loader = loader
        self._cache = cache
        self._config = config.static
        self._workers = runtime.workers
        self._random_bits = runtime.random_bits
        self._logger = runtime.logger
        self.now_ms = runtime.now_ms
        """The wall-clock time."""
        self._key = config.static.delegation_token_secret_key.value.encode()
        self._indexed: Mapping[str, DelegationToken] = {}
        self._by_hmac: dict[bytes, str] = {}
        self._hmacs: dict[str, bytes] = {}
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """By mechanism and id. Each takes thousands of hashes, so a login does not compute it again."""

    @property
    def enabled(self) -> bool:
        """Whether the broker has a key."""
        return bool(self._key)

    def start(self) -> None:
        """Remove expired tokens in the background, while this broker is the controller."""
        if self.enabled:
            self._workers.spawn(self._remove_expired(), "remove expired delegation tokens")

    # -- look up ----------------------------------------------------------------------------------------------------

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC of a token. Its base64 is the password."""
        return hmac.digest(self._key, token_id.encode(), _HASH)

    def tokens(self) -> Collection[DelegationToken]:
        """Return all tokens, also those that have expired but are not removed yet."""
        return self._cache.image.tokens.values()

    def find(self, secret: bytes) -> DelegationToken | None:
        """Return the token with this HMAC, or None."""
        self._refresh_index()
        token_id = self._by_hmac.get(secret)
        return None if token_id is None else self._indexed.get(token_id)

    def login(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return what a login with a token needs. None: the broker has no key.

        The login with a token that does not exist, or that has expired, takes the same steps, with the same salt. No
        password matches it.
        """
        if not self.enabled:
            return None
        self._refresh_index()
        salt = hmac.digest(self._key, f"salt {mechanism} {token_id}".encode(), "sha256")[:24]
        token = self._indexed.get(token_id)
        if token is None or token.expired(self.now_ms()):
            key = hmac.digest(self._key, f"no token {mechanism} {token_id}".encode(), SCRAM_HASHES[mechanism])
            return TokenLogin(ScramCredential(salt, key, key, MIN_ITERATIONS), "", 0)
        credential = self._credentials.get((mechanism, token_id))
        if credential is None:
            password = b64encode(self.hmac_of(token_id)).decode()
            credential = scram_credential(mechanism, password, salt, MIN_ITERATIONS)
            self._credentials[mechanism, token_id] = credential
        return TokenLogin(credential, token.owner.partition(":")[2], min(token.expires_ms, token.max_ms))

    def _refresh_index(self) -> None:
        """Adapt the indexes to the tokens of the newest image."""
        tokens = self._cache.image.tokens
        if tokens is self._indexed:
            return
        for gone in self._hmacs.keys() - tokens.keys():
            del self._by_hmac[self._hmacs.pop(gone)]
            for mechanism in SCRAM_HASHES:
                self._credentials.pop((mechanism, gone), None)
        for new in tokens.keys() - self._hmacs.keys():
            self._hmacs[new] = made = self.hmac_of(new)
            self._by_hmac[made] = new
        self._indexed = tokens

    # -- change -----------------------------------------------------------------------------------------------------

    async def create(
        self, owner: str, requester: str, renewers: Collection[str], max_lifetime_ms: int
    ) -> DelegationToken:
        """Create a token. A lifetime of 0 or less is the longest that the settings allow.

        Raises DELEGATION_TOKEN_AUTH_DISABLED, POLICY_VIOLATION if there are too many, and REQUEST_TIMED_OUT.
        """
        self._check_enabled()
        if len(renewers) > MOST_RENEWERS:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"a token has at most {MOST_RENEWERS} renewers")
        if any(len(each) > LONGEST_PRINCIPAL for each in (owner, requester, *renewers)):
            message = f"the principals of a token have at most {LONGEST_PRINCIPAL} characters"
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
        lifetime = self._config.delegation_token_max_lifetime_ms
        if max_lifetime_ms > 0:
            lifetime = min(lifetime, max_lifetime_ms)
        async with self._loader.changing_newest("delegation token") as log:
            self._check_number(requester)
            now = self.now_ms()
            last = _sum(now, lifetime)
            expires = min(last, _sum(now, self._config.delegation_token_expiry_time_ms))
            token = DelegationToken(self._new_id(), owner, requester, tuple(renewers), now, last, expires)
            await self._workers.write_store(delegation_tokens.create, log, token)
        self._logger.info("%s has created delegation token %s of %s", requester, token.token_id, owner)
        return token

    def _new_id(self) -> str:
        """Return a random id of 22 characters, as Kafka's, which does not begin with a hyphen."""
        while True:
            token_id = urlsafe_b64encode(self._random_bits(128).to_bytes(16, "big")).decode().rstrip("=")
            if not token_id.startswith("-"):
                return token_id

    def _check_number(self, requester: str) -> None:
        tokens = self.tokens()
        if len(tokens) >= MOST_TOKENS:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"a cluster has at most {MOST_TOKENS} delegation tokens")
        if sum(each.requester == requester for each in tokens) >= MOST_OF_REQUESTER:
            message = f"a principal can have at most {MOST_OF_REQUESTER} delegation tokens that it has created"
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)

    async def renew(self, principal: str, secret: bytes, period_ms: int) -> int:
        """Let a token expire `period_ms` after now, at most the time in the settings. Return when it expires.

        A period of 0 or less is that time. Raises DELEGATION_TOKEN_AUTH_DISABLED, _NOT_FOUND, _EXPIRED,
        _OWNER_MISMATCH, and REQUEST_TIMED_OUT.
        """
        longest = self._config.delegation_token_expiry_time_ms
        period = min(longest, period_ms) if period_ms > 0 else longest

        def changed(token: DelegationToken, now: int) -> DelegationToken:
            _check_life(token, now)
            _check_manager(token, principal)
            return _until(token, now, period)

        return await self._change(principal, "renewed", secret, changed)

    async def expire(self, principal: str, secret: bytes, period_ms: int) -> int:
        """Let a token expire `period_ms` after now, or remove it if that is negative. Return when it expires.

        Raises the errors of `renew`.
        """

        def changed(token: DelegationToken, now: int) -> DelegationToken | None:
            _check_manager(token, principal)
            if period_ms < 0:
                return None
            _check_life(token, now)
            return _until(token, now, period_ms)

        return await self._change(principal, "removed" if period_ms < 0 else "shortened", secret, changed)

    async def _change(self, principal: str, what: str, secret: bytes, changed: _Changed) -> int:
        self._check_enabled()
        expires = 0
        missing = ProtocolError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no token has this HMAC")
        async with self._loader.changing_newest("delegation token") as log:
            found = self.find(secret)
            if found is None:
                raise missing

            def wanted(token: DelegationToken) -> DelegationToken | None:
                nonlocal expires
                now = self.now_ms()
                after = changed(token, now)
                expires = now if after is None else after.expires_ms
                return after

            if await self._workers.write_store(delegation_tokens.change, log, found.token_id, wanted) is None:
                raise missing
        self._logger.info("%s has %s delegation token %s of %s", principal, what, found.token_id, found.owner)
        return expires

    def _check_enabled(self) -> None:
        if not self.enabled:
            message = "delegation tokens are disabled, because delegation.token.secret.key is not set"
            raise ProtocolError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, message)

    # -- expiry -----------------------------------------------------------------------------------------------------

    async def _remove_expired(self) -> None:
        while True:
            await asyncio.sleep(self._config.delegation_token_expiry_check_interval_ms / 1000)
            image = self._cache.image
            if image.controller != self._config.node_id:
                continue
            for token in [each for each in image.tokens.values() if each.expired(self.now_ms())]:
                try:
                    await self._remove(token)
                except ProtocolError as error:
                    self._logger.warning("cannot remove expired delegation tokens: %s. Retrying later", error)
                    break

    async def _remove(self, token: DelegationToken) -> None:
        """Remove a token if it has expired. Another broker may have renewed it before it has expired."""

        def wanted(found: DelegationToken) -> DelegationToken | None:
            return None if found.expired(self.now_ms()) else found

        async with self._loader.changing() as log:
            await self._workers.write_store(delegation_tokens.change, log, token.token_id, wanted)
        self._logger.info("removed expired delegation token %s of %s", token.token_id, token.owner)


def _check_life(token: DelegationToken, now_ms: int) -> None:
    if token.expired(now_ms):
        raise ProtocolError(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {token.token_id} has expired")


def _until(token: DelegationToken, now_ms: int, period_ms: int) -> DelegationToken:
    """Return a token that expires after a period, at the latest at its last time."""
    return replace(token, expires_ms=min(token.max_ms, _sum(now_ms, period_ms)))


def _check_manager(token: DelegationToken, principal: str) -> None:
    if not token.managed_by(principal):
        message = f"{principal} is neither the owner nor a renewer of token {token.token_id}"
        raise ProtocolError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, message)


def _sum(now_ms: int, duration_ms: int) -> int:
    """Return a time as a 64-bit number."""
    return min(2**63 - 1, now_ms + duration_ms)
