"""Our consumer in classic groups: assignments, listeners, and the cost of a rebalance."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.consumer.assignors import ASSIGNORS
from oncelog.client.group_offsets import GroupMetadata
from oncelog.protocol.topics import TopicPartition
from support.processes import wait_until
from support.rebalances import CLASSIC, Watched, members, settle
from support.servers import Server

COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}


def partitions_of(admin: Admin, topic: str, count: int) -> list[TopicPartition]:
    admin.create_topics(topic, count)
    return [(topic, index) for index in range(count)]


def fill(server: Server, partitions: list[TopicPartition], each: int = 5) -> None:
    with Producer(server.bootstrap) as producer:
        for topic, index in partitions:
            for number in range(each):
                producer.send(topic, b"%d" % number, partition=index)


@pytest.mark.parametrize("strategy", sorted(ASSIGNORS))
def test_members_share_evenly_and_take_over(server: Server, admin: Admin, name: str, strategy: str) -> None:
    partitions = partitions_of(admin, name, 7)
    with members(server.bootstrap, name, 3, partition_assignment_strategy=strategy, **CLASSIC) as group:
        for count in (1, 2, 3):
            group[count - 1].subscribe([name])
            settle(group[:count], partitions)
        assert not any(member.of("lost") for member in group)
        group[0].consumer.close()
        settle(group[1:], partitions)


def test_cooperative_members_keep_their_partitions(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 4)
    fill(server, partitions)
    with members(server.bootstrap, name, 2, **COOPERATIVE, **CLASSIC) as group:
        first, second = group
        first.subscribe([name])
        settle([first], partitions)
        wait_until(
            lambda: not first.consumer.poll(0.1) and sum(first.consumer.positions().values()) == 20,
            "all records are read",
        )
        second.subscribe([name])
        settle(group, partitions)
        moved = first.of("revoked")
        assert sorted(moved) == second.consumer.assignment(), "only the revoked partitions are reported"
        assert first.of("assigned") == partitions, "kept partitions are not assigned again"
        kept = first.consumer.assignment()
        assert first.consumer.positions() == dict.fromkeys(kept, 5), (
            "positions are kept, although nothing was committed"
        )
        second.consumer.close()
        settle([first], partitions)
        assert sorted(first.of("assigned")[4:]) == sorted(moved)
        first.consumer.unsubscribe()
        assert sorted(first.of("revoked")) == sorted([*moved, *partitions])


def test_cooperative_members_continue_reading_during_a_rebalance(server: Server, admin: Admin, name: str) -> None:
    """The second member joins and does not poll for a while. The first continues with all partitions that it keeps."""
    partitions = partitions_of(admin, name, 4)
    with members(server.bootstrap, name, 2, **COOPERATIVE, **CLASSIC) as group:
        first, second = group
        first.subscribe([name])
        settle([first], partitions)
        second.subscribe([name])
        held = threading.Event()
        joining = threading.Thread(target=lambda: (second.consumer.poll(1), held.wait()))
        joining.start()
        wait_until(
            lambda: first.consumer.poll(0.05) == [] and len(first.consumer.assignment()) == 2,
            "two partitions are revoked",
        )
        fill(server, first.consumer.assignment(), 1)
        found = 0

        def read() -> bool:
            nonlocal found
            found += len(first.consumer.poll(0.1))
            return found == 2

        wait_until(read, "the first member continues to read")
        held.set()
        joining.join()
        settle(group, partitions)


def test_listeners_may_commit_and_seek(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 2)
    fill(server, partitions)
    thread = threading.get_ident()
    committed: list[dict[TopicPartition, int]] = []
    consumer = Consumer(server.bootstrap, group_id=name, **CLASSIC)

    def assigned(tps: list[TopicPartition]) -> None:
        assert threading.get_ident() == thread
        for tp in tps:
            consumer.seek(*tp, 3)
        consumer.pause([partitions[1]])

    def revoked(tps: list[TopicPartition]) -> None:
        assert threading.get_ident() == thread
        assert consumer.assignment() == tps
        consumer.commit()
        committed.append(dict(consumer.committed()))
        with pytest.raises(errors.UsageError, match="poll"):
            consumer.poll(0)

    consumer.subscribe([name], on_assigned=assigned, on_revoked=revoked)
    records = consumer.poll(30)
    assert [(record.partition, record.offset) for record in records] == [(0, 3), (0, 4)]
    consumer.close()
    assert committed == [{(name, 0): 5, (name, 1): 3}]


def test_listener_error_is_raised_by_poll_once(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 2)
    fill(server, partitions)

    def broken(_: list[TopicPartition]) -> None:
        raise LookupError("the user's own")

    with Consumer(server.bootstrap, group_id=name, **CLASSIC) as consumer:
        consumer.subscribe([name], on_assigned=broken)
        with pytest.raises(LookupError):
            consumer.poll(30)
        assert consumer.assignment() == partitions
        assert consumer.poll(30)


def test_member_that_does_not_poll_loses_its_partitions(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 2)
    fill(server, partitions)
    slow = Watched(server.bootstrap, name, max_poll_interval_ms=500, **CLASSIC)
    refused: list[errors.KafkaError] = []

    def lost(tps: list[TopicPartition]) -> None:
        slow.calls.append(("lost", tps))
        with pytest.raises(errors.GroupError) as caught:
            slow.consumer.commit()
        refused.append(caught.value)

    slow.consumer.subscribe([name], on_lost=lost, on_revoked=lambda tps: slow.calls.append(("revoked", tps)))
    assert slow.consumer.poll(30)
    with members(server.bootstrap, name, 1, **CLASSIC) as (quick,):
        quick.subscribe([name])
        settle([quick], partitions, "the other member has all partitions")
        wait_until(lambda: slow.consumer.poll(0.05) is not None and bool(slow.calls), "the slow member is notified")
        assert slow.calls[0] == ("lost", partitions)
        assert len(refused) == 1
        settle([slow, quick], partitions)
    slow.consumer.close()


def test_long_poll_counts_as_polling(server: Server, admin: Admin, name: str) -> None:
    """The poll waits for offsets that an open transaction holds. This wait does not count as the user's time."""
    partitions = partitions_of(admin, name, 1)
    fill(server, partitions)
    options = CLASSIC | {"isolation_level": "read_committed", "max_poll_interval_ms": 700}
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send_offsets(GroupMetadata(name), {(name, 0): 2})
        producer.send(name, b"with them").result(30)
        with members(server.bootstrap, name, 1, **options) as (member,):
            member.subscribe([name])
            assert member.consumer.poll(2.0) == []
            assert member.calls == [("assigned", partitions)]
            committing = threading.Thread(target=producer.commit_transaction)
            committing.start()
            offsets: list[int] = []
            while len(offsets) < 4:
                offsets += [record.offset for record in member.consumer.poll(30)]
            committing.join()
            assert offsets == [2, 3, 4, 5]
            assert member.calls == [("assigned", partitions)]


