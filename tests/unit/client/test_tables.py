"""What of fetched bytes becomes tables: what lies before damage comes first."""

from __future__ import annotations

from typing import Any, cast

import pytest

from oncelog import errors
from oncelog.client.consumer.fetcher import Fetched, PartitionState
from oncelog.client.consumer.reader import Reader as RealReader
from oncelog.client.consumer.tables import decode
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import Record, build_batch

TP = ("t", 0)


def batch(offset: int) -> bytearray:
    return build_batch([Record(offset, 0, None, b"v%d" % offset)], base_offset=offset)


class Reader:
    """As much of one as `decode` needs: a partition, and what of it waits."""

    def __init__(self, data: bytes) -> None:
        self.options = {"check_crcs": True}
        self.state = PartitionState()
        self.state.seek(0)
        self.states = {TP: self.state}
        self.state.buffered.append(Fetched(TP, PartitionData(records=data), 0, committed_only=False, check_crcs=True))

    give_back: Any = RealReader.give_back

    def arrived(self, tp: tuple[str, int]) -> None:
        assert tp == TP

    def next(self) -> list[Any]:
        fetched = self.state.buffered.popleft()
        reader: Any = self
        values: list[Any] = decode(reader, [fetched], include_headers=False)["value"].to_pylist()
        return values


def test_batches_before_a_damaged_one_come_first() -> None:
    damaged = batch(2)
    damaged[-1] ^= 1
    reader = Reader(bytes(batch(0) + batch(1) + damaged + batch(3)))
    assert reader.next() == [b"v0", b"v1"]
    assert reader.state.consumed == 2
    for _ in range(2):  # it stays there
        with pytest.raises(errors.CorruptRecordError, match="t-0 at offset 2"):
            reader.next()


def test_what_polls_have_taken_is_not_given_again() -> None:
    reader = Reader(bytes(batch(0) + batch(1)))
    assert [record.value for record in reader.state.buffered[0].take(1)] == [b"v0"]
    reader.state.consumed = 1
    assert reader.next() == [b"v1"]
    assert not reader.state.buffered


class Numbers:
    """A format that calls a registry, which is away at first."""

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
def test_what_a_format_fails_at_comes_again(failures: list[BaseException | None]) -> None:
    fake = Reader(bytes(batch(0)))
    fake.state.buffered.append(
        Fetched(TP, PartitionData(records=bytes(batch(1))), 1, committed_only=False, check_crcs=True)
    )
    form, reader = Numbers(*failures), cast(Any, fake)

    def read() -> list[Any]:
        raw = list(fake.state.buffered)
        fake.state.buffered.clear()
        found: list[Any] = decode(reader, raw, include_headers=False, value=form)["value"].to_pylist()
        return found

    seen: list[Any] = []
    for _ in range(2):
        try:
            seen += read()
        except (ConnectionError, KeyboardInterrupt):
            assert fake.state.consumed == 0
            assert len(fake.state.buffered) == 2
    assert seen == [b"v0", b"v1"]
    assert fake.state.consumed == 2
