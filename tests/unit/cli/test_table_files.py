"""Files of rows on the command line, without brokers: positions of runs, schemas, files and missing packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog.cli.app import describe
from oncelog.cli.tables.inputs import InputFile, open_input
from oncelog.cli.tables.outputs import UNFINISHED, open_output
from oncelog.cli.tables.parts import Exported, Folder, Part
from oncelog.cli.tables.position import Run, rows_sent
from oncelog.cli.tables.schemas import DocumentTypes, avro_schema, column_types
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.columns.avro.format import Avro

RUN = Run("a.csv", 10, "00ff", 5, "topic-1", "options-1")
EXPORTED = Exported("orders", "topic-1", "parquet", "json", "string", False, "read_committed")

# -- positions --------------------------------------------------------------------------------------------------------


def test_position_continues_the_same_run() -> None:
    assert rows_sent("load", RUN, None) == 0
    assert rows_sent("load", RUN, RUN.at(3)) == 3
    assert rows_sent("load", RUN._replace(file="renamed.csv"), RUN.at(5)) == 5
    longest = RUN._replace(file="\N{SNOWMAN}" * 255)
    assert len(longest.at(2**63 - 1).metadata) < 4096  # Kafka's limit


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (RUN._replace(sha256="11").at(3), "a.csv has changed, of which 'load' has sent 3 of 5 rows"),
        (RUN._replace(size=9, file="b.csv").at(3), "a.csv is not b.csv"),
        (RUN._replace(topic_id="topic-2").at(3), "the topic was deleted"),
        (RUN._replace(options="options-2").at(3), "with other options or another schema"),
        (RUN.at(6), "has sent 6 rows, but a.csv has 5"),
        (OffsetAndMetadata(3), "offsets of another program"),
        (OffsetAndMetadata(3, metadata="[1]"), "offsets of another program"),
        (OffsetAndMetadata(3, metadata=RUN.at(3).metadata.replace('"v":1', '"v":2')), "another program or version"),
    ],
)
def test_position_of_another_run_is_refused(stored: OffsetAndMetadata, reason: str) -> None:
    with pytest.raises(click.ClickException, match=reason):
        rows_sent("load", RUN, stored)


# -- inputs -----------------------------------------------------------------------------------------------------------


def ids(path: Path, skip: int) -> list[int]:
    source = open_input(InputFile(str(path)), path.suffix[1:], {})
    found: list[int] = []
    for batch in source.batches(skip):
        found += [row["id"] for row in (batch if isinstance(batch, list) else batch.to_pylist())]
    return found


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_each_row_can_be_skipped(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"id": range(10)}), path, row_group_size=3)
    else:
        line = "{}" if form == "csv" else '{{"id": {}}}'
        path.write_text("\n".join([*(["id"] if form == "csv" else []), *map(line.format, range(10))]))
    for skip in range(12):
        assert ids(path, skip) == list(range(skip, 10))


def test_file_that_changes_or_is_replaced_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for change in ("write", "replace"):
        path.write_text('{"id": 1}\n')
        file = InputFile(str(path))
        source = open_input(file, "jsonl", {})
        if change == "write":
            path.write_text('{"id": 2}\n{"id": 3}\n')
        else:
            (tmp_path / "b").write_text('{"id": 4}\n')
            os.replace(tmp_path / "b", path)
        with pytest.raises(click.ClickException, match="has changed while"):
            list(source.batches(0))
        with pytest.raises(click.ClickException, match="has changed while"):
            file.require_unchanged()


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_types_of_json_become_wider() -> None:
    types = DocumentTypes(None)
    types.add([{"a": 1, "b": None}])
    types.add([{"a": 1.5, "c": [{"d": 1}]}, {"b": "x"}])
    assert types.kind == pa.array([{"a": 1.5, "b": "x", "c": [{"d": 1}]}]).type
    with pytest.raises(pa.ArrowException):
        types.add([{"a": "x"}])


LONG = 2**53 + 1


@pytest.mark.parametrize(
    ("batches", "path"),
    [
        ([[{"a": LONG}], [{"a": 0.5}]], ".a"),
        ([[{"a": 0.5}], [{"a": -LONG}]], ".a"),
        ([[{"a": [{"b": LONG}]}], [{"a": []}], [{"a": [{"b": None}, {"b": 0.5}]}]], ".a[].b"),
        ([[LONG], [0.5]], "the value"),
    ],
)
def test_integers_that_a_double_would_round_have_no_type_with_fractions(batches: list[list[Any]], path: str) -> None:
    types = DocumentTypes(None)
    for documents in batches[:-1]:
        types.add(documents)
    with pytest.raises(pa.ArrowInvalid, match=re.escape(f"{path} has fractions")):
        types.add(batches[-1])


def test_integers_that_a_double_holds_may_have_fractions_beside_them() -> None:
    types = DocumentTypes(None)
    types.add([{"a": LONG - 1, "b": LONG}])
    types.add([{"a": 0.5, "b": None}, {}])
    assert types.kind == pa.struct([("a", pa.float64()), ("b", pa.int64())])


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
        pa.time32("ms"), pa.time64("us"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("ns", "UTC"),
        pa.decimal128(20, 3), pa.list_(pa.string()), pa.map_(pa.string(), pa.int64()), pa.null(),
        pa.struct([("a", pa.struct([("b", pa.int64())])), ("c", pa.list_(pa.struct([("b", pa.string())])))]),
    ],
)  # fmt: skip
def test_avro_schema_of_a_column_has_its_type(kind: pa.DataType) -> None:
    schema = avro_schema(pa.struct([("x", kind)]), "my-topic.1")
    read = Avro(json.dumps(schema)).schema
    assert read is not None
    assert read.type.field("x").type == kind


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (pa.field("a b", pa.int64()), "column a b: Avro permits only letters"),
        (
            pa.field("a", pa.struct([("b", pa.duration("s"))])),
            r"column a.b: no Avro type is derived from duration\[s\]",
        ),
    ],
)
def test_column_without_an_avro_type_is_named(field: pa.Field, reason: str) -> None:
    with pytest.raises(click.ClickException, match=reason):
        avro_schema(pa.struct([field]), "t")


def test_column_types_are_those_of_arrow() -> None:
    assert column_types(["a=b=int64", "t=timestamp[ms]"]) == {"a=b": pa.int64(), "t": pa.timestamp("ms")}
    for wrong in ("a", "=int64", "a=number"):
        with pytest.raises(click.UsageError):
            column_types([wrong])


# -- outputs ----------------------------------------------------------------------------------------------------------


def test_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = str(tmp_path / "a.jsonl")
    table = pa.table({"a": [1.5, None], "raw": [b"\xff", None]})
    with open_output(path, "jsonl", table.schema) as output:
        output.write(table)
        assert os.listdir(tmp_path) == [f"a.jsonl{UNFINISHED}"]
        with (
            pytest.raises(click.ClickException, match="another process writes"),
            open_output(path, "csv", table.schema),
        ):
            pass
    lines: list[Any] = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert lines == [{"a": 1.5, "raw": "/w=="}, {"a": None, "raw": None}]
    bad = pa.table({"a": [float("nan")], "raw": [b""]})
    with (
        pytest.raises(click.ClickException, match="a Parquet file can hold it"),
        open_output(path, "jsonl", table.schema) as output,
    ):
        output.write(bad)
    assert os.listdir(tmp_path) == ["a.jsonl"]
    assert len(Path(path).read_text().splitlines()) == 2


def test_folder_remembers_its_export(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    kind = pa.struct([("a", pa.int64())])
    with closing(Folder(folder, EXPORTED)) as made:
        assert (made.kind, made.parts()) == (None, [])
        made.store(kind)
        with pytest.raises(click.ClickException, match="another process writes"):
            Folder(folder, EXPORTED)
    with closing(Folder(folder, EXPORTED)) as made:
        assert made.kind == kind
        check_parts(made, tmp_path / "out")
    with pytest.raises(click.ClickException, match="its key format is 'string', not 'bytes'"):
        Folder(folder, EXPORTED._replace(key_format="bytes"))


def check_parts(made: Folder, folder: Path) -> None:
    for part in (Part(0, 0, 5), Part(0, 7, 9), Part(10, 0, 1)):
        Path(made.path_of(part)).touch()
    (folder / "orders-0-notes.txt").touch()
    assert made.ends() == {0: 9, 10: 1}
    Path(made.path_of(Part(0, 4, 6))).touch()
    with pytest.raises(click.ClickException, match="two parts with offset 4 of partition 0"):
        made.parts()


def test_missing_package_is_named_without_a_traceback() -> None:
    code = """
import sys
sys.modules["pyarrow"] = sys.modules["oncelog.columns"] = None
sys.argv = ["oncelog", "topic", "export", "--help"]
from oncelog.cli.app import run
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    error = ImportError("tables require pyarrow; run `pip install 'oncelog[arrow]'`")
    assert describe(error) == str(error)
