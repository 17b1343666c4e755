"""Requests that a coordinator rejects or cannot answer, and requests whose clients disconnect."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.coordinator.effects import Effects, Reply
from oncelog.log.config import LogConfig
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.shell_fixtures import BrokerStub, Remembering, record, say


class Held:
    """Represents the bytes of a request. Unlike bytes, it can be weakly referenced."""


def ask(
    shell: CoordinatorShell[Remembering], effects: Callable[[Any], Effects], **how: Any
) -> tuple[asyncio.Task[object], weakref.ref[Held]]:
    """Send a request that holds something, as a handler does. Return its outcome, and a reference to what it holds."""
    held = Held()

    async def handler(held: Held) -> object:
        def operation(shard: Remembering, token: Any) -> Effects:
            assert held
            return effects(token)

        try:
            return await shell.request(0, operation, **how)
        except ProtocolError as error:
            return error.code

    return asyncio.ensure_future(handler(held)), weakref.ref(held)


def test_rejected_requests_are_released_without_the_garbage_collector() -> None:
    """One rejected record answers all members of a group, and so does a coordinator that resigns."""
    stub = BrokerStub(LogConfig(max_message_bytes=300))
    tokens: list[Any] = []

    def wait(token: Any) -> Effects:
        tokens.append(token)
        return Effects()

    def answer_all(token: Any) -> Effects:
        return Effects(records=[record("x" * 240, 2)], replies=[Reply(each, "done") for each in (*tokens, token)])

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        asked = [ask(shell, wait), ask(shell, wait)]
        await asyncio.sleep(0)
        asked.append(ask(shell, answer_all))
        assert await asyncio.gather(*(task for task, _ in asked)) == 3 * [ErrorCode.MESSAGE_TOO_LARGE]
        asked += [ask(shell, wait), ask(shell, wait)]
        await asyncio.sleep(0)
        shell.terms.resign(0)
        assert await asyncio.gather(*(task for task, _ in asked[3:])) == 2 * [ErrorCode.NOT_COORDINATOR]
        references = [reference for _, reference in asked]
        del asked
        await asyncio.sleep(0)
        assert [reference() for reference in references] == 5 * [None]
        assert len(tokens) == 4  # a group may keep the token of a member that waited

    gc.disable()
    try:
        stub.run(life)
    finally:
        gc.enable()


def test_request_is_released_when_its_client_disconnects() -> None:
    stub = BrokerStub()
    tokens: list[Any] = []

    def wait(token: Any) -> Effects:
        tokens.append(token)
        return Effects()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        session = Session()
        task, reference = ask(shell, wait, session=session)
        await asyncio.sleep(0)
        session.disconnected()
        assert await task is None
        del task
        await asyncio.sleep(0)
        assert reference() is None
        assert not session.waiting
        reply = Effects(records=[record("t", 1)], replies=[Reply(tokens[0], "late")])
        shell.apply(0, reply)
        assert stub.log.log_end_offset == 1

    gc.disable()
    try:
        stub.run(life)
    finally:
        gc.enable()


def test_record_that_cannot_be_encoded_returns_an_error() -> None:
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        with pytest.raises(ProtocolError) as caught:
            await asyncio.wait_for(shell.request(0, say("done", record("t" * 40_000, 1))), 60)
        assert caught.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await shell.request(0, say("done", record("t", 1))) == "done"

    stub.run(life)
