"""`oncelog topic export`: files of records, and folders that the next run continues."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Admin, Producer
from oncelog.formats import Avro
from oncelog.serialization import SchemaRegistry
from oncelog.testing.registry import SchemaRegistryDouble
from support.command_line import ONCELOG, Tool
from support.processes import wait_until
from support.servers import Server

OF_RECORD = ["_key", "_partition", "_offset", "_timestamp", "_headers"]


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def write(server: Server, topic: str, *values: Any, **options: Any) -> None:
    with Producer(server.bootstrap) as producer:
        for value in values:
            data = value if isinstance(value, bytes | None) else json.dumps(value)
            producer.send(topic, data, **options)


def in_folder(path: Path) -> list[pa.Table]:
    return [pq.read_table(each) for each in sorted(path.glob("*.parquet"))]


TABLE = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "name": pa.array(["tea", None, 'a "b", ü\n']),
        "price": pa.array([0.1, -2.5e300, None]),
        "ok": pa.array([True, False, None]),
        "tags": pa.array([["a", "b"], [], None]),
        "place": pa.array([{"x": 1, "y": "z"}, {"x": None, "y": None}, None]),
        "nr": pa.array(["k1", "k2", "k3"]),
    }
)


def test_table_makes_the_round_trip_as_json(tool: Tool, admin: Admin, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    pq.write_table(TABLE, tmp_path / "in.parquet")
    tool("topic", "produce", name, "--from", str(tmp_path / "in.parquet"), "--key", "nr")
    out = tmp_path / "out.parquet"
    options = ("--value-format", "json", "--key-format", "string")
    done = tool.json("topic", "export", name, "--to", str(out), *options)
    assert done == {"topic": name, "records": 3, "files": [str(out)]}
    found = pq.read_table(out)
    assert found.column_names == [*TABLE.column_names[:-1], *OF_RECORD]
    assert found.select(TABLE.column_names[:-1]).equals(TABLE.drop_columns("nr"))
    assert found.column("_key").equals(TABLE.column("nr"))
    assert found.column("_offset").to_pylist() == [0, 1, 2]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.parquet", "out.parquet"]


def test_table_makes_the_round_trip_as_avro(
    tool: Tool, admin: Admin, name: str, tmp_path: Path, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    table = TABLE.drop_columns("nr")
    for column, values in {
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678, UTC), None, None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 2), None, date(1969, 12, 31)], pa.date32()),
        "sum": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(8, 2)),
        "raw": pa.array([b"\x00\xff", b"", None]),
        "small": pa.array([1.5, float("nan"), None], pa.float32()),
    }.items():
        table = table.append_column(column, values)
    pq.write_table(table, tmp_path / "in.parquet")
    avro = ("--value-format", "avro", "--registry", fake.url)
    tool("topic", "produce", name, "--from", str(tmp_path / "in.parquet"), "--register", *avro)
    tool("topic", "export", name, "--to", str(tmp_path / "out.parquet"), *avro)
    found = pq.read_table(tmp_path / "out.parquet").select(table.column_names)
    assert found.schema.equals(table.schema)
    assert str(found.to_pylist()) == str(table.to_pylist())
    tool("topic", "export", name, "--to", str(tmp_path / "out.jsonl"), *avro, "-o", "-1")
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (row["day"], row["sum"], row["raw"], row["_offset"]) == ("1969-12-31", -2.25, None, 2)


def test_partition_that_is_named_twice_is_exported_once(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    write(server, name, b"one")
    done = tool.json("topic", "export", name, "--to", str(tmp_path / "a.parquet"), "-p", "0", "-p", "0")
    assert done["records"] == len(pq.read_table(tmp_path / "a.parquet")) == 1


def test_schema_id_may_be_in_a_header(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    registry = SchemaRegistry(fake.url)
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    in_header = Avro(schema, schema_guid=registry.guid(f"{name}-value", schema))
    with Producer(server.bootstrap) as producer:
        producer.send_table(name, pa.table({"id": [7]}), value=in_header).result(30)
    out = tmp_path / "out.csv"
    tool("topic", "export", name, "--to", str(out), "--value-format", "avro", "--registry", fake.url)
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == ['"id"', "7"]


def test_raw_records_are_exported_to_each_format(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    write(server, name, b"one", key="a", headers={"h": "x"}, timestamp=1_764_000_000_000)
    write(server, name, None, timestamp=1_764_000_000_001)
    for suffix in ("parquet", "csv", "jsonl"):
        tool("topic", "export", name, "--to", str(tmp_path / f"a.{suffix}"))
    found = pq.read_table(tmp_path / "a.parquet")
    assert found.column_names == ["value", *OF_RECORD]
    assert found.column("value").to_pylist() == [b"one", None]
    assert found.column("_key").to_pylist() == [b"a", None]
    assert found.column("_headers").to_pylist() == [[{"key": "h", "value": b"x"}], []]
    assert found.column("_timestamp").cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist() == [
        1_764_000_000_000,
        1_764_000_000_001,
    ]
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(line["value"], line["_key"]) for line in lines] == [("one", "a"), (None, None)]
    assert lines[0]["_headers"] == [{"key": "h", "value": "x"}]
    with open(tmp_path / "a.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["value"] for row in rows] == ["one", ""]
    assert json.loads(rows[0]["_headers"]) == [{"key": "h", "value": "x"}]
    write(server, name, b"\xff")
    said = tool.fails(1, "topic", "export", name, "--to", str(tmp_path / "a.jsonl"))
    assert "is not UTF-8 text; use --value-format bytes" in said
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2  # the old file
    tool("topic", "export", name, "--to", str(tmp_path / "a.jsonl"), "--value-format", "bytes")
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[2])["value"] == "/w=="


def test_only_committed_records_up_to_the_end_are_exported(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name, 2)
    write(server, name, {"a": 1}, partition=0)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, "aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
        out = tmp_path / "a.parquet"
        tool("topic", "export", name, "--to", str(out), "--value-format", "json")
        assert pq.read_table(out).column("a").to_pylist() == [1]
        producer.begin_transaction()
        producer.send(name, json.dumps({"a": 2}), partition=1)
        producer.flush()
        done = tool.run("topic", "export", name, "--to", str(out), "--value-format", "json")
        assert done.returncode == 0, done
        assert name in done.stderr  # it names the transaction that holds records back
        assert pq.read_table(out).column("a").to_pylist() == [1]
        tool("topic", "export", name, "--to", str(out), "-p", "1", "--read-uncommitted")
        assert pq.read_table(out).column("value").to_pylist() == [b'{"a": 2}']
        producer.commit_transaction()
    tool("topic", "export", name, "--to", str(out), "--value-format", "json", "-p", "1")
    assert pq.read_table(out).column("a").to_pylist() == [2]


def test_values_that_are_not_json_are_named_or_kept(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    admin.create_topics(name)
    write(server, name, {"a": 1}, b"no", None, {"a": 2.5, "b": [{}, {"c": 1}]})
    arguments = ("topic", "export", name, "--to", str(tmp_path / "a.parquet"), "--value-format", "json")
    assert f"the value of {name}-0 at offset 1 is not JSON" in tool.fails(1, *arguments)
    assert not list(tmp_path.iterdir())
    tool(*arguments, "--keep-bad")
    found = pq.read_table(tmp_path / "a.parquet")
    assert found.column("a").to_pylist() == [1.0, None, None, 2.5]
    assert found.column("b").to_pylist() == [None, None, None, [{"c": None}, {"c": 1}]]
    assert found.column("_value_bad").to_pylist() == [None, b"no", None, None]
    write(server, name, {"a": "text"})
    assert "have no common type" in tool.fails(1, *arguments, "--keep-bad")


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b'{"a": 1, "a": 2}', "was specified twice"), (b'{"a": 1e400}', "too big"), (b'{"a": "\\ud800"}', "surrogates")],
)
def test_json_that_only_python_reads_is_named_or_kept(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path, value: bytes, reason: str
) -> None:
    admin.create_topics(name)
    write(server, name, {"b": 1}, value)
    arguments = ("topic", "export", name, "--to", str(tmp_path / "a.parquet"), "--value-format", "json")
    message = tool.fails(1, *arguments)
    assert f"the value of {name}-0 at offset 1 " in message
    assert reason in message
    assert message.rstrip().endswith("; use --keep-bad, or --value-format string")
    tool(*arguments, "--keep-bad")
    assert pq.read_table(tmp_path / "a.parquet").column("_value_bad").to_pylist() == [None, value]


def test_folder_is_continued(tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path) -> None:
    admin.create_topics(name, 2)
    folder = tmp_path / "out"
    arguments = ("topic", "export", name, "--to", f"{folder}/", "--value-format", "json")
    assert tool.json(*arguments) == {"topic": name, "records": 0, "files": []}
    write(server, name, {"a": 1}, {"a": 2}, partition=0)
    first = folder / f"{name}-0-{0:020}-{2:020}.parquet"
    assert tool.json(*arguments) == {"topic": name, "records": 2, "files": [str(first)]}
    assert tool.json(*arguments)["files"] == []
    write(server, name, {"a": 2.5, "b": "x"}, partition=0)
    write(server, name, {"b": "y"}, partition=1)
    assert tool.json(*arguments)["records"] == 2
    tables = in_folder(folder)
    assert [table.column("a").to_pylist() for table in tables] == [[1, 2], [2.5], [None]]
    assert tables[2].schema.field("a").type == pa.float64()  # types only become wider
    assert "its value format is 'json', not 'bytes'" in tool.fails(1, "topic", "export", name, "--to", str(folder))
    admin.delete_records({(name, 0): 3})
    write(server, name, {"a": 4}, partition=0)
    tool(*arguments)
    assert in_folder(folder)[2].column("_offset").to_pylist() == [3]
    admin.delete_topics(name)
    wait_until(lambda: name not in admin.list_topics(), "the topic is gone")
    admin.create_topics(name, 2)
    assert "has another export: its topic id" in tool.fails(1, *arguments)


def test_killed_runs_into_a_folder_lose_and_repeat_nothing(
    tool: Tool, admin: Admin, server: Server, name: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    admin.create_topics(name, 6)
    rows = 120_000
    with Producer(server.bootstrap) as producer:
        producer.send_table(name, pa.table({"key": map(str, range(rows)), "value": ["x" * 50] * rows})).result()
    folder = tmp_path / "out"
    command = [str(ONCELOG), "topic", "export", name, "--to", f"{folder}/", "-b", server.bootstrap]
    for kill in range(4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: (folder / ".lock").exists(), "the run begins")
        time.sleep(chance.uniform(0, 0.4 * (kill + 1)))
        process.kill()
        process.wait()
    tool("topic", "export", name, "--to", f"{folder}/")
    found = pa.concat_tables(in_folder(folder))
    assert sorted(map(int, found.column("_key").to_pylist())) == list(range(rows))
    assert not list(folder.glob("*.part"))


def test_wrong_options_of_an_export_are_named(tool: Tool, admin: Admin, name: str, tmp_path: Path) -> None:
    admin.create_topics(name)
    for options, reason in (
        (("--to", "a.txt"), "ends with none of"),
        (("--to", "a.csv.gz"), "omit .gz"),
        (("--to", "a.csv", "-o", "stored"), "members of a group"),
        (("--to", "a.csv", "--registry", "http://localhost:1"), "--registry needs --value-format avro"),
        (("--to", "a.csv", "--keep-bad"), "--keep-bad needs"),
        (("--to", "a.csv", "--value-format", "avro"), "name it with --registry URL"),
    ):
        assert reason in " ".join(tool.fails(2, "topic", "export", name, *options).split()), options
    assert f"topic '{name}-x' does not exist" in tool.fails(1, "topic", "export", f"{name}-x", "--to", "a.csv")
    assert "No such file" in tool.fails(1, "topic", "export", name, "--to", str(tmp_path / "no" / "a.csv"))
