"""Our consumer when its group, its coordinator or its user fails at a bad moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client.consumer import blocking
from oncelog.client.consumer.classic_member import ClassicMember
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests import offsets
from oncelog.net.connection import ClientConnection
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from support.processes import wait_until
from support.rebalances import CLASSIC, members
from support.servers import Server

EARLIEST = {"auto_offset_reset": "earliest"}
RECORDS = 10


@pytest.fixture
def topic(server: Server, admin: Admin, name: str) -> str:
    """Create a topic with RECORDS records in its one partition."""
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number)
    return name


class Beats:
    """Count the heartbeats that were sent."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        call = ClientConnection.call

        def counting(connection: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
            self.count += isinstance(request, HeartbeatRequest)
            return call(connection, request, *rest, **more)

        patch.setattr(ClientConnection, "call", counting)


def test_failed_heartbeat_is_raised_once_and_the_next_poll_succeeds(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = Beats(monkeypatch)
    find = ClusterClient.coordinator
    refusals = iter([errors.error_for(ErrorCode.GROUP_AUTHORIZATION_FAILED, "for once")])

    async def coordinator(cluster: ClusterClient, *arguments: Any) -> int:
        for error in refusals:
            raise error
        return await find(cluster, *arguments)

    with members(server.bootstrap, topic, 1, **CLASSIC) as (member,):
        consumer = member.consumer
        consumer.subscribe([topic])
        assert len(consumer.poll(30)) == RECORDS
        monkeypatch.setattr(ClusterClient, "coordinator", coordinator)
        raised: list[errors.AuthorizationError] = []

        def has_raised() -> bool:
            try:
                consumer.poll(0.05)
            except errors.AuthorizationError as error:
                raised.append(error)
            return bool(raised)

        wait_until(has_raised, "poll raises the error")
        assert "for once" in str(raised[0])
        before = beats.count
        wait_until(lambda: consumer.poll(0.05) == [] and beats.count > before + 1, "the consumer is still a member")
        assert member.of("lost") == []
        consumer.commit()


def test_leader_that_waits_for_metadata_sends_heartbeats(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between JoinGroup's answer and its SyncGroup, only heartbeats keep the leader's session alive."""
    beats = Beats(monkeypatch)
    count = ClassicMember._count_partitions

    async def slowly(member: ClassicMember) -> dict[str, int]:
        while beats.count < 2:
            await asyncio.sleep(0.01)
        return await count(member)

    monkeypatch.setattr(ClassicMember, "_count_partitions", slowly)
    with members(server.bootstrap, topic, 1, **CLASSIC) as (member,):
        member.subscribe([topic])
        assert len(member.consumer.poll(30)) == RECORDS


def test_position_lookup_is_retried_after_a_failure(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One poll, without a group: nothing else would wake it."""
    listed = offsets.list_offsets
    failures = iter([errors.ConnectionFailedError("the leader is away")])

    async def list_offsets(*arguments: Any, **options: Any) -> Any:
        for error in failures:
            raise error
        return await listed(*arguments, **options)

    monkeypatch.setattr(offsets, "list_offsets", list_offsets)
    with Consumer(server.bootstrap, **EARLIEST) as consumer:
        consumer.assign([(topic, 0)])
        assert next(consumer.tables()).num_rows == RECORDS


class Interrupted(SimpleQueue):  # type: ignore[type-arg]
    """Raise KeyboardInterrupt when the loop has a result."""

    def get(self, *arguments: Any) -> Any:
        while super().get(*arguments) is not None:
            pass
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "read",
    [lambda consumer: consumer.poll(30), lambda consumer: next(consumer.tables())],
    ids=["poll", "tables"],
)
def test_records_of_an_interrupted_call_are_returned_again(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch, read: Callable[[Consumer], Any]
) -> None:
    with Consumer(server.bootstrap, group_id=topic, enable_auto_commit=True, **EARLIEST) as consumer:
        consumer.assign([(topic, 0)])
        with monkeypatch.context() as patch:
            patch.setattr(blocking, "SimpleQueue", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                read(consumer)
        assert consumer.position(topic, 0) == 0, "the position that close() would commit"
        assert len(read(consumer)) == RECORDS


def test_rejected_auto_commits_are_logged_once(server: Server, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """The commits are rejected because the group has members, and this consumer is not one of them."""
    options = EARLIEST | {"enable_auto_commit": True, "auto_commit_interval_ms": 0}
    with members(server.bootstrap, topic, 1, **CLASSIC) as (member,):
        member.subscribe([topic])
        assert member.consumer.poll(30)
        with caplog.at_level(logging.WARNING), Consumer(server.bootstrap, group_id=topic, **options) as consumer:
            consumer.assign([(topic, 0)])
            assert consumer.poll(30)
            wait_until(lambda: consumer.poll(0.05) == [] and bool(caplog.messages), "the warning is logged")
    (raised,) = [message for message in caplog.messages if "cannot commit offsets of group" in message]
    assert repr(topic) in raised
    assert "UNKNOWN_MEMBER_ID" in raised


def test_close_ends_if_the_broker_does_not_answer(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ClientConnection.call

    async def silent(connection: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(request, (OffsetCommitRequest, LeaveGroupRequest)):
            await asyncio.Event().wait()
        return await call(connection, request, *rest, **more)

    consumer = Consumer(server.bootstrap, group_id=topic, enable_auto_commit=True, **CLASSIC)
    consumer.subscribe([topic])
    assert consumer.poll(30)
    monkeypatch.setattr(ClientConnection, "call", silent)
    consumer.close(0.2)


def test_consumer_names_the_member_that_its_group_waits_for(
    server: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first member does not poll, like a killed one. Before, the second one waited without a log line."""
    caplog.set_level(logging.WARNING, "oncelog")
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b"x").result(30)
    options = {"group_id": topic, "auto_offset_reset": "earliest"}
    with (
        Consumer(server.bootstrap, client_id="silent", **options) as silent,
        Consumer(server.bootstrap, client_id="waiting", **options) as waiting,
    ):
        silent.subscribe([topic])
        wait_until(lambda: silent.poll(0.2), "the first member reads")
        waiting.subscribe([topic])
        wait_until(lambda: waiting.poll(0.2) or "no partitions before" in caplog.text, "the warning is logged")
        told = caplog.text
        member_id = silent.group_metadata().member_id
        assert f"group {topic!r} gives this consumer no partitions" in told
        assert f"{member_id!r} (client 'silent'" in told
        assert "'waiting'" not in told, "the consumer itself is not named"
        silent.close()
        wait_until(lambda: waiting.poll(0.2), "the second member reads")
        assert "the wait for other members is over" in caplog.text


@pytest.mark.parametrize("tables", [False, True], ids=["records", "tables"])
@pytest.mark.parametrize(("policy", "end"), [("latest", RECORDS), ("earliest", 6)])
def test_position_that_is_not_in_the_log_is_logged_with_its_replacement(
    server: Server, admin: Admin, topic: str, policy: str, end: int, tables: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, `latest` skipped the records between the committed offset and the end without a log line."""
    caplog.set_level(logging.WARNING, "oncelog")
    with Consumer(server.bootstrap, group_id=topic, auto_offset_reset=policy) as consumer:
        consumer.assign([(topic, 0)])
        consumer.commit({(topic, 0): 2})
        admin.delete_records({(topic, 0): 6})
        if tables:
            list(consumer.tables(timeout=2))
        else:
            wait_until(lambda: consumer.poll(0.2) or "continuing at" in caplog.text, "the position is replaced")
    assert f"offset 2 is not in the log of {topic}-0" in caplog.text
    told = f"continuing at offset {end} (auto_offset_reset = {policy}): offsets 2 to {end - 1} are not read"
    assert told in caplog.text
