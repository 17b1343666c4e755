"""What a scrape holds: the number of scrapes at a time, and the groups and offsets of one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.metrics import group_offsets
from oncelog.broker.metrics.collect import LINES_A_PART
from oncelog.broker.metrics.endpoint import MOST_SCRAPES, MetricsEndpoint
from oncelog.broker.metrics.group_offsets import shown_groups
from oncelog.broker.metrics.lag import GroupLags
from oncelog.broker.metrics.partition_ends import Ends
from oncelog.coordinator.groups.records import CommittedOffset
from oncelog.log.steps import at_once
from oncelog.net.session import Session
from oncelog.protocol.messages.list_offsets import ReadableEnds

TOPIC_ID = UUID(int=1)


class Held:
    """The questions of scrapes, which wait for an event."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.asked = 0

    async def ask(self) -> None:
        self.asked += 1
        await self.free.wait()


async def request(port: int, path: str = "/metrics") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    return reader, writer


async def status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    text = await reader.read()
    writer.close()
    return int(text.split()[1])


def test_number_of_scrapes_is_bounded() -> None:
    async def main() -> None:
        held = Held()
        watch = SimpleNamespace(start=lambda: None, stop=lambda: None)
        collector: Any = SimpleNamespace(watch=watch, parts=lambda _: iter(["a 1\n"]))
        health: Any = SimpleNamespace(missing=list)
        endpoint = MetricsEndpoint(collector, held, health, logging.getLogger("test"))  # type: ignore[arg-type]
        await endpoint.start("127.0.0.1", 0)
        try:
            waiting = [await request(endpoint.port) for _ in range(MOST_SCRAPES)]
            while held.asked < MOST_SCRAPES:
                await asyncio.sleep(0)
            assert await status(*await request(endpoint.port)) == 503
            assert await status(*await request(endpoint.port, "/ready")) == 200, "only scrapes are bounded"
            held.free.set()
            assert [await status(*each) for each in waiting] == [200] * MOST_SCRAPES
            assert await status(*await request(endpoint.port)) == 200
        finally:
            await endpoint.close()

    asyncio.run(main())


class Groups:
    """One coordinator with groups that have many offsets."""

    def __init__(self, *sizes: int) -> None:
        self._offsets = {
            f"group-{number}": {("t", index): CommittedOffset(5, -1, "", 0) for index in range(size)}
            for number, size in enumerate(sizes)
        }
        group = SimpleNamespace(clients=lambda: [("client", "host")])
        shard = SimpleNamespace(groups=dict.fromkeys(self._offsets, group), offsets=self)
        terms = SimpleNamespace(shards=lambda: [(0, shard)])
        self.shell = SimpleNamespace(terms=terms)

    def committed(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        return self._offsets[group_id]


def image(partitions: int) -> Any:
    topic = SimpleNamespace(partition_count=partitions, topic_id=TOPIC_ID)
    return SimpleNamespace(topic=lambda name: topic if name == "t" else None)


def shown(*sizes: int, most: int = group_offsets.MOST_SERIES) -> group_offsets.ShownGroups:
    groups: Any = Groups(*sizes)
    return at_once(shown_groups(groups, iter(()), image(200_000), most))


def test_group_with_many_offsets_is_read_in_short_steps() -> None:
    groups: Any = Groups(99_000)
    search = shown_groups(groups, iter(()), image(200_000))
    steps = sum(1 for _ in search)
    assert steps > 99_000


def test_groups_with_too_many_offsets_are_omitted() -> None:
    assert [len(each.offsets["t"]) for each in shown(99_999).groups] == [99_999]
    found = shown(100_000)
    assert (found.groups, found.omitted, found.partitions) == ([], 1, set())
    found = shown(10, 100, 10, most=50)
    assert [each.group_id for each in found.groups] == ["group-0", "group-2"]
    assert found.omitted == 1


def test_offsets_of_other_topics_are_omitted() -> None:
    groups: Any = Groups(3)
    offsets = groups.committed("group-0")
    offsets["t", 0] = CommittedOffset(5, -1, "", 0, topic_id=UUID(int=2))  # a deleted topic of the same name
    offsets["t", 1] = CommittedOffset(5, -1, "", 0, topic_id=TOPIC_ID)
    offsets["gone", 0] = offsets["t", 7] = CommittedOffset(5, -1, "", 0)
    found = at_once(shown_groups(groups, iter(()), image(3)))
    assert found.groups[0].offsets == {"t": {1: 5, 2: 5}}
    assert found.partitions == {("t", 1), ("t", 2)}


def test_clients_that_commit_stand_for_members() -> None:
    groups: Any = Groups(1)
    session = Session("h")
    session.commits("c", "group-0")
    gone = Session("h")
    gone.commits("other", "group-0")
    gone.disconnected()
    for members, clients in (([("m", "h")], {("m", "h")}), ([], {("c", "h")})):
        for group in next(iter(groups.shell.terms.shards()))[1].groups.values():
            group.clients = lambda members=members: members
        found = at_once(shown_groups(groups, iter([session, gone]), image(1)))
        assert (found.groups[0].members, found.groups[0].clients) == (len(members), clients)


def test_long_names_of_clients_are_not_remembered() -> None:
    session = Session("h")
    session.fetches("x" * 1000, 1)
    assert (session.client_id, session.isolation_level) == ("", 1)
    session.commits("c", "g" * 1000)
    assert (session.client_id, session.commits_for) == ("c", None)


@pytest.mark.parametrize("answered", [True, False])
def test_lag_is_missing_if_a_leader_does_not_answer(answered: bool) -> None:
    ends = Ends()
    ends.partitions = {("t", index): ReadableEnds(uncommitted=9, committed=7) for index in range(2 + answered)}
    lines = "".join(line for line in GroupLags(shown(3), ends).lines() if line)
    assert lines.count("kafka_consumergroup_lag{") == 2 + answered
    assert ('kafka_consumergroup_lag_sum{consumergroup="group-0",topic="t"} 12' in lines) == answered
    assert 'kafka_consumergroup_current_offset_sum{consumergroup="group-0",topic="t"} 15' in lines


def test_isolation_level_counts_only_if_all_readers_agree() -> None:
    ends = Ends()
    ends.levels = {("a", "h"): {1}, ("b", "h"): {1, 0}, ("c", "h"): {0}}
    assert ends.all_read_committed([("a", "h"), ("unknown", "h")])
    for clients in ([], [("unknown", "h")], [("b", "h")], [("a", "h"), ("c", "h")]):
        assert not ends.all_read_committed(clients)


def test_lines_of_a_large_group_come_in_parts() -> None:
    lines: Iterator[str | None] = GroupLags(shown(50_000), Ends()).lines()
    longest = max(len(line) for line in lines if line)
    assert longest < 1000, "each line counts for the size of a part"
    assert LINES_A_PART * longest < 1 << 20
