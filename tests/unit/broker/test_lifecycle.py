"""The order in which a broker's parts start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from oncelog.broker.lifecycle import Lifecycle
from oncelog.broker.storage.all_logs import AllLogs

COROUTINES = {
    "member": ("enter", "register", "registration.opened", "hand_over", "leave"),
    "network": ("bind", "serve", "close"),
    "logs": ("open_suspects", "open_all", "close"),
    "coordinators": ("load",),
    "workers": ("close",),
}


def parts_of_a_broker(*, is_bound: bool = True) -> Mock:
    parts = Mock()
    parts.configure_mock(**{f"{part}.{name}": AsyncMock() for part, names in COROUTINES.items() for name in names})
    parts.network.is_bound = is_bound
    return parts


def lifecycle(parts: Mock) -> Lifecycle:
    return Lifecycle(*(getattr(parts, name) for name in Lifecycle._fields))


def calls(parts: Mock) -> list[str]:
    return [name for name, _, _ in parts.mock_calls if "__" not in name]


def test_broker_accepts_requests_after_its_registration_and_may_be_elected_after_its_logs_are_open() -> None:
    parts = parts_of_a_broker()
    background: list[Coroutine[Any, Any, None]] = []
    parts.workers.spawn = Mock(side_effect=lambda work, name: background.append(work))

    async def life() -> None:
        await lifecycle(parts).start(AsyncMock(side_effect=parts.prepare))
        await background.pop()

    asyncio.run(life())
    assert calls(parts) == [
        *("member.enter", "network.bind", "logs.suspects", "member.register", "prepare", "network.serve"),
        *("in_sync.start", "workers.spawn", "logs.start_upkeep"),
        *("logs.open_suspects", "member.registration.opened", "coordinators.load", "logs.open_all"),
    ]


CLOSED = ["network.close", "workers.close", "member.leave", "coordinators.close", "logs.close"]
"""No task appends when the session ends, and the logs are closed when no other broker counts on this one."""


@pytest.mark.parametrize(
    ("is_bound", "together", "first"),
    [
        (True, False, ["member.hand_over"]),
        (True, True, ["member.controller.close", "in_sync.close"]),
        (False, False, []),
    ],
    ids=["alone", "with all brokers", "before its ports were bound"],
)
def test_broker_that_stops(*, is_bound: bool, together: bool, first: list[str]) -> None:
    parts = parts_of_a_broker(is_bound=is_bound)
    asyncio.run(lifecycle(parts).stop(together=together))
    assert calls(parts) == first + CLOSED


def test_directory_is_marked_as_clean_after_the_store_knows_what_the_next_start_must() -> None:
    directory = Mock(online=True, at_stop={})
    parts = Mock()
    parts.partitions.close = AsyncMock(return_value=[directory])
    parts.partitions.checkpoints.write = AsyncMock(return_value={directory})
    parts.partitions.opened.return_value = ()
    parts.note = AsyncMock()
    parts.attach_mock(directory.mark_clean, "mark_clean")
    logs = AllLogs(parts.directories, parts.partitions, Mock(), Mock(), Mock())
    asyncio.run(logs.close(parts.note))
    assert calls(parts) == [
        *("partitions.close", "partitions.checkpoints.write", "directories.end_generations"),
        *("note", "partitions.opened", "mark_clean"),
    ]
