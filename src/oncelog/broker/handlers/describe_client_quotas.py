"""DescribeClientQuotas (KIP-546): this broker has no quotas. Source: Kafka's `ClientQuotasImage.describe`."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_IP = "ip"
_ENTITY_TYPES = frozenset({"user", "client-id", _IP})
_EXACT, _DEFAULT, _SPECIFIED = range(3)
"""The ways in which a component of the filter matches an entity's name."""


def handle(request: DescribeClientQuotasRequest, ctx: RequestContext) -> DescribeClientQuotasResponse:
    """Return no entries, or the error of a filter that Kafka would reject."""
    ctx.authorize(AclOperation.DESCRIBE_CONFIGS, *CLUSTER)
    try:
        _check(request.components)
    except ProtocolError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    return DescribeClientQuotasResponse()


def _check(components: Iterable[ComponentData]) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_VERSION for a filter that is not valid."""
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in seen:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _ENTITY_TYPES:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        _check_match(component)
        seen.add(kind)
    if _IP in seen and len(seen) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )


def _check_match(component: ComponentData) -> None:
    if component.match_type == _EXACT:
        if component.match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    elif component.match_type not in (_DEFAULT, _SPECIFIED):
        raise _invalid(f"Unknown match type {component.match_type}")
    elif component.match is not None:
        kind = "DEFAULT" if component.match_type == _DEFAULT else "SPECIFIED"
        raise _invalid(f"Request specified MATCH_TYPE_{kind}, but also specified a match string.")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def bind(_services: HandlerServices) -> Handler:
    """Return the handler of DescribeClientQuotas."""
    return handle
