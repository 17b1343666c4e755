"""An invalid argument of a consumer is named at once, by both consumers, not at a later poll."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog import Admin, Consumer, OffsetAndMetadata, Producer, Transaction, aio, errors
from oncelog.client.group_offsets import GroupMetadata, group_and_offsets
from oncelog.client.records import check_offsets, check_partition, check_partitions, check_times

WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
MS_WANTED = r"it must be an int, ms since the epoch \(1970\), not"
PAIRS = r'pairs of topic and number, as in \[\("topic", 0\)\]'

WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("seek_to_time", (WHEN,), f"timestamp = .*: {MS_WANTED} datetime"),
    ("seek_to_time", ("2026-01-01",), f"timestamp = '2026-01-01': {MS_WANTED} str"),
    ("seek_to_time", (1.5,), f"timestamp = 1.5: {MS_WANTED} float"),
    ("seek_to_time", (1 << 63,), "timestamp = 9223372036854775808: it must fit into 64 bits"),
    ("offsets_for_times", ({("t", 0): WHEN},), rf"times\[\('t', 0\)\] = .*: {MS_WANTED} datetime"),
    ("offsets_for_times", ([("t", 0)],), "times = .*: it must be a mapping"),
    ("seek", ("t", 0, "5"), "offset = '5': it must be an int, not str"),
    ("seek", ("t", "0", 5), "the partition = '0': it must be an int, not str"),
    ("seek", (5, 0, 5), "topic = 5: it must be str, not int"),
    ("seek", ("t", 0, 1 << 63), "offset = 9223372036854775808: it must fit into 64 bits"),
    ("position", ("t", "0"), "the partition = '0': it must be an int, not str"),
    ("poll", ("1",), "timeout = '1': it must be a number of seconds, not str"),
    ("poll", (datetime.timedelta(seconds=1),), "timeout = .*: it must be a number of seconds, not timedelta"),
    ("commit", (None, "1"), "timeout = '1': it must be a number of seconds, not str"),
    ("partitions_for", (5,), "topic = 5: it must be str, not int"),
    ("subscribe", (5,), r"subscribe\(5\): it takes topic names or a pattern, not int"),
    ("subscribe", ([5],), "topic = 5: it must be str, not int"),
    ("commit", (5,), "offsets = 5: it must be a mapping"),
    ("commit", ({"t": 5},), f"a key of offsets = 't': partitions must be {PAIRS}"),
    ("commit", ({("t", 0): "5"},), r"offsets\[\('t', 0\)\] = '5': it must be an int, not str"),
    ("commit", ({("t", 0): -1},), r"offsets\[\('t', 0\)\] = -1: an offset must not be negative"),
    ("assign", ({("t", 0): -1},), r"partitions\[\('t', 0\)\] = -1: an offset must not be negative"),
    ("assign", ({("t", 0): None},), r"partitions\[\('t', 0\)\] = None: it must be an int, not NoneType"),
]
OF_PARTITIONS = ["assign", "pause", "resume", "seek_to_beginning", "seek_to_end", "committed", "end_offsets"]
OF_PARTITIONS += ["beginning_offsets"]
WRONG += [(method, ("words",), f"partitions = 'words': partitions must be {PAIRS}") for method in OF_PARTITIONS]
NO_PARTITIONS: list[tuple[Any, str]] = [
    (5, f"partitions = 5: partitions must be {PAIRS}"),
    (["words"], rf"partitions\[0\] = 'words': partitions must be {PAIRS}"),
    (("words", 1), rf"partitions\[0\] = 'words': partitions must be {PAIRS}"),
    ([("t", 0), ("words", 1, 5)], rf"partitions\[1\] = \('words', 1, 5\): partitions must be {PAIRS}"),
    ([["t", 0]], rf"partitions\[0\] = \['t', 0\]: partitions must be {PAIRS}"),
    ([(5, 0)], r"partitions\[0\] = \(5, 0\): the topic must be str, not int"),
    ([("t", "1")], r"partitions\[0\] = \('t', '1'\): the partition = '1': it must be an int, not str"),
    ([("t", None)], "the partition = None: it must be an int, not NoneType"),
    ([("t", -1)], "the partition must not be negative"),
    ([("t", 1 << 31)], "it must fit into 32 bits"),
]


def blocking(method: str, arguments: tuple[Any, ...]) -> None:
    with Consumer("localhost:1", group_id="g", enable_auto_commit=False) as consumer:
        if method not in ("subscribe", "assign"):
            consumer.assign([("t", 0)])
        getattr(consumer, method)(*arguments)


def awaited(method: str, arguments: tuple[Any, ...]) -> None:
    async def main() -> None:
        async with aio.Consumer("localhost:1", group_id="g", enable_auto_commit=False) as consumer:
            if method not in ("subscribe", "assign"):
                consumer.assign([("t", 0)])
            result = getattr(consumer, method)(*arguments)
            if isinstance(result, Coroutine):
                await result

    asyncio.run(main())


@pytest.mark.parametrize("call", [blocking, awaited])
@pytest.mark.parametrize(("method", "arguments", "words"), WRONG)
def test_invalid_argument_is_named_at_the_call(
    call: Callable[[str, tuple[Any, ...]], None], method: str, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(errors.UsageError, match=words):
        call(method, arguments)


@pytest.mark.parametrize(("partitions", "words"), NO_PARTITIONS)
def test_invalid_partitions(partitions: Any, words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        check_partitions(partitions)


def test_numbers_of_other_libraries_are_accepted() -> None:
    import numpy as np

    one = np.int64(1)
    found = [check_partition(("t", one), "it")[1], check_times({("t", 0): one})["t", 0], check_offsets({("t", 0): one})]
    assert found == [1, 1, {("t", 0): 1}]
    assert [type(number) for number in found[:2]] == [int, int]


def test_offset_keeps_its_epoch_and_metadata() -> None:
    (offset,) = check_offsets({("t", 0): OffsetAndMetadata(5, 3, "left")}).values()
    assert isinstance(offset, OffsetAndMetadata)
    assert (int(offset), offset.leader_epoch, offset.metadata) == (5, 3, "left")


def test_offset_shows_its_metadata_and_is_true_at_zero() -> None:
    first = OffsetAndMetadata(0, metadata="7")
    assert first  # `int(stored.metadata) if stored else -1` must not begin again
    assert repr({("t", 0): first}) == "{('t', 0): OffsetAndMetadata(0, metadata='7')}"
    assert repr(OffsetAndMetadata(5, 3)) == "OffsetAndMetadata(5, leader_epoch=3)"
    assert (str(first), f"{first}", f"{first:3d}", json.dumps(first)) == ("0", "0", "  0", "0")
    assert (first, hash(first)) == (0, 0)


@pytest.mark.parametrize("source", [None, 5, {("t", 0): 1}, [("t", 0)]])
def test_send_offsets_accepts_the_consumer(source: Any) -> None:
    with pytest.raises(errors.UsageError, match=f"takes a consumer, .* not {type(source).__name__}"):
        group_and_offsets(source, None)


def test_send_offsets_accepts_only_offsets_that_can_be_committed() -> None:
    assert group_and_offsets("g", {("t", 0): 5}) == (GroupMetadata("g"), {("t", 0): (5, -1, "")})
    for offsets, words in (([5], "it must be a mapping"), ({("t", 0): -1}, "must not be negative"), ({"t": 1}, PAIRS)):
        wrong: Any = offsets
        with pytest.raises(errors.UsageError, match=words):
            group_and_offsets("g", wrong)


@pytest.mark.parametrize("kind", [Transaction, aio.Transaction])
@pytest.mark.parametrize("handle", [None, 5, {"producer_id": 5}])
def test_resume_accepts_only_a_handle(kind: Any, handle: Any) -> None:
    with pytest.raises(errors.UsageError, match="handle must be a PreparedTransaction or its text, not"):
        kind.resume(handle, "localhost:1")


@pytest.mark.parametrize("call", [("seek_to_beginning",), ("seek_to_end",), ("seek_to_time", 5)])
def test_seek_before_the_first_assignment_is_an_error(call: tuple[Any, ...]) -> None:
    method, *arguments = call
    with Consumer("localhost:1", group_id="g") as consumer:
        with pytest.raises(errors.UsageError, match="no partition is assigned yet"):
            getattr(consumer, method)(*arguments)
        consumer.subscribe(["t"])
        with pytest.raises(errors.UsageError, match="seek in the listener on_assigned"):
            getattr(consumer, method)(*arguments)
        consumer.unsubscribe()
        consumer.assign([])
        getattr(consumer, method)(*arguments)


def test_error_for_unassign_says_how_to_end_the_assignment() -> None:
    with Consumer("localhost:1") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(AttributeError, match=r"call unsubscribe\(\), or assign\(\[\]\)"):
            consumer.unassign()  # type: ignore[attr-defined]
        consumer.assign([])
        assert consumer.assignment() == []


@pytest.mark.parametrize("client", [Admin, Consumer, Producer, aio.Admin, aio.Consumer, aio.Producer])
def test_mapping_as_the_first_argument_is_an_error_that_says_what_to_write(client: Callable[[Any], object]) -> None:
    with pytest.raises(errors.ConfigError, match=r"by name: config=\{'bootstrap.servers': 'HOST:PORT', ...\}"):
        client({"bootstrap.servers": "localhost:1"})
