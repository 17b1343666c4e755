"""Create, renew, expire and describe delegation tokens with a `ClusterClient` (KIP-48, KIP-373)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.admin._shared import names
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from oncelog.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from oncelog.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from oncelog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest

_OWNER_VERSION = 3
"""The first version of CreateDelegationToken with an owner."""


@in_notebooks(hide=("hmac",))
class DelegationToken(NamedTuple):
    """A delegation token (Kafka's `DelegationToken` and `TokenInformation`).

    A client logs in with `token_id` as the user name, `hmac` as the password, and `sasl_tokenauth=True`. Principals are
    texts such as "User:alice", times are ms since 1970. The `repr` hides the HMAC.
    """

    token_id: str
    hmac: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def __repr__(self) -> str:
        return f"DelegationToken(token_id={self.token_id!r}, owner={self.owner!r}, expires_ms={self.expires_ms})"


async def create_delegation_token(
    cluster: ClusterClient, *, owner: str | None = None, renewers: str | Iterable[str] = (), max_lifetime_ms: int = -1
) -> DelegationToken:
    """Create a token of this client's user, or of another `owner` (Kafka's CreateDelegationToken).

    `renewers` may renew it, besides the owner. A negative lifetime is the longest that the broker allows. Not all
    brokers may know the token at once. Raises RequestError (DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED if this client has not logged in, or with a token; INVALID_PRINCIPAL_TYPE),
    and AuthorizationError.
    """
    allowed = names(renewers)
    request = CreateDelegationTokenRequest(
        renewers=[
            CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in map(_principal, allowed)
        ],
        max_lifetime_ms=max_lifetime_ms,
    )
    version = None
    if owner is not None:
        request.owner_principal_type, request.owner_principal_name = _principal(owner)
        version = _OWNER_VERSION
    response = await cluster.call_any(request, version)
    raise_for_error(response, "delegation token")
    own = _text(response.principal_type, response.principal_name)
    return DelegationToken(
        response.token_id,
        b64encode(response.hmac).decode(),
        own,
        _text(response.token_requester_principal_type, response.token_requester_principal_name, own),
        tuple(allowed),
        response.issue_timestamp_ms,
        response.expiry_timestamp_ms,
        response.max_timestamp_ms,
    )


async def renew_delegation_token(cluster: ClusterClient, hmac: str, period_ms: int = -1) -> int:
    """Let a token expire `period_ms` after now (Kafka's RenewDelegationToken). Return the time in ms since 1970.

    A negative period is the broker's `delegation.token.expiry.time.ms`. Raises RequestError
    (DELEGATION_TOKEN_NOT_FOUND, _EXPIRED, _OWNER_MISMATCH, and the errors of `create_delegation_token`).
    """
    return await _change(cluster, RenewDelegationTokenRequest(hmac=_bytes(hmac), renew_period_ms=period_ms))


async def expire_delegation_token(cluster: ClusterClient, hmac: str, period_ms: int = -1) -> int:
    """Let a token expire `period_ms` after now (Kafka's ExpireDelegationToken). Return the time in ms since 1970.

    A negative period removes it at once. Sessions that have logged in with the token continue until their end. Raises
    the errors of `renew_delegation_token`.
    """
    return await _change(cluster, ExpireDelegationTokenRequest(hmac=_bytes(hmac), expiry_time_period_ms=period_ms))


async def _change(cluster: ClusterClient, request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest) -> int:
    """Return when the token expires after the change."""
    response = await cluster.call_any(request)
    raise_for_error(response, "delegation token")
    expires: int = response.expiry_timestamp_ms
    return expires


async def describe_delegation_tokens(
    cluster: ClusterClient, owners: str | Iterable[str] | None = None
) -> list[DelegationToken]:
    """Return the tokens that this client may see, oldest first (Kafka's DescribeDelegationToken).

    `owners` selects the tokens that one of these principals owns or may renew. Raises RequestError.
    """
    wanted = None
    if owners is not None:
        pairs = map(_principal, names(owners))
        wanted = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in pairs]
    response = await cluster.call_any(DescribeDelegationTokenRequest(owners=wanted))
    raise_for_error(response, "delegation tokens")
    found = [_token(each) for each in response.tokens]
    return sorted(found, key=lambda token: (token.issued_ms, token.token_id))


def _token(found: DescribedDelegationToken) -> DelegationToken:
    owner = _text(found.principal_type, found.principal_name)
    return DelegationToken(
        found.token_id,
        b64encode(found.hmac).decode(),
        owner,
        _text(found.token_requester_principal_type, found.token_requester_principal_name, owner),
        tuple(_text(each.principal_type, each.principal_name) for each in found.renewers),
        found.issue_timestamp,
        found.expiry_timestamp,
        found.max_timestamp,
    )


def _text(kind: str, name: str, absent: str = "") -> str:
    """Return a principal as text, or `absent` if the version of the response has none."""
    return f"{kind}:{name}" if kind or name else absent


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise errors.ConfigError(f"a principal is TYPE:NAME, such as User:alice, not {text!r}")
    return kind, name


def _bytes(hmac: Any) -> bytes:
    """Return the bytes of an HMAC in base64. Raises ConfigError, which does not show it."""
    try:
        return b64decode(hmac, validate=True)
    except (ValueError, TypeError):
        raise errors.ConfigError("the HMAC of a delegation token must be text in base64") from None
