"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152). `oncelog.broker.logins` has their states."""

from __future__ import annotations

from oncelog.broker.logins import Login
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle_handshake(request: SaslHandshakeRequest, ctx: RequestContext) -> SaslHandshakeResponse:
    """Choose the mechanism, or return ILLEGAL_SASL_STATE if the listener has no logins."""
    login = ctx.session.login
    if not isinstance(login, Login):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return login.handshake(request, ctx.api_version)


def handle_authenticate(request: SaslAuthenticateRequest, ctx: RequestContext) -> SaslAuthenticateResponse:
    """Take a message of the login, or return ILLEGAL_SASL_STATE if the listener has no logins."""
    login = ctx.session.login
    if not isinstance(login, Login):
        text = "SaslAuthenticate request received on a listener without logins"
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
    return login.authenticate(request)


def bind_handshake(_services: HandlerServices) -> Handler:
    """Return the handler of SaslHandshake."""
    return handle_handshake


def bind_authenticate(_services: HandlerServices) -> Handler:
    """Return the handler of SaslAuthenticate."""
    return handle_authenticate
