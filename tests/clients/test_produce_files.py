"""`oncelog topic produce --from`: rows of files become records, each exactly once with `--once`."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Admin, Consumer
from oncelog.cli.produce_file import FileOptions, _prepared, _send_once
from oncelog.faults.proxy import FaultProxy
from oncelog.protocol.apis import ApiKey
from oncelog.serialization import AvroDeserializer, SchemaRegistry
from oncelog.testing.registry import SchemaRegistryDouble
from support.command_line import ONCELOG, Tool
from support.processes import wait_until
from support.servers import Server
from support.terminal import Terminal


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def records(server: Server, topic: str, count: int, **options: Any) -> list[Any]:
    """Return the committed records of partition 0 up to its end, which must be `count`."""
    found: list[Any] = []
    with Consumer(server.bootstrap, isolation_level="read_committed", **options) as consumer:
        consumer.assign({(topic, 0): 0})
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        while consumer.position(topic, 0) < end:
            found += consumer.poll(1.0)
    assert len(found) == count
    return found


TABLE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["tea", None, "ünï\n"]),
        "price": pa.array([0.5, 2.25, None]),
        "tags": pa.array([["a", "b"], [], None]),
        "at": pa.array([1_000, 2_000, 3_000], pa.timestamp("ms", "UTC")),
        "key": pa.array([b"\xff", b"k", None]),
    }
)


def test_rows_of_a_parquet_file_become_objects(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    pq.write_table(TABLE, tmp_path / "a.parquet")
    done = tool.json(
        *("topic", "produce", name, "--from", str(tmp_path / "a.parquet")),
        *("--key", "key", "--timestamp", "at", "-H", "h=x"),
    )
    assert done == {"topic": name, "records": 3, "earlier": 0, "sent_again": 0}
    found = records(server, name, 3)
    assert [json.loads(each.value) for each in found] == [
        {"id": 1, "name": "tea", "price": 0.5, "tags": ["a", "b"]},
        {"id": 2, "name": None, "price": 2.25, "tags": []},
        {"id": 3, "name": "ünï\n", "price": None, "tags": None},
    ]
    assert [(each.key, each.timestamp, each.headers) for each in found] == [
        (b"\xff", 1_000, (("h", b"x"),)),
        (b"k", 2_000, (("h", b"x"),)),
        (None, 3_000, (("h", b"x"),)),
    ]


def test_csv_has_types_or_given_ones(tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.csv.gz"
    text = 'id,note,ok\n007,"two\nlines",true\n8,,false\n'
    file.write_bytes(gzip.compress(text.encode()))
    tool("topic", "produce", name, "--from", str(file), "--key", "id")
    tool(
        "topic", "produce", name, "--from", str(file), "--key", "id", "--type", "id=string", "--transactional-id", name
    )
    found = records(server, name, 4)
    assert [each.key for each in found] == [b"7", b"8", b"007", b"8"]
    assert [json.loads(each.value) for each in found[:2]] == [
        {"note": "two\nlines", "ok": True},
        {"note": "", "ok": False},
    ]


def test_json_lines_keep_their_numbers(tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.ndjson"
    file.write_text(
        '{"id": 123456789012345678901234, "k": {"a": 1}, "t": 5}\n\n{"id": 0.1, "k": "x", "t": 6, "n": null}\n'
    )
    tool("topic", "produce", name, "--from", str(file), "--key", "k", "--timestamp", "t")
    assert [(each.key, each.value, each.timestamp) for each in records(server, name, 2)] == [
        (b'{"a":1}', b'{"id":123456789012345678901234}', 5),
        (b"x", b'{"id":0.1,"n":null}', 6),
    ]


def test_json_lines_keep_numbers_that_a_float_would_round(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.jsonl"
    values = ['{"a":[{"b":12345678901234567.89,"\u00fc":"x"}]}', '{"a":1E+400}', '{"a":0.10}', '{"a":-1E-400}']
    file.write_text("\n".join(values))
    tool("topic", "produce", name, "--from", str(file))
    values[2] = '{"a":0.1}'
    assert [each.value.decode() for each in records(server, name, 4)] == values


@pytest.mark.parametrize("text", ["2026-11-28T10:00:00+02:00", "2026-11-28 08:00:00", "2026-11-28T08:00:00.000001Z"])
def test_times_of_json_lines_are_texts(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path, text: str
) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"id": 1, "at": text}))
    tool("topic", "produce", name, "--from", str(file), "--timestamp", "at")
    assert [each.timestamp for each in records(server, name, 1)] == [1_795_852_800_000]
    file.write_text(json.dumps({"id": 1, "at": "tea"}))
    said = tool.fails(1, "topic", "produce", name, "--from", str(file), "--timestamp", "at")
    assert "column 'at': Failed to parse string: 'tea' as a scalar of type timestamp[us, tz=UTC]" in said
    assert "assume_timezone" not in said


def test_file_without_rows_sends_nothing(tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    for file, text in (("a.csv", ""), ("b.csv", "id\n"), ("c.jsonl", "\n")):
        (tmp_path / file).write_text(text)
        assert tool.json("topic", "produce", name, "--from", str(tmp_path / file))["records"] == 0
    pq.write_table(TABLE.slice(0, 0), tmp_path / "d.parquet")
    assert tool.json("topic", "produce", name, "--from", str(tmp_path / "d.parquet"))["records"] == 0
    records(server, name, 0)


def test_bad_rows_are_found_before_anything_is_sent(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    cases = {
        "a.jsonl": ('{"id": 1}\n{"id": NaN}\n', "line 2 is not JSON: NaN is not a number in JSON"),
        "b.jsonl": ('{"id": 1}\n[2]\n', "line 2 is not a JSON object"),
        "c.csv": ("id\n" + "1\n" * 9_000_000 + "x\n", "name the column's type with --type COLUMN=TYPE"),
        "d.csv": ("id,id\n1,2\n", "two columns have the name id"),
        "e.parquet": ("no parquet", "e.parquet: "),
        "f.jsonl": ('{"id": 1e9999999999999999999}\n', "line 1 is not JSON: 1e9999999999999999999 has too large an"),
    }
    for file, (text, reason) in cases.items():
        (tmp_path / file).write_text(text)
        assert reason in tool.fails(1, "topic", "produce", name, "--from", str(tmp_path / file)), file
    records(server, name, 0)


def test_wrong_options_of_files_are_named(tool: Tool, name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,x\n1,2\n")
    start = ("topic", "produce", name)
    of_file = (*start, "--from", str(file))
    for arguments, reason in (
        ((*start, "--key", "id"), "--key needs --from FILE"),
        ((*start, "--once", "a"), "--once needs --from FILE"),
        ((*of_file, "--key", "nr"), "has no column 'nr'; it has id, x"),
        ((*of_file, "-K", ":"), "are for lines of stdin"),
        ((*of_file, "--register"), "--register needs --value-format avro"),
        ((*of_file, "--value-format", "avro"), "name it with --registry URL"),
        ((*of_file, "--type", "id=number"), "'number' is not a type of Arrow"),
        ((*of_file, "--once", "a", "--transactional-id", "b"), "--once cannot be used together"),
        ((*of_file, "--once", "a", "--acks", "1"), "--once cannot be used together with --acks 1"),
        ((*start, "--from", str(tmp_path)), "the name ends with none of"),
    ):
        assert reason in " ".join(tool.fails(2, *arguments).split()), arguments
    assert "No such file" in tool.fails(1, *start, "--from", str(tmp_path / "no.csv"))
    os.mkfifo(tmp_path / "pipe.csv")  # to open it would wait for a writer
    assert "is not a file on a disk" in tool.fails(2, *start, "--from", str(tmp_path / "pipe.csv"))


# -- Avro -------------------------------------------------------------------------------------------------------------


def test_avro_values_have_a_registered_schema(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    table = TABLE.append_column("sum", pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(8, 2)))
    pq.write_table(table, tmp_path / "a.parquet")
    arguments = ("topic", "produce", name, "--from", str(tmp_path / "a.parquet"), "--value-format", "avro")
    arguments = (*arguments, "--registry", fake.url)
    assert "use --register" in tool.fails(1, *arguments)
    tool(*arguments, "--register")
    tool(*arguments)  # with the latest schema
    found = records(server, name, 6, value_deserializer=AvroDeserializer(SchemaRegistry(fake.url)))
    assert found[0].value == found[3].value
    assert found[0].value == {
        "id": 1,
        "name": "tea",
        "price": 0.5,
        "tags": ["a", "b"],
        "at": datetime.fromtimestamp(1, UTC),
        "key": b"\xff",
        "sum": Decimal("1.50"),
    }
    assert len(fake.subjects[f"{name}-value"]) == 1
    pq.write_table(table.append_column("more", pa.array([1, 2, 3])), tmp_path / "a.parquet")
    assert "has no field more" in tool.fails(1, *arguments)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2}


def test_json_lines_are_written_with_a_schema_of_a_file(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "at": "2026-01-02T03:04:05Z", "in": {"a": null}, "sum": 12345678901234567.89}\n{"id": 2}\n'
    )
    at = {"type": "long", "logicalType": "timestamp-millis"}
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": ["null", "string"]}]}
    fields = [
        {"name": "id", "type": "int"},
        {"name": "at", "type": ["null", at], "default": None},
        {"name": "in", "type": ["null", inner], "default": None},
        {"name": "sum", "type": ["null", DECIMAL], "default": None},
    ]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    arguments = ("topic", "produce", name, "--from", str(tmp_path / "a.jsonl"), "--value-format", "avro")
    arguments = (*arguments, "--registry", fake.url, "--schema", str(tmp_path / "order.avsc"))
    assert "register" in tool.fails(1, *arguments)
    tool(*arguments, "--register")
    found = records(server, name, 2, value_deserializer=AvroDeserializer(SchemaRegistry(fake.url)))
    assert [each.value for each in found] == [
        {
            "id": 1,
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "in": {"a": None},
            "sum": Decimal("12345678901234567.89"),
        },
        {"id": 2, "at": None, "in": None, "sum": None},
    ]
    (tmp_path / "a.jsonl").write_text('{"id": 1, "in": {"b": 5}}\n')
    assert "has no field in.b" in tool.fails(1, *arguments)


# -- exactly once -----------------------------------------------------------------------------------------------------


def many_groups(path: Path, rows: int, first: int = 0) -> None:
    """Write a file whose row groups are small, because each becomes a transaction."""
    numbers = pa.array(range(first, first + rows), pa.int64())
    pq.write_table(pa.table({"id": numbers, "text": ["x" * 20] * rows}), path, row_group_size=500)


def test_finished_run_sends_nothing_again(tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.parquet"
    many_groups(file, 1_200)
    arguments = ("topic", "produce", name, "--from", str(file), "--once", name)
    assert tool.json(*arguments)["records"] == 1_200
    done = tool.run(*arguments)
    assert (done.returncode, done.stderr) == (0, f"oncelog: '{name}' has sent all rows, so this run has sent nothing\n")
    committed = admin.committed(f"oncelog-produce-{name}")
    assert {tp: int(offset) for tp, offset in committed.items()} == {(name, 0): 1_200}
    records(server, name, 1_200)


def test_changed_file_is_refused(tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.csv"
    file.write_text("id\n1\n")
    arguments = ("topic", "produce", name, "--once", name, "--from")
    tool(*arguments, str(file))
    assert "with other options" in tool.fails(1, *arguments, str(file), "--key", "id")
    file.write_text("id\n2\n")
    said = tool.fails(1, *arguments, str(file))
    assert f"a.csv has changed, of which '{name}' has sent 1 of 1 rows; use another name" in said
    (tmp_path / "b.csv").write_text("id\n3\n")
    assert "b.csv is not a.csv" in tool.fails(1, *arguments, str(tmp_path / "b.csv"))
    records(server, name, 1)
    tool("topic", "consume", name, "-e", "--group", f"oncelog-produce-{name}-b")
    assert "offsets of another program" in tool.fails(
        1, "topic", "produce", name, "--once", f"{name}-b", "--from", str(file)
    )


@pytest.fixture
def slow(server: Server) -> Iterator[FaultProxy]:
    """Run a proxy through which the 120 transactions of a file take 12 seconds."""
    with FaultProxy(server.bootstrap, "delay EndTxn for=100ms") as found:
        yield found


def start(faults: FaultProxy, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(ONCELOG), *arguments, "-b", faults.bootstrap_servers]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def position(admin: Admin, group: str) -> int:
    return sum(int(offset) for offset in admin.committed(group, require_stable=False).values())


def advanced(admin: Admin, group: str, before: int, process: subprocess.Popen[bytes]) -> bool:
    return position(admin, group) > before or process.poll() is not None


def test_killed_runs_lose_and_repeat_no_row(
    tool: Tool, admin: Admin, server: Server, slow: FaultProxy, name: str, tmp_path: Path
) -> None:
    rows, kills = 60_000, 5
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    admin.create_topics(name, 3)
    file, group = tmp_path / "a.parquet", f"oncelog-produce-{name}"
    many_groups(file, rows)
    arguments = ("topic", "produce", name, "--from", str(file), "--key", "id", "--once", name)
    died_at = []
    for _ in range(kills):
        before = position(admin, group)
        process = start(slow, *arguments)
        wait_until(partial(advanced, admin, group, before, process), "a transaction ends")
        time.sleep(chance.uniform(0, 0.3))  # any moment of any step
        process.kill()
        process.wait()
        died_at.append(position(admin, group))
    done = tool.run(*arguments, "--format", "json")
    assert done.returncode == 0, done
    assert died_at[-1] < rows, f"the runs were too short: {died_at}"
    last = json.loads(done.stdout)
    assert last["records"] + last["earlier"] == rows
    assert last["earlier"] >= died_at[-1]  # the last commit may have arrived after its process died
    seen: Counter[int] = Counter()
    with Consumer(server.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign({(name, partition): 0 for partition in range(3)})
        ends = consumer.end_offsets(list(consumer.assignment()))
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            seen.update(int(record.key) for record in consumer.poll(1.0))
    assert seen == Counter(range(rows)), (died_at, seen.most_common(3))


class Replacing:
    """The rows of a file. After the first ones, another topic gets the name."""

    def __init__(self, rows: Any, admin: Admin, topic: str) -> None:
        self._rows, self._admin, self._topic = rows, admin, topic
        self.rows = rows.rows

    def batches(self, skip: int) -> Iterator[Any]:
        for number, batch in enumerate(self._rows.batches(skip)):
            if number == 1:
                self._admin.delete_topics(self._topic)
                wait_until(lambda: self._topic not in self._admin.list_topics(), "the topic is gone")
                self._admin.create_topics(self._topic)
            yield batch


def test_topic_that_is_replaced_during_a_run_is_an_error(
    admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.parquet"
    many_groups(file, 1_500)
    given = FileOptions(str(file), None, None, None, (), None, None, None, None, False, name)
    work = _prepared(name, given, None, [])
    with pytest.raises(click.ClickException, match="the topic was deleted and created again while"):
        _send_once(server.bootstrap, work._replace(source=Replacing(work.source, admin, name)), name, {})


def test_second_run_of_a_name_fences_the_first(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.parquet"
    many_groups(file, 5_000)
    arguments = ("topic", "produce", name, "--from", str(file), "--once", name)
    with FaultProxy(server.bootstrap, "lose-request EndTxn:3-") as faults:
        first = start(faults, *arguments)
        wait_until(lambda: position(admin, f"oncelog-produce-{name}") == 1_000, "two transactions end")
        done = tool.run(*arguments)
        assert done.returncode == 0, done
        faults.clear()
        assert first.wait(60) == 1
    assert [json.loads(each.value)["id"] for each in records(server, name, 5_000)] == list(range(5_000))


def test_interrupted_transaction_leaves_no_row(
    tool: Tool, admin: Admin, server: Server, slow: FaultProxy, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    many_groups(tmp_path / "a.parquet", 60_000)
    slow.add("delay Produce:2- for=2s")
    arguments = ("topic", "produce", name, "--from", str(tmp_path / "a.parquet"), "--transactional-id", name)
    command = [ONCELOG, *arguments, "-b", slow.bootstrap_servers]
    with closing(Terminal(command, tool.env)) as terminal:
        wait_until(lambda: any(each.api is ApiKey.PRODUCE for each in slow.seen), "rows are sent")
        terminal.type(b"\x03")
        assert terminal.wait() == 130, terminal.raw()[-2000:]
        assert "the transaction is aborted, so none of the rows becomes visible" in terminal.raw()
    records(server, name, 0)


def test_terminal_shows_progress_and_ctrl_c_says_where_it_continues(
    tool: Tool, admin: Admin, server: Server, slow: FaultProxy, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    file = tmp_path / "a.parquet"
    many_groups(file, 60_000)
    slow.clear()
    slow.add("delay EndTxn:3- for=2s")  # all rows would need minutes: the command is still at work at the Ctrl-C
    arguments = ("topic", "produce", name, "--from", str(file), "--once", name)
    command = [ONCELOG, *arguments, "-b", slow.bootstrap_servers]
    with closing(Terminal(command, tool.env)) as terminal:
        wait_until(lambda: "/60000" in terminal.raw(), "the bar is there")
        wait_until(lambda: position(admin, f"oncelog-produce-{name}") > 0, "a transaction ends")
        terminal.type(b"\x03")
        assert terminal.wait() == 130, terminal.raw()[-2000:]
        assert "of 60000 rows are sent; the same command continues there" in terminal.raw()
    assert tool.run(*arguments).returncode == 0
    assert [json.loads(each.value)["id"] for each in records(server, name, 60_000)] == list(range(60_000))
