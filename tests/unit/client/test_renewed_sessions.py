"""A producer while its connection logs in again (KIP-368), against a minimal server."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.client.producer.buffer import NoRoomError
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.options import producer_options
from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import ConnectionLostError
from oncelog.net.sasl import Exchange, Plain
from oncelog.net.security import Security
from support.login_server import LoginServer
from support.model_cluster import FINE, ModelCluster


class SlowLogin:
    """The second login fails once `gate` is set."""

    mechanism = "PLAIN"

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()

    async def begin(self) -> Exchange:
        self.begun += 1
        if self.begun == 2:
            await self.gate.wait()
            raise ConnectionLostError("the token endpoint does not answer")
        return Plain("alice", "secret")


class Connected(ModelCluster):
    """A cluster whose broker is a `LoginServer`."""

    def __init__(self, port: int) -> None:
        super().__init__(1, lambda: FINE, version=2)
        self.port = port
        self.made: ClientConnection | None = None
        self.login = SlowLogin()
        self.security = Security("SASL_PLAINTEXT", None, self.login)

    def open_connection(self, node: int, purpose: str = "") -> ClientConnection | None:  # type: ignore[override]
        return None if self.made is None or self.made.closed else self.made

    async def connection(self, node: int, purpose: str = "") -> ClientConnection:  # type: ignore[override]
        self.made = await connect("127.0.0.1", self.port, security=self.security)
        return self.made


def test_record_with_acks_0_is_reported_as_delivered_only_after_it_is_written() -> None:
    server = LoginServer("PLAIN", lifetime_ms=1000)

    async def body(port: int) -> None:
        loop = asyncio.get_running_loop()
        cluster = Connected(port)
        options = producer_options(None, {"bootstrap_servers": "model:1", "acks": 0, "linger_ms": 0})
        core = ProducerCore(options, loop, cluster=cluster)  # type: ignore[arg-type]
        await core.learn_topic("t")
        core.buffer.append("t", b"first", None, 0, 0, ())
        await core.flush(10_000)
        await asyncio.sleep(1)
        during = core.buffer.append("t", b"during the new login", None, 0, 0, ())
        assert during is not None
        await asyncio.sleep(0.1)
        assert not during.done()
        cluster.login.gate.set()
        await core.flush(10_000)
        assert during.exception(0) is None
        assert cluster.made is not None
        cluster.made.close()
        await core.close()

    server.run(body)
    assert server.log.count("Produce") == 2


def test_records_with_acks_0_that_wait_for_a_new_login_fill_the_buffer_and_no_more() -> None:
    server = LoginServer("PLAIN", lifetime_ms=1000)

    async def body(port: int) -> None:
        cluster = Connected(port)
        options = {"bootstrap_servers": "model:1", "acks": 0, "linger_ms": 0, "buffer_memory": 10_000}
        loop = asyncio.get_running_loop()
        core = ProducerCore(producer_options(None, options), loop, cluster=cluster)  # type: ignore[arg-type]
        await core.learn_topic("t")
        core.buffer.append("t", b"first", None, 0, 0, ())
        await core.flush(10_000)
        assert cluster.made is not None
        await asyncio.sleep(1)
        for _ in range(8):
            core.buffer.append("t", b"x" * 1_000, None, 0, 0, ())
            await asyncio.sleep(0.001)
        with pytest.raises(NoRoomError):
            core.buffer.append("t", b"x" * 2_000, None, 0, 0, ())
        assert core.accumulator.used <= 10_000
        cluster.login.gate.set()
        await core.flush(10_000)
        cluster.made.close()
        await core.close()

    server.run(body)
