"""The budget for answers that clients have not read."""

from __future__ import annotations

import asyncio
import mmap
import socket

import pytest

from oncelog.net.pieces import needs_join
from oncelog.net.server import Session
from oncelog.net.unsent import LEAST, LEAST_AT_ONCE, Unsent
from support.sockets import Client, both_loops, framed, run, serving
from support.turns import until

MB = 1 << 20


def test_answer_gets_half_of_the_remaining_budget_and_at_least_the_minimum() -> None:
    unsent = Unsent(64 * MB, copies=False)
    rooms = []
    for _ in range(100):
        rooms.append(unsent.available())
        unsent.bytes += rooms[-1]
    assert rooms[:3] == [32 * MB, 16 * MB, 8 * MB]
    assert rooms[-1] == LEAST
    assert unsent.bytes < 64 * MB + 100 * LEAST
    assert Unsent(-1, copies=False).available() > 1 << 60
    assert Unsent(0, copies=False).available() == LEAST


def test_concurrent_answers_share_the_budget() -> None:
    unsent = Unsent(64 * MB, copies=False)
    sessions = [Session() for _ in range(30)]
    growing = set(sessions)
    while growing:
        for session in tuple(growing):
            if unsent.available(session.draft) <= 0:
                growing.discard(session)
            else:
                unsent.draft(session, 50_000)
    made = [session.draft for session in sessions]
    assert unsent.bytes == sum(made) < 64 * MB + 30 * 2 * LEAST
    assert min(made) >= LEAST
    for session in sessions:
        unsent.drop_draft(session)
    assert unsent.bytes == 0


class Reader:
    """A client that reads nothing."""

    def __init__(self, unsent: Unsent) -> None:
        self.unsent = unsent
        self.session = Session()
        self.aborted = False

    def abort_unread(self) -> None:
        self.aborted = True
        self.unsent.all_read(self)


def test_copies_of_the_size_that_a_fetch_may_always_read_count_towards_the_limit() -> None:
    """A follower's Fetch gets a copy of up to 1 MiB, however much is unread. A stranger can pretend to be one."""
    unsent = Unsent(64 * MB, copies=False)
    small = Reader(unsent)
    unsent.add_unread(small, LEAST)
    readers = [Reader(unsent) for _ in range(300)]
    for reader in readers:
        unsent.add_unread(reader, LEAST_AT_ONCE)
        assert unsent.bytes <= 2 * 64 * MB + LEAST_AT_ONCE
    assert not small.aborted
    assert not any(reader.aborted for reader in readers[-100:])
    assert [reader.aborted for reader in readers] == sorted((reader.aborted for reader in readers), reverse=True)


def test_pages_of_files_take_no_memory_unless_they_are_copied() -> None:
    pages = memoryview(mmap.mmap(-1, 8192))[100:]
    for copies, expected in ((False, 0), (True, len(pages))):
        unsent = Unsent(MB, copies=copies)
        assert unsent.taken_by(pages, Session()) == expected
        assert unsent.taken_by(b"abc", Session()) == 3
        assert unsent.taken_by(memoryview(b"abc")[1:], Session()) == 2


@both_loops
@pytest.mark.parametrize("reads", [False, True])
def test_unread_answers_count_until_they_are_read_or_the_client_disconnects(loop: str, reads: bool) -> None:
    size = 20 * MB

    def handler(frame: memoryview, session: Session) -> list[bytes | memoryview]:
        return [bytes(size)] if frame == b"large" else [b"small"]

    async def body() -> None:
        async with serving(handler) as server:
            clients = [await Client.connect(server) for _ in range(3)]
            for client in clients[1:]:
                await client.send(framed(b"large"))
            await until(lambda: server.unsent.bytes >= 2 * size)
            assert server.unsent.bytes < 2 * size + 100
            await clients[0].send(framed(b"small"))
            assert await clients[0].answer() == b"small"
            assert server.unsent.bytes >= 2 * size
            for left, client in zip((1, 0), clients[1:], strict=True):
                if reads:
                    assert len(await client.answer()) == size
                else:
                    client.close()
                await until(lambda left=left: left * size <= server.unsent.bytes < left * size + 100)
            assert server.unsent.bytes == 0

    run(loop, body)


@both_loops
def test_connections_far_above_the_budget_are_closed(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    """For answers outside the budget, the server closes the connections unread the longest, not those that read."""
    size = 8 * MB

    def handler(frame: memoryview, session: Session) -> list[bytes | memoryview]:
        return [bytes(10 * size if frame == b"largest" else size)]

    async def body() -> None:
        async with serving(handler, Unsent(60 * MB, copies=needs_join(asyncio.get_running_loop()))) as server:
            reader = await Client.connect(server)
            first = await Client.connect(server)
            await first.send(framed(b"largest"))
            await until(lambda: server.unsent.bytes >= 10 * size)
            others = [await Client.connect(server) for _ in range(30)]
            for client in others:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
                await client.send(framed(b"large"))
                await reader.send(framed(b"large"))
                assert len(await reader.answer()) == size
                assert server.unsent.bytes <= 120 * MB
            await until(lambda: len(server.connections) < 31)
            server.lines._end("unread responses")

    with caplog.at_level("WARNING", "oncelog.net"):
        run(loop, body)
    closed = [record.getMessage() for record in caplog.records if "unread" in record.getMessage()]
    assert f"{10 * size} bytes" in closed[0].replace(str(10 * size + 4), str(10 * size))
    assert any("more in 1 s" in line for line in closed[1:]) or len(closed) == 2
