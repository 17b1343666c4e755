"""Golden transcripts: the coordinator's requests, answers, records and markers.

A line that starts with `>` is a command, followed by the expected output. `REWRITE_TRANSCRIPTS=1` rewrites the files;
review the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.coordinator.effects import CoordinatorRecord, Markers
from oncelog.coordinator.transactions.records import transaction_of
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import TopicPartition
from support.transaction_driver import START_MS, Driver

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Transcript:
    def __init__(self) -> None:
        self.driver = Driver().start()

    def run(self, command: str) -> Iterator[str]:
        name, *words = command.split()
        records, markers = len(self.driver.log), list(self.driver.markers)
        commands: dict[str, Callable[..., str | None]] = {
            "init": self.init,
            "add": self.add,
            "verify": self.verify,
            "end": self.end,
            "markers": self.markers,
            "wait": self.wait,
            "failover": self.failover,
        }
        answer = commands[name](*words)
        if answer is not None:
            yield f"answer  {answer}"
        yield from (f"record  {record_text(record)}" for record in self.driver.log[records:])
        yield from (f"marker  {marker_text(entry)}" for entry in self.driver.markers if entry not in markers)

    def init(self, name: str, *words: str) -> str:
        fields: dict[str, Any] = {}
        for word in words:
            key, _, value = word.partition("=")
            fields[key] = producer_of(value) if key == "producer" else int(value)
        response = self.driver.init(name, **fields)
        return answer_text(response.error_code, response.producer_id, response.producer_epoch)

    def add(self, name: str, producer: str, version: str, *partitions: str) -> str:
        client_version = int(version.removeprefix("tv"))
        added = map(partition_of, partitions)
        return self.driver.add(name, producer_of(producer), *added, client_version=client_version).name

    def verify(self, name: str, producer: str, *partitions: str) -> str:
        wanted = [partition_of(text) for text in partitions]
        found = self.driver.coordinator.verify_partitions(name, *producer_of(producer), wanted)
        return " ".join(f"{topic}-{index}={found[topic, index].name}" for topic, index in wanted)

    def end(self, name: str, producer: str, version: str, outcome: str) -> str:
        response = self.driver.end(
            name, producer_of(producer), outcome == "commit", version=int(version.removeprefix("v"))
        )
        return answer_text(response.error_code, response.producer_id, response.producer_epoch)

    def markers(self, *words: str) -> None:
        errors = dict(word.split("=") for word in words)
        self.driver.write_markers(
            {partition_of(text): ErrorCode[name] for text, name in errors.items() if name != "deleted"},
            {partition_of(text) for text, name in errors.items() if name == "deleted"},
        )

    def wait(self, ms: str) -> None:
        self.driver.tick(int(ms))

    def failover(self) -> None:
        self.driver.reload()


def producer_of(text: str) -> tuple[int, int]:
    producer_id, epoch = text.split("/")
    return int(producer_id), int(epoch)


def partition_of(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def answer_text(error: int, producer_id: int, epoch: int) -> str:
    return f"{ErrorCode(error).name} {producer_id}/{epoch}"


def record_text(record: CoordinatorRecord) -> str:
    key: Any = record.key
    if record.value is None:
        return f"{key.transactional_id} forgotten"
    value: Any = record.value
    state = transaction_of(key, value)
    words = [state.transactional_id, state.state.text, f"{state.producer_id}/{state.producer_epoch}"]
    words += [f"{topic}-{index}" for topic, index in sorted(state.partitions)]
    words.append(f"tv={state.client_version} timeout={state.timeout_ms}")
    if state.start_ms >= 0:
        words.append(f"start={state.start_ms - START_MS}")
    words.append(f"updated={state.last_update_ms - START_MS} previous={state.previous_producer_id}")
    if state.next_producer_id >= 0:
        words.append(f"next={state.next_producer_id}")
    return " ".join(words)


def marker_text(markers: Markers) -> str:
    partitions = " ".join(f"{topic}-{index}" for topic, index in markers.partitions)
    return (
        f"{markers.transactional_id} {'COMMIT' if markers.commit else 'ABORT'} "
        f"{markers.producer_id}/{markers.producer_epoch} coordinator={markers.coordinator_epoch} "
        f"tv={markers.transaction_version} {partitions}"
    )


def replayed(text: str) -> str:
    """Return the transcript with the actual output. Comments and blank lines are kept."""
    transcript = Transcript()
    lines = []
    for line in text.splitlines():
        if line.startswith(("#", ">")) or not line:
            lines.append(line)
        if line.startswith(">"):
            lines += transcript.run(line[1:].strip())
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    found = replayed(expected)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(found, encoding="utf-8")
    assert found == expected


def test_transcripts_exist() -> None:
    assert len(FILES) >= 5
