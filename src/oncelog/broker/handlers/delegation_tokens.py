"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373).

Errors are those of Kafka's `KafkaApis` and `DelegationTokenControlManager`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from oncelog.broker.metadata.delegation_tokens import TokenAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.delegation_tokens import DelegationToken
from oncelog.net.server_options import PLAINTEXT
from oncelog.net.session import ANONYMOUS
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from oncelog.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from oncelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from oncelog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse

USER = "User"
"""The only type of principals that own or renew tokens."""


def _check_channel(ctx: RequestContext) -> None:
    """Raise DELEGATION_TOKEN_REQUEST_NOT_ALLOWED if the client is not identified, or only by a token.

    Otherwise, whoever reads a token on the way could renew it.
    """
    session = ctx.session
    protocol = session.listener.protocol
    if session.token_authenticated or protocol == PLAINTEXT or (protocol == "SSL" and session.principal == ANONYMOUS):
        message = "delegation tokens need a login without a token, or a client certificate"
        raise ProtocolError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, message)


def _principal(kind: str | None, name: str) -> str:
    return f"{kind or ''}:{name}"


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


async def handle_create(
    tokens: TokenAdministration, request: CreateDelegationTokenRequest, ctx: RequestContext
) -> CreateDelegationTokenResponse:
    """Create a token of the client, or of another user with CREATE_TOKENS on that user."""
    requester = ctx.session.principal
    owner = requester
    if request.owner_principal_name:
        owner = _principal(request.owner_principal_type, request.owner_principal_name)
    response = CreateDelegationTokenResponse(issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1)
    response.principal_type, response.principal_name = _parts(owner)
    response.token_requester_principal_type, response.token_requester_principal_name = _parts(requester)
    try:
        _check_channel(ctx)
        if owner != requester and not ctx.allowed(AclOperation.CREATE_TOKENS, AclResource.USER, owner):
            response.error_code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
            return response
        if _parts(owner)[0] != USER or any(each.principal_type != USER for each in request.renewers):
            raise ProtocolError(ErrorCode.INVALID_PRINCIPAL_TYPE, "owners and renewers of tokens must be users")
        renewers = [_principal(each.principal_type, each.principal_name) for each in request.renewers]
        token = await tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except ProtocolError as error:
        response.error_code = error.code
        return response
    response.issue_timestamp_ms, response.expiry_timestamp_ms = token.issued_ms, token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id, response.hmac = token.token_id, tokens.hmac_of(token.token_id)
    return response


async def _changed(ctx: RequestContext, change: Callable[[str], Awaitable[int]]) -> tuple[ErrorCode, int]:
    """Change a token as the client's principal. Return the error, and when the token expires.

    With an error, that time is -1 from Kafka's broker, and 0 from its controller.
    """
    try:
        _check_channel(ctx)
        return ErrorCode.NONE, await change(ctx.session.principal)
    except ProtocolError as error:
        return error.code, -1 if error.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED else 0


async def handle_renew(
    tokens: TokenAdministration, request: RenewDelegationTokenRequest, ctx: RequestContext
) -> RenewDelegationTokenResponse:
    """Let a token expire later. The client must be its owner or one of its renewers."""
    secret, period = bytes(request.hmac), request.renew_period_ms
    code, expires = await _changed(ctx, lambda principal: tokens.renew(principal, secret, period))
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires)


async def handle_expire(
    tokens: TokenAdministration, request: ExpireDelegationTokenRequest, ctx: RequestContext
) -> ExpireDelegationTokenResponse:
    """Let a token expire at another time, or remove it. The client must be its owner or one of its renewers."""
    secret, period = bytes(request.hmac), request.expiry_time_period_ms
    code, expires = await _changed(ctx, lambda principal: tokens.expire(principal, secret, period))
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires)


async def handle_describe(
    tokens: TokenAdministration, request: DescribeDelegationTokenRequest, ctx: RequestContext
) -> DescribeDelegationTokenResponse:
    """Return the tokens that the client may see, with their HMACs: those that it owns or may renew, and others with
    DESCRIBE on the token or DESCRIBE_TOKENS on the owner.

    The owners in the request select the tokens that one of them owns or may renew.
    """
    try:
        _check_channel(ctx)
    except ProtocolError as error:
        return DescribeDelegationTokenResponse(error_code=error.code)
    if not tokens.enabled:
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {_principal(each.principal_type, each.principal_name) for each in request.owners}
    found = []
    yielder = Yielder()
    for token in tuple(tokens.tokens()):
        await yielder.next()
        chosen = owners is None or token.owner in owners or not owners.isdisjoint(token.renewers)
        if chosen and _may_see(token, ctx):
            found.append(_described(token, tokens.hmac_of(token.token_id)))
    return DescribeDelegationTokenResponse(tokens=found)


def _may_see(token: DelegationToken, ctx: RequestContext) -> bool:
    return (
        token.managed_by(ctx.session.principal)
        or ctx.may(AclOperation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id)
        or ctx.may(AclOperation.DESCRIBE_TOKENS, AclResource.USER, token.owner)
    )


def _described(token: DelegationToken, hmac: bytes) -> DescribedDelegationToken:
    kind, name = _parts(token.owner)
    requester_kind, requester = _parts(token.requester)
    return DescribedDelegationToken(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in map(_parts, token.renewers)
        ],
    )


def bind_create(services: HandlerServices) -> Handler:
    """Return the handler of CreateDelegationToken."""
    return partial(handle_create, services.tokens)


def bind_renew(services: HandlerServices) -> Handler:
    """Return the handler of RenewDelegationToken."""
    return partial(handle_renew, services.tokens)


def bind_expire(services: HandlerServices) -> Handler:
    """Return the handler of ExpireDelegationToken."""
    return partial(handle_expire, services.tokens)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeDelegationToken."""
    return partial(handle_describe, services.tokens)
