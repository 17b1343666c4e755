"""Tables from fetched bytes: batches before damage are returned first."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.client.consumer.fetch_collector import collect_fetches
from oncelog.client.consumer.subscription_state import SubscriptionState
from oncelog.client.consumer.tables import decode
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import Record, build_batch

TP = ("t", 0)


def batch(offset: int) -> bytearray:
    return build_batch([Record(offset, 0, None, b"v%d" % offset)], base_offset=offset)


class Partition:
    """A consumer's state with one partition and its fetched batches."""

    def __init__(self, *batches: bytes) -> None:
        self.subscription = SubscriptionState()
        self.subscription.assign([TP])
        self.state = self.subscription.partitions[TP]
        self.state.seek(0)
        for offset, data in enumerate(batches):
            fetch = CompletedFetch(TP, PartitionData(records=data), offset, committed_only=False, check_crcs=True)
            self.subscription.add_fetch(fetch)

    def next(self, form: Any = None) -> list[Any]:
        fetches = collect_fetches(self.subscription)
        table = decode(self.subscription, fetches, check_crcs=True, include_headers=False, value=form)
        values: list[Any] = table["value"].to_pylist()
        return values


def test_batches_before_a_damaged_one_are_returned_first() -> None:
    damaged = batch(2)
    damaged[-1] ^= 1
    partition = Partition(bytes(batch(0) + batch(1) + damaged + batch(3)))
    assert partition.next() == [b"v0", b"v1"]
    assert partition.state.consumed == 2
    for _ in range(2):  # the damage stays
        with pytest.raises(errors.CorruptRecordError, match="t-0 at offset 2"):
            partition.next()


def test_records_returned_by_poll_are_not_repeated() -> None:
    partition = Partition(bytes(batch(0) + batch(1)))
    assert [record.value for record in partition.state.buffered[0].take(1)] == [b"v0"]
    partition.state.consumed = 1
    assert partition.next() == [b"v1"]
    assert not partition.state.buffered


class Numbers:
    """A format that calls a registry, which is unavailable at first."""

    keep_bad = False

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = list(failures)

    def decode(self, values: Any) -> Any:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return values, []

    def encode(self, values: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("failures", [[ConnectionError()], [None, KeyboardInterrupt()], [None, ConnectionError()]])
def test_records_are_returned_again_after_a_format_fails(failures: list[BaseException | None]) -> None:
    partition = Partition(bytes(batch(0)), bytes(batch(1)))
    form = Numbers(*failures)
    seen: list[Any] = []
    for _ in range(2):
        try:
            seen += partition.next(form)
        except (ConnectionError, KeyboardInterrupt):
            assert partition.state.consumed == 0
            assert len(partition.state.buffered) == 2
    assert seen == [b"v0", b"v1"]
    assert partition.state.consumed == 2
