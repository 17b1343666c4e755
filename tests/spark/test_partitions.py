"""Read the decision topic from a broker that has just started: its high watermark is lower than previously reported."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog import errors
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import build_control_batch
from oncelog.spark.cluster import partitions
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner, Part, Span, TaskTransaction

AT = TopicPartition("decisions", 0)
MARKER = bytes(build_control_batch(True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0))


def broker(monkeypatch: pytest.MonkeyPatch, answers: list[PartitionData]) -> Any:
    """Return a broker whose log ends at 1. Each Fetch gets the next answer, and the last one repeats."""
    monkeypatch.setattr(
        partitions, "list_offsets", lambda cluster, wanted: {AT: 1 if wanted[AT] == partitions.LATEST else 0}
    )
    monkeypatch.setattr(partitions, "fetch", lambda *_, max_wait_ms: answers.pop(0) if len(answers) > 1 else answers[0])
    return None


@pytest.mark.parametrize("before", [None, 1])
def test_window_extends_to_the_reported_end(monkeypatch: pytest.MonkeyPatch, before: int | None) -> None:
    outdated = PartitionData(log_start_offset=0, high_watermark=0, last_stable_offset=0, records=None)
    there = PartitionData(log_start_offset=0, high_watermark=1, last_stable_offset=1, records=MARKER)
    cluster = broker(monkeypatch, [outdated, outdated, there])
    window = partitions.read_window(cluster, op.ReadDecisions(AT, before))
    assert (window.end, [message.commit for message in window.messages]) == (1, [True])


def test_end_that_is_never_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "REQUEST_TIMEOUT_MS", 1)
    cluster = broker(
        monkeypatch, [PartitionData(log_start_offset=0, high_watermark=0, last_stable_offset=0, records=None)]
    )
    with pytest.raises(
        errors.TimedOutError, match="decisions-0 returns no records from offset 0 on, although its end was 1"
    ):
        partitions.read_window(cluster, op.ReadDecisions(AT))


def test_reader_waits_for_parts_that_a_restarted_broker_does_not_show_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(0, (TaskTransaction(Owner("p/0/0/0.0", 7, 0), (Span(AT, 0, 4),)),))
    records = bytes(partitions.decision_batch(Owner("p", 1, 0), part, 0))
    outdated = PartitionData(log_start_offset=0, high_watermark=0, last_stable_offset=0, records=None)
    there = PartitionData(log_start_offset=0, high_watermark=1, last_stable_offset=1, records=records)
    cluster = broker(monkeypatch, [outdated, outdated, there])
    assert partitions.read_parts(cluster, op.ReadParts(AT, (0,))) == (part,)


def test_parts_removed_by_compaction_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    there = PartitionData(log_start_offset=0, high_watermark=1, last_stable_offset=1, records=MARKER)
    cluster = broker(monkeypatch, [there])
    with pytest.raises(SinkError, match=r"has lost the parts of its last record at offsets \[0\]"):
        partitions.read_parts(cluster, op.ReadParts(AT, (0,)))
