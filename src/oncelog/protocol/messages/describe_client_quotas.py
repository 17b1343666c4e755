"""DescribeClientQuotas: list quotas by user, client id and address (KIP-546)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, float64, int8, int16, int32, string


class ComponentData(Message):
    """`Components` of DescribeClientQuotasRequest."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable=0)


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible=1):
    """The request."""

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class EntityData(Message):
    """`Entity` of an entry."""

    entity_type: str = string()
    entity_name: str | None = string(nullable=0)


class ValueData(Message):
    """`Values` of an entry."""

    key: str = string()
    value: float = float64()


class EntryData(Message):
    """`Entries` of DescribeClientQuotasResponse."""

    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(Message, api_key=48, versions=(0, 1), flexible=1):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    entries: list[EntryData] | None = array(EntryData, nullable=0)
