"""Measure the cost of many members of the consumer protocol (KIP-848).

scripts/bench --members [--count N] [--limit MS]

N members (10,000) are in groups of 100. Each group reads a topic with 100 partitions. All heartbeats go over one
connection, because the protocol binds no member to a connection. Times are the broker's CPU. The program fails if a
step of the broker's event loop takes longer than the limit (50 ms of CPU).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from connections import KB, memory
from growth import cpu_seconds, pipelined

from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from support.servers import OncelogCluster
from support.wire import Wire

GROUP_SIZE = 100
VERSION = 1
REBALANCE_MS = 600_000
SETTLE_S = 600
STALL_MS = 10
"""The broker logs each step of its event loop that takes longer. This costs as much as a request does."""
SETTINGS = {
    "group.consumer.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
}


class Member:
    """One member, as its heartbeats see it."""

    def __init__(self, group: str, topic: str) -> None:
        self.group, self.topic, self.id = group, topic, str(uuid4())
        self.epoch = 0
        self.owned: list[TopicPartitions] = []

    def join(self) -> ConsumerGroupHeartbeatRequest:
        return self._heartbeat(
            rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=[self.topic], topic_partitions=[]
        )

    def beat(self) -> ConsumerGroupHeartbeatRequest:
        """Return the request of a member for which nothing has changed."""
        return self._heartbeat()

    def report(self) -> ConsumerGroupHeartbeatRequest:
        """Return the request of a member that reports its partitions."""
        return self._heartbeat(topic_partitions=self.owned)

    def leave(self) -> ConsumerGroupHeartbeatRequest:
        self.epoch = -1
        return self._heartbeat()

    def _heartbeat(self, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.id, member_epoch=self.epoch, **fields)

    def take(self, answer: Any) -> bool:
        """Take a response. Return whether it changed something."""
        assert not answer.error_code, answer
        changed = answer.assignment is not None or answer.member_epoch != self.epoch
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = list(answer.assignment.topic_partitions)
        return changed


class Groups:
    """A broker with groups of members."""

    def __init__(self, folder: Path, members: int, stall_ms: int) -> None:
        self.server = OncelogCluster(folder, settings={**SETTINGS, "loop.stall.log.ms": str(stall_ms)})
        self.pid = self.server.broker_pid()
        self.wire = Wire(self.server.bootstrap)
        number = max(1, members // GROUP_SIZE)
        self.topics: dict[str, UUID] = {f"t{n}": self.wire.create_topic(f"t{n}", GROUP_SIZE) for n in range(number)}
        self.wire.find_coordinator("g0", 0)
        self.members = [Member(f"g{n}", f"t{n}") for n in range(number) for _ in range(GROUP_SIZE)]

    def close(self) -> None:
        """Stop the broker."""
        self.wire.close()
        self.server.stop()

    def send(self, members: Sequence[Member], requests: Iterator[ConsumerGroupHeartbeatRequest]) -> list[Member]:
        """Send one request for each member. Return those for which something has changed."""
        answers = pipelined(self.wire, requests, VERSION)
        return [member for member, answer in zip(members, answers, strict=True) if member.take(answer)]

    def settle(self) -> None:
        """Send heartbeats until every member owns what its group has assigned to it."""
        until = time.monotonic() + SETTLE_S
        while self.send(self.members, (member.report() for member in self.members)) or self.owned() < self.partitions:
            assert time.monotonic() < until, f"{self.owned()} of {self.partitions} partitions are assigned"
        self.send(self.members, (member.beat() for member in self.members))

    @property
    def partitions(self) -> int:
        """The number of all partitions."""
        return len(self.topics) * GROUP_SIZE

    def owned(self) -> int:
        """Return the number of partitions that members own."""
        return sum(len(part.partitions) for member in self.members for part in member.owned)

    def measured(self, work: Any, times: int) -> float:
        """Return the microseconds of the broker's CPU per request."""
        before = cpu_seconds(self.pid)
        work()
        return (cpu_seconds(self.pid) - before) / times * 1e6


def longest_stall_ms(server: OncelogCluster) -> float:
    """Return the CPU time of the longest step of the event loop, 0 if none was logged."""
    logged = server.process.stderr_path.read_text(errors="replace")
    return max((float(found) for found in re.findall(r"\((\d+) ms of CPU\)", logged)), default=0.0)


def figures(folder: Path, members: int, stall_ms: int) -> Iterator[tuple[str, float, str]]:
    """Yield (figure, number, unit). The last is the longest step, which is known with `stall_ms`."""
    groups = Groups(folder, members, stall_ms)
    try:
        before = memory(groups.pid)
        joined = groups.measured(
            lambda: groups.send(groups.members, (member.join() for member in groups.members)), len(groups.members)
        )
        groups.settle()
        yield "join", joined, "us"
        yield "memory of all members", (memory(groups.pid) - before) / KB, "MB"
        rounds = max(1, 20_000 // len(groups.members))

        def beat() -> None:
            for _ in range(rounds):
                groups.send(groups.members, (member.beat() for member in groups.members))

        yield "heartbeat without a change", groups.measured(beat, rounds * len(groups.members)), "us"
        leaving = groups.members[::GROUP_SIZE]
        yield (
            "leave, one of each group",
            groups.measured(
                lambda: pipelined(groups.wire, (member.leave() for member in leaving), VERSION), len(leaving)
            ),
            "us",
        )
        groups.members = [member for member in groups.members if member not in leaving]
        following = groups.members[:: GROUP_SIZE - 1]
        yield (
            "the next heartbeat of its group",
            groups.measured(lambda: groups.send(following, (member.beat() for member in following)), len(following)),
            "us",
        )
        groups.settle()
        yield "longest stall of the event loop", longest_stall_ms(groups.server), "ms"
    finally:
        groups.close()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the cost of many members of the consumer protocol.")
    parser.add_argument("--count", type=int, default=10_000, metavar="N", help="members, in groups of 100")
    parser.add_argument("--limit", type=float, default=50, metavar="MS", help="the longest step of the event loop")
    arguments = parser.parse_args()
    found: list[tuple[str, float, str]] = []
    for stall_ms in (0, STALL_MS):
        with tempfile.TemporaryDirectory(prefix="oncelog-members-") as folder:
            *costs, longest = figures(Path(folder), arguments.count, stall_ms)
        found += [longest] if stall_ms else costs
    for name, number, unit in found:
        print(f"{arguments.count:,} members: {name}: {number:,.1f} {unit}")
    return int(found[-1][1] > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