def test_static_member_returns_without_a_rebalance(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 4)
    with members(server.bootstrap, name, 1, group_instance_id="stays", **CLASSIC) as (other,):
        first = Watched(server.bootstrap, name, group_instance_id="restarts", **CLASSIC)
        other.subscribe([name])
        first.subscribe([name])
        settle([other, first], partitions)
        mine, calls = first.consumer.assignment(), list(other.calls)
        generation = other.consumer.group_metadata().generation_id
        first.consumer.close()
        assert first.calls[-1] == ("revoked", mine)
        with members(server.bootstrap, name, 1, group_instance_id="restarts", **CLASSIC) as (second,):
            second.subscribe([name])
            settle([other, second], partitions)
            assert second.consumer.assignment() == mine
            assert other.calls == calls
            assert other.consumer.group_metadata().generation_id == generation


def test_auto_commit_at_revocation_and_close(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 2)
    fill(server, partitions)
    options = {"enable_auto_commit": True, "auto_commit_interval_ms": 2**31 - 1, **CLASSIC}
    with members(server.bootstrap, name, 2, **options) as group:
        first, second = group
        first.subscribe([name])
        seen = 0
        while seen < 10:
            seen += len(first.consumer.poll(30))
        second.subscribe([name])
        settle(group, partitions)
        assert admin.committed(name) == dict.fromkeys(partitions, 5)
        fill(server, partitions, 2)
        while seen < 14:
            seen += len(first.consumer.poll(0.1)) + len(second.consumer.poll(0.1))
    assert seen == 14, "no record is duplicated"
    assert admin.committed(name) == dict.fromkeys(partitions, 7)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_new_partitions_and_topics_are_discovered(
    server: Server, admin: Admin, name: str, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"partition_assignment_strategy": strategy, **CLASSIC}
    with members(server.bootstrap, name, 2, **options) as (by_name, by_pattern):
        by_name.subscribe([name])
        by_name.consumer.poll(0.5)
        wait_until(
            lambda: not by_name.consumer.poll(0.1) and f"subscribed to topic {name!r}" in caplog.text,
            "the warning is logged",
        )
        partitions = partitions_of(admin, name, 1)
        settle([by_name], partitions)
        admin.create_partitions(name, 2)
        settle([by_name], [*partitions, (name, 1)])
        by_name.consumer.close()
        by_pattern.subscribe(f"^{name}")
        settle([by_pattern], [*partitions, (name, 1)])
        admin.create_topics(f"{name}-more")
        settle([by_pattern], [*partitions, (name, 1), (f"{name}-more", 0)])


def test_subscription_changes(server: Server, admin: Admin, name: str) -> None:
    one, two = partitions_of(admin, f"{name}-1", 2), partitions_of(admin, f"{name}-2", 2)
    with members(server.bootstrap, name, 1, **COOPERATIVE, **CLASSIC) as (member,):
        member.subscribe([f"{name}-1"])
        settle([member], one)
        member.subscribe([f"{name}-1", f"{name}-2"])
        settle([member], [*one, *two])
        member.subscribe([f"{name}-2"])
        settle([member], two)
        assert member.of("revoked") == one
        assert member.consumer.subscription() == [f"{name}-2"]


def test_asyncio_listeners_may_await_the_consumer(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 2)
    fill(server, partitions)

    async def body() -> None:
        async with aio.Consumer(server.bootstrap, group_id=name, **CLASSIC) as consumer:

            async def revoked(_: list[TopicPartition]) -> None:
                await consumer.commit()

            consumer.subscribe([name], on_revoked=revoked)
            seen = 0
            while seen < 10:
                seen += len(await consumer.poll(30))
            assert await consumer.lag() == consumer.cached_lag() == dict.fromkeys(partitions, 0)
            consumer.pause()
            assert consumer.paused() == partitions
            consumer.seek_to_beginning()
            assert await consumer.poll(0.3) == []
            consumer.resume([partitions[0]])
            assert {record.partition for record in await consumer.poll(30)} == {0}

    asyncio.run(body())
    assert admin.committed(name)[name, 0] > 0
