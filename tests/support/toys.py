"""Small services for the tests of the simulation: a line in, a line out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from oncelog.sim.world import World

PORT = 7


async def serve(host: str, answer: Callable[[str], Awaitable[str]]) -> None:
    """Serve lines. Each connection gets its answers in order. An answer that raises ends its connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    writer.write(f"{await answer(line.decode().strip())}\n".encode())
                    await writer.drain()
        finally:
            writer.close()

    await asyncio.start_server(talk, host, PORT)


class Caller:
    """A connection to a service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, host: str) -> Caller:
        return cls(*await asyncio.open_connection(host, PORT))

    def send(self, line: str) -> None:
        self._writer.write(f"{line}\n".encode())

    async def receive(self) -> str:
        """Raises ConnectionResetError if the connection has ended."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection has ended")
        return line.decode().strip()

    def close(self) -> None:
        self._writer.close()


async def call(host: str, line: str, timeout_s: float = 1000.0) -> str:
    """Send one line over a new connection. Raises TimeoutError and ConnectionError."""
    async with asyncio.timeout(timeout_s):
        caller = await Caller.connect(host)
        try:
            caller.send(line)
            return await caller.receive()
        finally:
            caller.close()


def run(scenario: Callable[[World], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    return World(seed).run(scenario, limit_s=3600)


def twice(scenario: Callable[[World], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    """Run a scenario two times, check that the worlds are equal, and return its result."""
    worlds = [World(seed), World(seed)]
    results = [world.run(scenario, limit_s=3600) for world in worlds]
    assert results[0] == results[1]
    assert worlds[0].trace == worlds[1].trace
    assert worlds[0].digest() == worlds[1].digest()
    return results[0]
