"""AlterClientQuotas: set or remove quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, float64, int16, int32, string


class QuotaEntityPart(Message):
    """`Entity` of an entry: one type, and its name. The name of a default is None."""

    entity_type: str = string()
    entity_name: str | None = string(nullable=0)


class QuotaOperation(Message):
    """`Ops` of an entry of AlterClientQuotasRequest. The value of a quota to remove is ignored."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class QuotaAlteration(Message):
    """`Entries` of AlterClientQuotasRequest."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart)
    ops: list[QuotaOperation] = array(QuotaOperation)


class AlterClientQuotasRequest(Message, api_key=49, versions=(0, 1), flexible=1):
    """The request."""

    entries: list[QuotaAlteration] = array(QuotaAlteration)
    validate_only: bool = boolean()


class QuotaAlterationResult(Message):
    """`Entries` of AlterClientQuotasResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    entity: list[QuotaEntityPart] = array(QuotaEntityPart)


class AlterClientQuotasResponse(Message, api_key=49, versions=(0, 1), flexible=1):
    """The response."""

    throttle_time_ms: int = int32()
    entries: list[QuotaAlterationResult] = array(QuotaAlterationResult)
