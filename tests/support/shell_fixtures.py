"""The shell around coordinators with its own log, and a coordinator that records its calls."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.workers import Runtime
from oncelog.cluster.replica import Replica
from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.log.config import LogConfig
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.schema import read_version
from support.crashdisk import CrashDisk
from support.logs import NOW, leading_replica, open_log

TOPIC = "__consumer_offsets"


class Remembering:
    """A coordinator whose state is the list of replayed records."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.ended: list[tuple[int, bool]] = []
        self.due: int | None = None

    def replay(self, record: CoordinatorRecord, **_: int | None) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert isinstance(record.value, OffsetCommitValue)
        self.seen.append((record.key.topic, record.value.offset))

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        self.ended.append((producer_id, commit))

    def loaded(self, now_ms: int) -> Effects:
        return Effects()

    def deadline(self) -> int | None:
        return self.due

    def tick(self, now_ms: int) -> Effects:
        raise RuntimeError("no clock")


def record(topic: str, offset: int) -> CoordinatorRecord:
    key = OffsetCommitKey(group="g", topic=topic, partition=0)
    return CoordinatorRecord(key, 1, OffsetCommitValue(offset=offset, metadata="", commit_timestamp=NOW), 3)


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    assert value is not None
    version = read_version(value)
    return CoordinatorRecord(
        OffsetCommitKey.decode(key[2:], read_version(key)), 1, OffsetCommitValue.decode(value[2:], version), version
    )


class BrokerStub:
    """The parts of a broker that the shell needs."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.disk = CrashDisk()
        self.log = open_log(self.disk, config)
        self.replica = leading_replica(TOPIC, self.log)
        self.leading = True
        self.epoch = 0
        """The leader epoch in the metadata."""
        self.commit_timeout_ms = 30_000
        self.made: list[int] = []
        """The epochs for which the shell has made coordinators."""
        self.fails: list[Exception] = []
        self.asked: Callable[[], None] = lambda: None

    def get(self, topic: str, partition: int) -> Replica:
        self.asked()
        if self.fails:
            raise self.fails.pop(0)
        return self.replica

    async def open_in_turns(self, topic: str, partition: int) -> None:
        """Do nothing: the log is open."""

    def make(self, epoch: int) -> Remembering:
        self.made.append(epoch)
        return Remembering()

    def elect(self, shell: CoordinatorShell[Remembering], epoch: int) -> Awaitable[None]:
        """Tell the shell that this broker leads under a later epoch. Return what loads the partition."""
        self.epoch = epoch
        topic = SimpleNamespace(name=TOPIC)
        delta: Any = SimpleNamespace(deleted_topics=(), created_topics=(), changed_topics=(topic,))
        load = shell.terms.metadata_changed(delta)
        assert load is not None
        return load()

    def run(self, life: Callable[[CoordinatorShell[Remembering]], Awaitable[None]]) -> None:
        async def main() -> None:
            tasks: list[asyncio.Future[None]] = []
            workers: Any = SimpleNamespace(spawn=lambda work, name: tasks.append(asyncio.ensure_future(work)))
            image = SimpleNamespace(
                topic=lambda name: SimpleNamespace(partition_count=1),
                partition=lambda name, index: SimpleNamespace(leader_epoch=self.epoch),
            )
            cache: Any = SimpleNamespace(image=image)
            partitions: Any = SimpleNamespace(
                get=self.get, open_in_turns=self.open_in_turns, leads=lambda topic, partition: self.leading
            )
            runtime = Runtime(workers, lambda: NOW, random.getrandbits, logging.getLogger("test"))
            terms = CoordinatorTerms(TOPIC, self.make, decode, cache, partitions, runtime)
            shell = CoordinatorShell(terms, cache, runtime, commit_timeout_ms=self.commit_timeout_ms)
            try:
                await life(shell)
            finally:
                shell.terms.close()

        asyncio.run(main())


def say(answer: str, *records: CoordinatorRecord) -> Callable[[Remembering, Any], Effects]:
    return lambda shard, token: Effects(records=list(records), replies=[Reply(token, answer)])
