"""The services of the pages "Coming from ...", in both clients: killed in turn, and as members of one group."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncelog import Admin, Consumer, Producer
from support.docs_blocks import ROOT, blocks
from support.history import check_once
from support.processes import ManagedProcess, wait_until
from support.servers import Server

RECORDS = 100
"""How many records a service gets before each start."""
PARTITIONS = 3
KILLS = 2


class Service(NamedTuple):
    """A service in both clients that writes one output record for each input record."""

    programs: tuple[str, str]
    arguments: tuple[str, ...]
    source: str
    target: str
    value: Callable[[int], str]
    number: Callable[[bytes], int]
    ready: str
    """What it prints after its first output."""
    short_session: tuple[str, str]
    """A replacement in the program's text, so that the group of a killed member continues soon."""


BILLING = Service(
    ("billing_confluent.py", "billing_oncelog.py"),
    ("bill",),
    "orders",
    "invoices",
    lambda number: json.dumps({"id": number, "price": 2, "count": number}),
    lambda value: int(json.loads(value)["id"]),
    "orders billed",
    ('"group.id": group,', '"group.id": group, "session.timeout.ms": 6000,'),
)
ALARMS = Service(
    ("alarms_aiokafka.py", "alarms_oncelog.py"),
    (),
    "readings",
    "alarms",
    str,
    int,
    "page ",
    ("group_id=group,", "group_id=group, session_timeout_ms=6000,"),
)

Start = Callable[..., ManagedProcess]


@pytest.fixture
def start(own_server: Server, tmp_path: Path) -> Iterator[Start]:
    """Start a program of a page: its file's name, and its arguments. `replace` changes its text."""
    programs = {
        block.text: block.code
        for page in ("docs/from-confluent-kafka.md", "docs/from-aiokafka.md")
        for block in blocks(page, (ROOT / page).read_text())
        if block.kind == "file"
    }
    started: list[ManagedProcess] = []

    def start(name: str, *arguments: str, replace: tuple[str, str] = ("", "")) -> ManagedProcess:
        path = tmp_path / f"{len(started)}-{name}"
        path.write_text(programs[name].replace("localhost:9092", own_server.bootstrap).replace(*replace))
        started.append(ManagedProcess([sys.executable, str(path), *arguments], tmp_path, path.stem, dict(os.environ)))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def values(server: Server, topic: str) -> list[bytes]:
    """Return the values of the committed records of a topic."""
    with Consumer(server.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, number) for number in range(consumer.list_topics()[topic])])
        consumer.seek_to_beginning()
        found: list[bytes] = []
        while any(consumer.lag().values()):
            found += [record.value or b"" for record in consumer.poll(1)]
    return found


@pytest.mark.parametrize("service", [BILLING, ALARMS], ids=["confluent-kafka", "aiokafka"])
def test_output_is_exact_while_both_versions_are_killed_in_turn(
    own_server: Server, start: Start, service: Service
) -> None:
    """Each version continues where the other one was killed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    done = 0

    def send(count: int) -> None:
        nonlocal done
        with Producer(own_server.bootstrap) as producer:
            for number in range(done, done + count):
                producer.send(service.source, service.value(number), key=f"{number % 10}")
        done += count

    def run(number: int) -> ManagedProcess:
        return start(service.programs[number % 2], *service.arguments, replace=service.short_session)

    with Admin(own_server.bootstrap) as admin:
        admin.create_topics([service.source, service.target], PARTITIONS)
        admin.create_topics(["limits", "pages"])
    with Producer(own_server.bootstrap) as producer:
        for number in range(10):
            producer.send("limits", "-1", key=f"{number}")
    for number in range(KILLS):
        send(RECORDS)
        process = run(number)
        process.wait_for(lambda p=process: service.ready in p.output(), "the first output", timeout=60)  # type: ignore[misc]
        send(chance.randrange(5, RECORDS))
        process.kill()
    send(RECORDS)  # for the last process: it is stopped after it has written output
    process = run(KILLS)
    wait_until(lambda: len(values(own_server, service.target)) >= done, "the output is complete", timeout=60)
    assert process.stop() == 0, process.output()
    check_once(range(done), map(service.number, values(own_server, service.target)))


def test_versions_share_the_partitions_of_a_group(own_server: Server, start: Start) -> None:
    with Admin(own_server.bootstrap) as admin:
        admin.create_topics(["invoices"], PARTITIONS)
        admin.create_topics(["mails"])
        versions = ["billing_confluent.py", "billing_oncelog.py"]
        members = [start(name, "announce") for name in versions]

        def shared() -> bool:
            members = admin.describe_group("announcements").members
            return sorted(len(member.assignment or ()) for member in members) == [1, 2]

        wait_until(shared, "both versions have partitions", timeout=60)
        with Producer(own_server.bootstrap) as producer:
            for number in range(90):
                producer.send("invoices", str(number), partition=number % PARTITIONS)
        wait_until(lambda: len(values(own_server, "mails")) >= 90, "all invoices are mailed", timeout=60)
        assert [member.stop() for member in members] == [0, 0]
        assert all("mailed" in "".join(member.lines()) for member in members)
        check_once((b"invoice %d" % number for number in range(90)), values(own_server, "mails"))
