"""Three broker processes, one of which loses its disk: acknowledged records survive, in whichever order they start."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from oncelog.protocol.messages.metadata import MetadataResponse
from support.broker_processes import BrokerProcesses, broker_processes, leaders, running
from support.numbers import check_numbers, write_numbers
from support.processes import wait_until

ALL = (1, 2, 3)
RECORDS = 300


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[BrokerProcesses]:
    """Yield three brokers with a topic of three partitions, which has acknowledged records."""
    with broker_processes(tmp_path) as processes:
        for broker in ALL:
            processes.start(broker)
        processes.until(1, lambda metadata: running(metadata) == [*ALL])
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate([[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        ]
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
        (result,) = processes.ask(1, CreateTopicsRequest(topics=[topic])).topics
        assert result.error_code == 0
        for broker in ALL:
            processes.until(broker, lambda metadata: len(leaders(metadata)) == 3)
        write_numbers(addresses(processes), range(RECORDS))
        yield processes


def addresses(processes: BrokerProcesses) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in processes.ports.values())


def is_complete(metadata: MetadataResponse) -> bool:
    """Return whether all brokers are in sync."""
    return all(sorted(each.isr_nodes) == [*ALL] for topic in metadata.topics for each in topic.partitions)


def led_by(metadata: MetadataResponse) -> list[int]:
    """Return the leader of each partition of the topic."""
    (topic,) = (topic for topic in metadata.topics if topic.name == "t")
    return [partition.leader_id for partition in topic.partitions]


def lose_disk(processes: BrokerProcesses) -> None:
    """Start broker 2 with a new disk, before the others, and check that it leads nothing."""
    lost = processes.folder / "data-2"
    shutil.rmtree(lost)
    processes.start(2, lost_log_dirs=str(lost))
    wait_until(lambda: processes.metadata(2).controller_id == 2, "broker 2 is the controller")
    time.sleep(0.3)
    assert led_by(processes.metadata(2)) == [-1, -1, -1]


def test_broker_that_starts_first_with_a_new_disk_copies_the_records_of_the_others(processes: BrokerProcesses) -> None:
    for broker in ALL:
        processes.kill(broker)
    lose_disk(processes)
    for broker in (1, 3):
        processes.start(broker)
    check_numbers(addresses(processes), RECORDS)
    assert not {2, -1} & set(led_by(processes.metadata(1)))
    processes.until(1, is_complete)
    processes.kill(1)
    processes.kill(3)
    processes.until(2, lambda metadata: led_by(metadata) == [2, 2, 2])
    check_numbers(addresses(processes), RECORDS)
    processes.kill(2)
    processes.start(2)
    processes.until(2, lambda metadata: led_by(metadata) == [2, 2, 2])


@pytest.mark.parametrize("damage", ["partition directories are gone", "old copy"])
def test_damaged_broker_that_starts_first_takes_no_records_of_the_others(
    processes: BrokerProcesses, damage: str
) -> None:
    folder, aside = processes.folder / "data-2", processes.folder / "aside"
    if damage == "old copy":
        processes.kill(2)
        shutil.copytree(folder, aside)
        processes.start(2)
    processes.until(2, is_complete)
    write_numbers(addresses(processes), range(RECORDS, 2 * RECORDS))
    marks = folder / "replication-offset-checkpoint"
    wait_until(
        lambda: (
            marks.exists() and all(f"t {partition} {2 * RECORDS // 3}\n" in marks.read_text() for partition in range(3))
        ),
        "the checkpoint of broker 2 has all records",
    )
    for broker in ALL:
        processes.kill(broker)
    if damage == "old copy":
        shutil.rmtree(folder)
        aside.rename(folder)
    else:
        for partition in range(3):
            shutil.rmtree(folder / f"t-{partition}")
    processes.start(2)
    wait_until(lambda: processes.metadata(2).controller_id == 2, "broker 2 is the controller")
    assert led_by(processes.metadata(2)) == [-1, -1, -1]
    for broker in (1, 3):
        processes.start(broker)
    check_numbers(addresses(processes), 2 * RECORDS)
    processes.until(1, is_complete)


def test_only_an_unclean_election_gives_up_the_lost_disk_of_the_last_in_sync_replica(
    processes: BrokerProcesses,
) -> None:
    for broker in (1, 3):
        processes.stop(broker)
    processes.until(2, lambda metadata: led_by(metadata) == [2, 2, 2])
    processes.stop(2)
    lose_disk(processes)
    processes.kill(2)
    processes.start(2)  # the broker knows of the loss, although the setting is gone
    for broker in (1, 3):
        processes.start(broker)
    processes.until(2, lambda metadata: running(metadata) == [*ALL])
    time.sleep(0.3)
    assert led_by(processes.metadata(2)) == [-1, -1, -1]
    topics = [ElectLeadersTopic(topic="t", partitions=[0, 1, 2])]
    request = ElectLeadersRequest(election_type=1, topic_partitions=topics, timeout_ms=5000)
    answer = processes.ask(processes.metadata(2).controller_id, request)
    assert {each.error_code for each in answer.replica_election_results[0].partition_result} == {0}
    check_numbers(addresses(processes), RECORDS)
    assert not {2, -1} & set(led_by(processes.metadata(1)))
    processes.until(1, is_complete)
