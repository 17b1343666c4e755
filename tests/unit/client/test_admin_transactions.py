"""The coordinators' view of transactions, while ids are created and expire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.admin import transactions
from oncelog.client.admin.transactions import TransactionInfo, TransactionListing, coordinated
from oncelog.protocol.errors import ErrorCode

CLUSTER: Any = None
OPEN = [("t", 0), ("t", 1)]


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> dict[str, ErrorCode]:
    """Producer 1 has the transactional ids `a` and `b`. Return the coordinator's errors for them."""
    answers: dict[str, ErrorCode] = {}

    async def listed(cluster: object, *, producer_ids: list[int]) -> list[TransactionListing]:
        assert producer_ids, "all producers of the cluster would be listed"
        return [TransactionListing(name, 1, "Ongoing") for name in ("a", "b") if 1 in producer_ids]

    async def described(cluster: object, name: str) -> TransactionInfo:
        if name in answers:
            raise errors.error_for(answers[name], name)
        return TransactionInfo(name, "Ongoing", 1, 0, 60_000, 0, OPEN[:1] if name == "a" else OPEN[1:])

    monkeypatch.setattr(transactions, "list_transactions", listed)
    monkeypatch.setattr(transactions, "describe_transaction", described)
    return answers


def test_all_ids_of_a_producer_are_described(gone: dict[str, ErrorCode]) -> None:
    assert asyncio.run(coordinated(CLUSTER, [2])) == []
    assert asyncio.run(coordinated(CLUSTER, [])) == []
    assert [info.transactional_id for info in asyncio.run(coordinated(CLUSTER, [1]))] == ["a", "b"]


def test_id_that_expires_between_the_two_requests_is_omitted(gone: dict[str, ErrorCode]) -> None:
    gone["a"] = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert [info.transactional_id for info in asyncio.run(coordinated(CLUSTER, [1]))] == ["b"]


def test_unexpected_error_is_raised(gone: dict[str, ErrorCode]) -> None:
    gone["a"] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(errors.AuthorizationError):
        asyncio.run(coordinated(CLUSTER, [1]))
