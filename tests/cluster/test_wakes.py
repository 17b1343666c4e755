"""Brokers follow the metadata without polling, because each write wakes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.broker.metadata import loader
from support.broker_sets import Brokers, everywhere, run, three
from support.turns import until


@pytest.fixture(autouse=True)
def _no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "POLL_S", 3600.0)
    monkeypatch.setattr(loader, "SHARED_POLL_S", 3600.0)


def test_new_topic_is_known_to_all_brokers(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        await three(brokers)
        for node_id in (1, 2, 3):
            name = f"topic-{node_id}"
            await brokers.running[node_id].topics.create(name, replication_factor=3)
            await everywhere(brokers, name)

    run(Brokers(tmp_path), body)


def test_broker_follows_its_own_write(tmp_path: Path) -> None:
    """A leader that writes its in-sync replicas reads no image afterwards."""

    async def body(brokers: Brokers) -> None:
        await three(brokers)
        first = brokers.running[1]
        await first.topics.create("t", assignment=[(1, 2, 3)])
        await everywhere(brokers, "t")
        await brokers.stop(2)
        await until(lambda: first.metadata.image.topics_by_name["t"].partitions[0].isr == (1, 3))
        await brokers.start(2)
        await until(lambda: set(first.metadata.image.topics_by_name["t"].partitions[0].isr) == {1, 2, 3})

    run(Brokers(tmp_path), body)


def test_broker_that_starts_again_is_woken_again(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        await three(brokers)
        await brokers.crash(2)
        await brokers.start(2)
        await brokers.running[1].topics.create("t", assignment=[(1, 2, 3)])
        await everywhere(brokers, "t")

    run(Brokers(tmp_path), body)
