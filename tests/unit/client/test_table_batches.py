"""The partitions of a table's rows without a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from oncelog import errors
from oncelog.client.producer.options import producer_options
from oncelog.client.producer.partitioner import Sticky, spread
from oncelog.client.producer.table_batches import TableBatches, Target
from oncelog.columns.decode import decode_batches
from oncelog.formats import Json
from oncelog.protocol.records import stamp


def target(weights: Sequence[int] | None, queues: Sequence[int] | None = None, partitions: int = 4) -> Target:
    """Return a target with these weights, or with weights from the queues at the time of the call."""
    options = producer_options(None, {"bootstrap_servers": "nowhere:1"})

    def now(topic: str, count: int) -> Sequence[int] | None:
        return weights if queues is None else spread(queues, [True] * count)

    chosen = Sticky(options["batch_size"], lambda count: 0, weights=now)
    return Target("t", partitions, chosen, options, None, None, lambda: 0)


def rows_of(found: TableBatches) -> Counter[int]:
    """Return the bytes of batches by partition."""
    sizes: Counter[int] = Counter()
    for (_, partition), data in found:
        sizes[partition] += len(data)
    return sizes


def test_equal_partitions_get_equal_shares() -> None:
    found = rows_of(TableBatches(pa.table({"value": [b"x" * 1_000] * 4_000}), target(None)))
    assert len(found) == 4
    assert max(found.values()) - min(found.values()) < 300_000, "about one batch"


def test_every_share_is_weighted() -> None:
    found = rows_of(TableBatches(pa.table({"value": [b"x" * 1_000] * 40_000}), target([0, 1, 3, 0])))
    assert set(found) == {1, 2}, "a partition without a leader, or with a long queue, gets nothing"
    assert 2.8 < found[2] / found[1] < 3.2


def test_rows_without_a_key_among_others_are_weighted() -> None:
    keys = [None if i % 2 else b"k" for i in range(40_000)]
    found = rows_of(TableBatches(pa.table({"key": keys, "value": [b"x" * 1_000] * 40_000}), target([0, 1, 3, 0])))
    (of_key,) = rows_of(TableBatches(pa.table({"key": [b"k"], "value": [b"x"]}), target(None)))
    assert set(found) == {1, 2, of_key}


def test_partition_that_falls_behind_gets_less_of_the_table() -> None:
    """Each share uses the queues at its turn, as each batch does in Kafka's BuiltInPartitioner."""
    queues = [0, 0, 0, 0]
    found: Counter[int] = Counter()
    for number, ((_, partition), _data) in enumerate(
        TableBatches(pa.table({"value": [b"x" * 1_000] * 60_000}), target(None, queues))
    ):
        if number >= 20:
            queues[0] = 1_000_000
            found[partition] += 1
    assert found[0] <= 3
    assert min(found[partition] for partition in (1, 2, 3)) > 20


def test_rows_of_a_partition_keep_their_order_and_none_is_lost() -> None:
    values = [b"%06d" % i * 20 for i in range(30_000)]
    by_partition: dict[int, list[bytes]] = {}
    for (_, partition), data in TableBatches(pa.table({"value": values}), target([1, 2, 3, 4])):
        stamp(data, -1, -1, -1, transactional=False)
        table, _ = decode_batches([bytes(data)], topic="t", partition=partition, start_offset=0)
        by_partition.setdefault(partition, []).extend(table["value"].to_pylist())
    assert sorted(value for found in by_partition.values() for value in found) == values
    assert all(np.all(np.diff([int(value[:6]) for value in found]) > 0) for found in by_partition.values())


