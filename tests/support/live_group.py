"""A group of the consumer protocol (KIP-848) whose members are processes with different clients."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oncelog import Admin, Producer
from oncelog.protocol.topics import TopicPartition
from support.group_history import GroupHistory
from support.java_programs import java_program
from support.processes import ManagedProcess, wait_until
from support.suites import go_program

Command = Callable[[Sequence[str]], list[str]]
"""Returns the command of a member with these arguments: bootstrap servers, group, member, protocol, subscription."""


def _python(client: str) -> Command:
    return lambda arguments: [sys.executable, "-m", "support.group_member", client, *arguments]


def _go(arguments: Sequence[str]) -> list[str]:
    bootstrap, group, *rest = arguments
    return [str(go_program()), bootstrap.partition(",")[0], group, "member", *rest]


def _java(arguments: Sequence[str]) -> list[str]:
    return java_program("groups", "GroupMember", *arguments)


CLIENTS: dict[str, Command] = {
    "oncelog": _python("oncelog"),
    "librdkafka": _python("librdkafka"),
    "java": _java,
    "franz-go": _go,
}
"""The clients with the consumer protocol. kafka-python 3.0.12, aiokafka 0.14.0, kafkajs and rskafka do not have it."""


class LiveGroup:
    """The members of one group, and their history. All subscribe to the same topic or pattern."""

    def __init__(self, bootstrap: str, name: str, folder: Path, subscription: str) -> None:
        self.bootstrap, self.name, self.folder = bootstrap, name, folder
        self.places: list[TopicPartition] = []
        """All partitions that the group shall read."""
        self.history = GroupHistory()
        self.members: dict[str, ManagedProcess] = {}
        """Those that run."""
        self.sent = 0
        self._subscription = subscription
        self._seen = self._made = 0
        self._admin = Admin(bootstrap)
        self._producer = Producer(bootstrap)
        self._ends: Counter[TopicPartition] = Counter()
        self._offsets: dict[TopicPartition, int] = {}
        self.went_back: list[str] = []
        """Committed offsets that went back."""

    def create_topic(self, topic: str, partitions: int) -> None:
        self._admin.create_topics(topic, partitions)
        self.places += [(topic, partition) for partition in range(partitions)]

    def close(self) -> None:
        for process in self.members.values():
            process.kill()
        self._producer.close()
        self._admin.close()

    def send(self, count: int = 1) -> None:
        """Send so many records, to the partitions in turns."""
        for number in range(self.sent, self.sent + count):
            topic, partition = self.places[number % len(self.places)]
            self._producer.send(topic, b"%d" % number, partition=partition)
            self._ends[topic, partition] += 1
        self._producer.flush()
        self.sent += count

    def join(self, client: str, protocol: str = "consumer") -> str:
        """Start a member, and return its name."""
        self._made += 1
        member = f"{client}-{self._made}"
        command = CLIENTS[client]([self.bootstrap, self.name, member, protocol, self._subscription])
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self.members[member] = ManagedProcess(command, self.folder, "members", env)  # all append to one file
        return member

    def leave(self, member: str) -> None:
        """Let a member leave the group and end."""
        process = self.members.pop(member)
        process.stop()
        self._listen()
        assert member in self.history.ended, f"{member} ended with {process.popen.returncode}\n{process.output()}"

    def wait(self, condition: Callable[[], object], what: str, *, sending: bool = False) -> None:
        """Wait until the condition is true, and listen to the members meanwhile. Send records if `sending`."""

        def met() -> bool:
            if sending:
                self.send()
            self._listen()
            for member, process in self.members.items():
                assert process.popen.poll() is None, f"{member} has ended\n{process.output()}"
            return bool(condition())

        try:
            wait_until(met, what)
        except AssertionError as error:
            shares = {member: len(some) for member, some in self.history.shares(self.members).items()}
            told = f"{shares}, {self.history.refused}, {self.history.errors}, {self.history.problems()}"
            raise AssertionError(f"{error}: {told}\n{self.describe()}") from None

    def wait_even(self, *, sending: bool = False) -> None:
        """Wait until the members share all partitions evenly, by their own account."""

        def even() -> bool:
            sizes = [len(each) for each in self.history.shares(self.members).values()]
            shared = sum(sizes) == len(self.places) and max(sizes) - min(sizes) <= 1
            return shared and not self.history.problems()  # a member may learn late that it has lost a partition

        self.wait(even, f"{list(self.members)} share {len(self.places)} partitions", sending=sending)

    def wait_all_read(self) -> None:
        """Wait until every record was read, and its offset is committed on the coordinator."""
        self.wait(lambda: len(self.history.times) == self.sent, f"{self.sent} records are read")
        self.wait(lambda: self.committed() == self._ends, "all is committed")

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets, and note whether one went back."""
        found = {place: int(offset) for place, offset in self._admin.committed(self.name).items()}
        for place, before in self._offsets.items():
            if found.get(place, -1) < before:
                self.went_back.append(f"{place}: {found.get(place)} after {before}")
        self._offsets = found
        return found

    def coordinator(self) -> int:
        """Return the node id of the group's coordinator."""
        return self._admin.describe_group(self.name).coordinator

    def describe(self) -> str:
        """Return the group as the coordinator sees it."""
        return str(self._admin.describe_group(self.name))

    def check(self, protocol: str = "consumer") -> None:
        """Check all that must hold at any time. A client could have used the classic protocol without a word."""
        self._listen()
        problems = [*self.history.problems(), *self.went_back]
        assert not problems, problems
        assert self._admin.describe_group(self.name).type == protocol.title(), self.describe()

    def _listen(self) -> None:
        process = next(iter(self.members.values()), None)
        path = self.folder / "members.out"
        lines = list(process.lines()) if process else path.read_text().splitlines()
        self.history.add(lines[self._seen :])
        self._seen = len(lines)


@contextmanager
def live_group(
    bootstrap: str, name: str, folder: Path, *, partitions: int = 0, subscription: str = ""
) -> Iterator[LiveGroup]:
    """Create the group, and its topic of this name if it has partitions. End its members afterwards."""
    group = LiveGroup(bootstrap, name, folder, subscription or name)
    try:
        if partitions:
            group.create_topic(name, partitions)
        yield group
    finally:
        group.close()
