"""GetTelemetrySubscriptions and PushTelemetry: the metrics of clients (KIP-714).

Source: Kafka's `ClientMetricsManager`.

They need no permission, as in Kafka. A rejected request is not logged, because each client sends one sooner or later.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.telemetry.instances import Instance, Push
from oncelog.broker.telemetry.telemetry import ACCEPTED_CODECS, Telemetry
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from oncelog.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


def handle_subscriptions(
    telemetry: Telemetry, request: GetTelemetrySubscriptionsRequest, ctx: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    """Return what the client shall push, and its id if it has none."""
    try:
        instance_id, instance = telemetry.subscribe(request.client_instance_id, ctx.client_id, ctx.session)
    except ProtocolError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id(instance_id),
        accepted_compression_types=list(ACCEPTED_CODECS),
        push_interval_ms=instance.wanted.interval_ms,
        telemetry_max_bytes=telemetry.max_bytes,
        delta_temporality=True,
        requested_metrics=list(instance.wanted.metrics),
    )


def handle_push(
    telemetry: Telemetry, request: PushTelemetryRequest, ctx: RequestContext
) -> PushTelemetryResponse | Awaitable[PushTelemetryResponse]:
    """Take the metrics of a client, or return the error."""
    push = Push(
        request.client_instance_id,
        request.subscription_id,
        request.terminating,
        request.compression_type,
        len(request.metrics),
    )
    try:
        instance = telemetry.push(push, ctx.client_id, ctx.session)
    except ProtocolError as error:
        return PushTelemetryResponse(error_code=error.code)
    if telemetry.exported is None or not request.metrics:
        return PushTelemetryResponse()
    return _exported(telemetry, instance, push, request.metrics)


async def _exported(telemetry: Telemetry, instance: Instance, push: Push, metrics: bytes) -> PushTelemetryResponse:
    try:
        await telemetry.export(instance, push, metrics)
    except ProtocolError as error:
        if error.code != ErrorCode.INVALID_RECORD:
            raise
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()


def bind_subscriptions(services: HandlerServices) -> Handler:
    """Return the handler of GetTelemetrySubscriptions."""
    return partial(handle_subscriptions, services.telemetry)


def bind_push(services: HandlerServices) -> Handler:
    """Return the handler of PushTelemetry."""
    return partial(handle_push, services.telemetry)