# -- invalid tables ---------------------------------------------------------------------------------------------------

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a consumer's own table": (
        {"key": ["k"], "value": ["v"], "topic": ["t"], "partition": [0], "offset": [5], "timestampType": [0]},
        {},
        "the columns topic, offset, timestampType are not part of a record (key, value, headers, partition, "
        "timestamp); remove them with table.select(['key', 'value', 'partition'])",
    ),
    "the same with a format": (
        {"value": ["v"], "offset": [5]},
        {"value": Json()},
        "the column offset is not part of a record (key, value, headers, partition, timestamp); remove it with "
        "table.select(['value'])",
    ),
    "columns without a format": (
        {"key": ["k"], "id": [5]},
        {},
        "the column id is not part of a record (key, value, headers, partition, timestamp); with value=Json() or "
        "value=Avro(schema), it is part of the value",
    ),
    "nothing to write": ({"partition": [0]}, {"value": Json()}, "a table needs a column named key or value"),
    "key of numbers": (
        {"key": [5], "value": ["v"]},
        {},
        "the column key must be binary or string, not int64; cast it, or pass a format that encodes it",
    ),
    "value of lists": ({"value": [[5]]}, {}, "the column value must be binary or string, not list<"),
    "names of headers": (
        {"value": ["v"], "headers": pa.array([[{"key": 1, "value": b"x"}]])},
        {},
        "the column headers.key must be binary or string, not int64",
    ),
    "headers": ({"value": ["v"], "headers": [5]}, {}, "the column headers must be a list of structs (key, value), not"),
    "no name": (
        {"value": ["v"], "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)},
        {},
        "column headers: a header of row 0 has no key",
    ),
    "key in its format": (
        {"key": ["x"], "value": ["v"]},
        {"key": Json(pa.int64())},
        "Json: key: Failed to parse string: 'x'",
    ),
    "value in its format": (
        {"value": pa.array([{"id": "x"}])},
        {"value": Json(pa.schema([("id", pa.int64())]))},
        "Json: value: id: Failed to parse string: 'x'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_tables_are_described(case: str) -> None:
    columns, formats, message = REFUSED[case]
    with pytest.raises(errors.UsageError) as refused:
        list(TableBatches(pa.table(columns), target(None)._replace(**formats)))
    assert str(refused.value).startswith(message)


TIMES: dict[str, tuple[pa.Array, str]] = {
    "negative": (pa.array([5, -5]), "timestamp has the value -5; .*not be negative"),
    "negative time": (pa.array([-5_000], pa.timestamp("us")), "timestamp has the value -5"),
    "beyond 62 bits": (pa.array([1 << 62]), f"timestamp has the value {1 << 62}; .*at most"),
    "beyond 64 bits": (pa.array([1 << 63], pa.uint64()), "timestamp has a value that is out of range"),
    "seconds beyond 64 bits": (pa.array([1 << 60], pa.timestamp("s")), "timestamp has a value that is out of range"),
}


@pytest.mark.parametrize("which", TIMES)
def test_table_accepts_the_timestamps_that_send_accepts(which: str) -> None:
    times, message = TIMES[which]
    table = pa.table({"value": ["x"] * len(times), "timestamp": times})
    with pytest.raises(errors.UsageError, match=message):
        list(TableBatches(table, target(None)))


def test_timestamps_of_every_unit_become_milliseconds() -> None:
    for unit, number in (("s", 2), ("ms", 2_000), ("us", 2_000_999), ("ns", 2_000_999_999)):
        times = pa.array([number, None], pa.timestamp(unit))
        (batch,) = [data for _, data in TableBatches(pa.table({"value": ["a", "b"], "timestamp": times}), target(None))]
        assert times_of(batch) == [2_000, 0], unit


@pytest.mark.parametrize(("partition", "message"), [(-1, "partition has the value -1"), (1 << 63, "out of range")])
def test_impossible_partition_is_named(partition: int, message: str) -> None:
    kind = pa.uint64() if partition > 0 else pa.int64()
    table = pa.table({"value": ["x"], "partition": pa.array([partition], kind)})
    with pytest.raises(errors.UsageError, match=message):
        list(TableBatches(table, target(None)))


@pytest.mark.parametrize("kind", [pl.String, pl.Binary, pl.Categorical, pl.Enum(["a", "b"])])
def test_texts_of_polars_are_sent_and_returned_if_they_are_unsent(kind: Any) -> None:
    """polars passes views, from which Arrow takes no values."""
    words = pl.Series(["a", None, "b", "a"] * 100, dtype=pl.String).cast(kind)
    frame = pl.DataFrame({"key": words, "value": words, "partition": [0, 1, 1, 0] * 100})
    batches = TableBatches(frame, target(None))
    sent: list[bytes] = []
    for number, (_, data) in enumerate(batches):
        if number:  # the rows of partition 1 are not sent
            assert pl.DataFrame(batches.unsent()).equals(frame.filter(pl.col("partition") == 1))
            break
        stamp(data, -1, -1, -1, transactional=False)
        table, _ = decode_batches([bytes(data)], topic="t", partition=0, start_offset=0)
        assert table["key"] == table["value"]
        sent += table["value"].to_pylist()
    assert sent == [b"a"] * 200


def times_of(batch: bytearray) -> list[int]:
    stamp(batch, -1, -1, -1, transactional=False)
    table, _ = decode_batches([bytes(batch)], topic="t", partition=0, start_offset=0)
    return [time // 1_000 for time in table["timestamp"].cast(pa.int64()).to_pylist()]
