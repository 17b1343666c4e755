"""The lines that a broker logs about many partitions at once."""

from __future__ import annotations

from uuid import UUID

from oncelog.cluster.controller.isr_log import (
    IsrChange,
    UncleanElection,
    election_summary,
    isr_summary,
    unclean_summary,
)
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.state_writes import StateWrite
from oncelog.cluster.topics import PartitionInfo, TopicInfo


def change(partition: str, before: set[int], after: set[int]) -> IsrChange:
    return IsrChange(partition, frozenset(before), frozenset(after))


def test_changes_of_many_partitions_give_one_line_with_counts_and_the_worst_three() -> None:
    changes = [change(f"t-{index}", {1, 2, 3}, {1, 3}) for index in range(100)]
    changes += [change("u-0", {1, 2}, {1}), change("v-0", {1}, {1, 3})]
    assert isr_summary(changes) == (
        "broker 2 has left those of 101 partitions; broker 3 has joined those of 1 partition. "
        "Partitions with the fewest: u-0: 1; t-0: 1, 3; t-1: 1, 3 and 99 more"
    )


def test_last_change_of_a_partition_counts() -> None:
    changes = [change("t-0", {1, 2}, {1}), change("t-0", {1}, {1, 2})]
    assert isr_summary(changes) == (
        "broker 2 has left those of 1 partition; broker 2 has joined those of 1 partition. "
        "Partitions with the fewest: t-0: 1, 2"
    )


def test_unclean_elections_name_partitions_leaders_and_the_former_members() -> None:
    elections = [UncleanElection(f"t-{index}", 2, (1, 3)) for index in range(5)]
    assert unclean_summary(elections) == (
        "unclean election of leaders for 5 partitions: acknowledged records that the new leader lacks are lost. "
        "t-0: broker 2 (in sync before: 1, 3); t-1: broker 2 (in sync before: 1, 3); "
        "t-2: broker 2 (in sync before: 1, 3) and 2 more"
    )


def test_line_of_the_controller_has_elections_lost_leaders_and_smaller_in_sync_replicas() -> None:
    led = PartitionInfo((1, 2), PartitionState(1, 0, (1, 2)))
    image = MetadataImage().with_topics({"t": TopicInfo("t", UUID(int=1), (led,) * 3)})
    states = [PartitionState(2, 1, (2,), 0), PartitionState(-1, 1, (1,), 0), PartitionState(1, 0, (1,), 0)]
    writes = [StateWrite("t", index, (), state) for index, state in enumerate(states)]
    assert election_summary(image, writes) == (
        "the controller has changed partitions: elected broker 2 for 1 partition; 1 partition without a leader (t-1); "
        "removed members from the in-sync replicas of 1 partition"
    )
