"""PushTelemetry: the metrics of a client (KIP-714)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import NO_UUID, Message, boolean, data, int8, int16, int32, uuid


class PushTelemetryRequest(Message, api_key=72, versions=(0, 0), flexible=0):
    """The request. `metrics` is OpenTelemetry's `MetricsData` in protobuf, compressed."""

    client_instance_id: UUID = uuid(default=NO_UUID)
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = data()


class PushTelemetryResponse(Message, api_key=72, versions=(0, 0), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
