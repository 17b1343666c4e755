"""A reader and a real broker: what a turn asks for, and that everything is read in the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests import broker_fanout
from oncelog.testing import Broker
from oncelog.watch import asking, requests
from oncelog.watch import reader as reader_module
from oncelog.watch.reader import Reader
from oncelog.watch.readings import Picture
from oncelog.watch.rows import group_rows, topic_rows, transaction_rows
from oncelog.watch.turns import Limits

TOPICS, PARTITIONS, GROUPS = 4, 5, 12
SMALL = Limits(partitions=6, groups=4, holders=2, transactions=2)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([f"t{number}" for number in range(TOPICS)], PARTITIONS)
        for number in range(GROUPS):
            with Consumer(broker.bootstrap_servers, group_id=f"g{number}") as consumer:
                consumer.commit({("t0", 0): 0, ("t1", number % PARTITIONS): 0})
        yield broker.bootstrap_servers


def watch(bootstrap: str, body: Callable[[Reader], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with ClusterClient(bootstrap) as cluster:
            await body(Reader(cluster, **options))

    asyncio.run(run())


def hurried() -> Callable[[], float]:
    """Return a clock on which every list is old at the next turn."""
    return itertools.count(0.0, 100.0).__next__


def test_turn_stays_within_its_limits(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    groups: list[int] = []

    async def ends(cluster: Any, node: int, partitions: list[Any]) -> Any:
        asked.append(len(partitions))
        return await ends_(cluster, node, partitions)

    async def committed(cluster: Any, node: int, names: list[str]) -> Any:
        groups.append(len(names))
        return await committed_(cluster, node, names)

    ends_, committed_ = requests.ends, requests.committed
    monkeypatch.setattr(requests, "ends", ends)
    monkeypatch.setattr(requests, "committed", committed)

    async def body(reader: Reader) -> None:
        turns = 0
        while True:
            turns += 1
            asked.clear()
            groups.clear()
            picture = await reader.turn()
            assert sum(asked) <= SMALL.partitions
            assert sum(groups) <= SMALL.groups
            total = sum(len(topic.partitions) for topic in picture.topics.values())
            if len(picture.partitions) == total and len(picture.group_readings) == GROUPS:
                break
        assert turns > TOPICS * PARTITIONS / SMALL.partitions
        assert {row.lag for row in group_rows(picture)} == {0}
        assert all(row.uncounted == 0 for row in group_rows(picture))
        assert all(row.unread == 0 for row in topic_rows(picture))

    watch(bootstrap, body, limits=SMALL)


def test_long_lists_are_not_read_at_each_turn(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "seconds_until_next_list", lambda count: float(count))
    now = 0.0

    async def body(reader: Reader) -> None:
        nonlocal now
        lists = {"METADATA", "LIST_GROUPS"}
        first = await reader.turn()
        assert lists <= set(first.requests.turn)
        now = GROUPS - 1.0
        assert not lists & set((await reader.turn()).requests.turn)
        now = GROUPS + 1.0
        assert lists & set((await reader.turn()).requests.turn) == {"LIST_GROUPS"}

    watch(bootstrap, body, clock=lambda: now)


def test_one_turn_sends_few_requests(bootstrap: str) -> None:
    async def body(reader: Reader) -> None:
        await reader.turn()
        picture = await reader.turn()
        assert picture.requests.turn == {
            "DESCRIBE_CLUSTER": 1,
            "METADATA": 1,
            "LIST_GROUPS": 1,
            "LIST_TRANSACTIONS": 1,
            "OFFSET_FETCH": 1,
            "LIST_OFFSETS": 2,
            "DESCRIBE_LOG_DIRS": 1,
        }
        assert picture.requests.total > sum(picture.requests.turn.values())

    watch(bootstrap, body, clock=hurried())


def test_deleted_things_disappear(bootstrap: str) -> None:
    async def body(reader: Reader) -> None:
        def names(picture: Picture) -> tuple[bool, bool, bool]:
            return (
                "gone" in picture.topics,
                any(row.transactional_id == "gone" for row in transaction_rows(picture)),
                "gone" in picture.group_readings,
            )

        assert names(await reader.turn()) == (False, False, False)
        with Admin(bootstrap) as admin:
            admin.create_topics("gone")
            with Producer(bootstrap, transactional_id="gone") as producer:
                producer.begin_transaction()
                producer.send("gone", b"x")
                producer.flush()
                with Consumer(bootstrap, group_id="gone") as consumer:
                    consumer.commit({("gone", 0): 0})
                picture = await reader.turn()
                assert names(picture) == (True, True, True)
                assert picture.holders.keys() == {("gone", 0)}
                producer.abort_transaction()
            admin.delete_groups(["gone"])
            admin.delete_topics("gone")
        picture = await reader.turn()
        assert names(picture) == (False, False, False)
        assert picture.holders == {}
        assert not any(topic == "gone" for topic, _ in picture.partitions)
        assert picture.troubles == ()

    watch(bootstrap, body, clock=hurried())


def test_broker_that_does_not_answer_is_a_trouble(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = False
    monkeypatch.setattr(asking, "ANSWER_WAIT_S", 0.3)

    async def ask(cluster: Any, node: int, request: Any, purpose: str = "") -> Any:
        if silent:
            await asyncio.sleep(3600)
        return await broker_fanout.ask_once(cluster, node, request, purpose)

    monkeypatch.setattr(requests, "ask_once", ask)

    async def body(reader: Reader) -> None:
        nonlocal silent
        before = await reader.turn()
        silent = True
        during = await reader.turn()
        assert during.reachable, "another request got its response"
        of_broker = [trouble for trouble in during.troubles if trouble.node == 1]
        assert {trouble.about for trouble in during.troubles} == {"groups", "transactions"}, "it is not asked again"
        assert {trouble.text for trouble in of_broker} == {"broker 1: no response within 0.3 s (REQUEST_TIMED_OUT)"}
        assert during.partitions == before.partitions, "the last readings are kept"
        assert set(during.unanswered) == set(during.partitions)
        assert not during.all_transactions_known
        silent = False
        after = await reader.turn()
        assert after.troubles == ()
        assert after.unanswered == {}

    watch(bootstrap, body)


def test_outage_keeps_the_last_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_WAIT_S", 1.0)

    async def run() -> None:
        with Broker(topics=["t"]) as broker:
            cluster = ClusterClient(broker.bootstrap_servers)
            reader = Reader(cluster)
            before = await reader.turn()
        during = await reader.turn()
        assert (before.reachable, during.reachable) == (True, False)
        assert (during.topics, during.brokers) == (before.topics, before.brokers)
        assert during.troubles[0].about == "brokers"
        await cluster.close()

    asyncio.run(run())


def test_several_groups_need_a_broker_that_takes_them() -> None:
    with pytest.raises(errors.UnsupportedError, match="KIP-709"):
        requests._fetch_of(["g"], None).make(7)
