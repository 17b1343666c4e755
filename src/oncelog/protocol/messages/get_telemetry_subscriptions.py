"""GetTelemetrySubscriptions: which metrics a client shall push, and how often (KIP-714)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import NO_UUID, Message, array, boolean, int16, int32, uuid


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions=(0, 0), flexible=0):
    """The request. A client without an id sends NO_UUID, and gets one."""

    client_instance_id: UUID = uuid(default=NO_UUID)


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions=(0, 0), flexible=0):
    """The response. Without metrics, the client pushes none; the metric `*` stands for all of them."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: UUID = uuid(default=NO_UUID)
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array("int8")
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array("string")
