"""Connections of our clients on real servers: idle ones are closed unnoticed, and concurrent first calls share one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from oncelog import Admin, Consumer, Producer
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchRequest
from support.processes import wait_until
from support.servers import Server
from support.wire import Wire

IDLE = {"connections_max_idle_ms": 100}


def hung_up(cluster: ClusterClient) -> bool:
    return all(connection.closed for connection in cluster._connections._made.values())


def test_idle_connection_is_closed_and_reopened(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap, **IDLE) as producer:
        for number in range(3):
            assert producer.send(name, b"%d" % number).result(30).offset == number
            wait_until(lambda: hung_up(producer._core.cluster), "idle connections are closed")
        assert producer._core.manager is not None
        assert producer._core.manager.producer_epoch == 0, "no sequence was in doubt because of it"
    with Consumer(server.bootstrap, group_id=name, auto_offset_reset="earliest", **IDLE) as consumer:
        consumer.assign([(name, 0)])
        assert [record.value for record in consumer.poll(30)] == [b"0", b"1", b"2"]
        consumer.pause()
        consumer.commit()
        wait_until(
            lambda: consumer.poll(0) == [] and hung_up(consumer._core.cluster),
            "the broker has the consumer's session, too",
        )
        other = Producer(server.bootstrap)
        other.send(name, b"3").result(30)
        other.close()
        consumer.resume()
        assert [record.value for record in consumer.poll(30)] == [b"3"]
        consumer.commit()
        assert consumer.committed([(name, 0)])[name, 0] == 4


def test_brokers_drop_the_fetch_sessions_of_a_closed_consumer(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"x").result(30)

    def session_error(session_id: int) -> ErrorCode:
        """Return the error of a request whose epoch is not the next one."""
        with Wire(server.bootstrap) as wire:
            request = FetchRequest(session_id=session_id, session_epoch=1_000_000, topics=[])
            return ErrorCode.of(wire.call(request).error_code)

    waits = {"fetch_max_wait_ms": 60_000, "request_timeout_ms": 120_000}
    with Consumer(server.bootstrap, auto_offset_reset="earliest", **waits) as consumer:
        consumer.assign([(name, 0)])
        assert len(consumer.poll(30)) == 1
        (session,) = consumer._core.fetcher._sessions.values()
        wait_until(lambda: consumer.poll(0) == [] and session.session_id, "a session")
        session_id = session.session_id
        assert session_error(session_id) is ErrorCode.INVALID_FETCH_SESSION_EPOCH, "the broker has the session"
    assert session_error(session_id) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_concurrent_first_calls_share_a_connection(server: Server, admin: Admin, name: str) -> None:
    topics = [f"{name}-{number}" for number in range(20)]
    for topic in topics:
        admin.create_topics(topic)

    async def body() -> None:
        async with ClusterClient(server.bootstrap) as cluster:
            once = cluster._connections._connect_once
            made: list[Any] = []

            async def counted(*address: Any) -> Any:
                made.append(await once(*address))
                return made[-1]

            cluster._connections._connect_once = counted  # type: ignore[assignment]
            asked: list[Awaitable[Any]] = [cluster.topic(topic) for topic in topics]
            found = await asyncio.gather(*asked)
            assert [topic.name for topic in found] == topics
            assert len(made) == 1, "concurrent calls wait for the same connection"
            assert not made[0].closed

    asyncio.run(body())
