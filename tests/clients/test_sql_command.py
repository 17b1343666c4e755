"""`oncelog sql` on the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oncelog import Admin, Producer
from support.command_line import ONCELOG, Tool
from support.servers import Server


@pytest.fixture
def topic(server: Server, admin: Admin, name: str) -> str:
    """Return a topic with ten records of two countries."""
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for number in range(10):
            row = {"id": number, "country": "fr" if number % 2 else "de", "price": number / 4}
            producer.send(name, json.dumps(row), key=f"k{number}", timestamp=1_700_000_000_000 + number)
    return name


def test_rows_as_table_json_and_csv(tool: Tool, topic: str) -> None:
    query = f'select country, count(*) as n, sum(price) as total from "{topic}" group by 1 order by 1'
    assert tool("sql", query).splitlines() == [
        "country  n  total",
        "-------  -  -----",
        "de       5    5.0",
        "fr       5   6.25",
        "(2 rows)",
    ]
    found = [json.loads(line) for line in tool("sql", query, "--output", "json").splitlines()]
    assert found == [{"country": "de", "n": 5, "total": 5.0}, {"country": "fr", "n": 5, "total": 6.25}]
    assert tool("sql", query, "--output", "csv") == "country,n,total\nde,5,5.0\nfr,5,6.25\n"
    assert tool("sql", f'from "{topic}"', "--rows", "3").splitlines()[-1] == (
        "(10 rows, the first 3 are shown (see --rows))"
    )


def test_values_of_all_kinds_are_printed(tool: Tool) -> None:
    query = (
        "select 'a' || chr(27) as text, '\\xff'::blob as data, true as yes, null as nothing, "
        "1.50::decimal(9, 2) as price, "
        "[1, 2] as list, {'x': 1} as struct, date '2026-01-02' as day, timestamp '2026-01-02 03:04:05' as at, "
        "interval 90 minute as span, 170141183460469231731687303715884105727::hugeint as big, uuid() is not null as u"
    )
    (row,) = [json.loads(line) for line in tool("sql", query, "--output", "json").splitlines()]
    assert row == {
        "text": "a\x1b",
        "data": {"base64": "/w=="},
        "yes": True,
        "nothing": None,
        "price": "1.50",
        "list": [1, 2],
        "struct": {"x": 1},
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05",
        "span": "P0M0DT5400S",
        "big": "170141183460469231731687303715884105727",
        "u": True,
    }
    (cells,) = csv.DictReader(io.StringIO(tool("sql", query, "--output", "csv")))
    assert (cells["nothing"], cells["struct"], cells["yes"]) == ("", '{"x": 1}', "true")
    assert "\x1b" not in tool("sql", query)


LACKING: list[tuple[str, Any]] = [
    ("'01:02:03.5+05'::timetz", "01:02:03.5+05"),
    ("'10101'::bit", "10101"),
    ("340282366920938463463374607431768211455::uhugeint", "340282366920938463463374607431768211455"),
    ("['01:02:03+05'::timetz, null]", ["01:02:03+05", None]),
    ("""{'b"': ['101'::bit], 'n': 1}""", {'b"': ["101"], "n": 1}),
    ("map{'1'::bit: '0'::bit}", {"1": "0"}),
    ("array_value('1'::bit)", ["1"]),
    ("union_value(k := '1'::bit)", "1"),
    ("[interval 1 day]", ["P0M1DT0S"]),
    ("interval '1234567.000001 seconds'", "P0M0DT1234567.000001S"),
    ("{'i': - interval 90 minute, 'n': null}", {"i": "P0M0DT-5400S", "n": None}),
    ("map{'a': 1, 'b': null}", {"a": 1, "b": None}),
    ("map{1: interval 1 month, 2: interval 10 second}", {"1": "P1M0DT0S", "2": "P0M0DT10S"}),
    ("map([], [])", {}),
    ("[map{true: ['\\xff'::blob]}]", [{"true": [{"base64": "/w=="}]}]),
]


def test_values_that_arrow_or_json_lacks(tool: Tool) -> None:
    query = "select " + ", ".join(f"{value} as c{number}" for number, (value, _) in enumerate(LACKING))
    found = json.loads(tool("sql", query, "--output", "json"))
    assert list(found.values()) == [shown for _, shown in LACKING]
    (cells,) = csv.DictReader(io.StringIO(tool("sql", query, "--output", "csv")))
    texts = [shown if isinstance(shown, str) else json.dumps(shown) for _, shown in LACKING]
    assert list(cells.values()) == texts
    row = tool("sql", query).splitlines()[2]
    assert row.split() == " ".join(texts).split()


def test_two_columns_of_one_name_are_not_one_field(tool: Tool) -> None:
    assert "two columns 'a'" in tool.fails(1, "sql", "select 1 as a, 2 as a", "--output", "json")
    assert tool("sql", "select 1 as a, 2 as a", "--output", "csv") == "a,a\n1,2\n"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_rows_are_saved_as_a_whole_or_not_at_all(tool: Tool, topic: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"orders.{suffix}"
    assert tool("sql", f'select id, price from "{topic}" order by id', "--to", str(path)) == ""
    rows = {
        "parquet": lambda: pq.read_table(path).to_pylist(),
        "csv": lambda: [
            {"id": int(row["id"]), "price": float(row["price"])}
            for row in csv.DictReader(path.read_text().splitlines())
        ],
        "jsonl": lambda: [json.loads(line) for line in path.read_text().splitlines()],
    }[suffix]()
    assert rows == [{"id": number, "price": number / 4} for number in range(10)]
    before = path.read_bytes()
    failing = f"select 1 / 0 as x from \"{topic}\" where error('no') is null"
    tool.fails(1, "sql", failing, "--to", str(path))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_file_that_does_not_fit_on_the_disk(tool: Tool, tmp_path: Path, suffix: str) -> None:
    """A limit of the size of files has the same errors as a full disk, at the same places."""
    path = tmp_path / f"numbers.{suffix}"
    script = f"ulimit -f 64 && exec {ONCELOG} sql 'select random() as r from range(100000)' --to {path}"
    done = subprocess.run(["bash", "-c", script], env=tool.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"oncelog: {path}: File too large\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_output_to_a_full_disk(tool: Tool, form: str) -> None:
    script = f"exec {ONCELOG} sql 'from range(100)' --output {form} > /dev/full"
    done = subprocess.run(["bash", "-c", script], env=tool.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "oncelog: No space left on device\n")


def test_memory_that_does_not_suffice_is_one_line(tool: Tool) -> None:
    error = tool.fails(1, "sql", "select array_agg(range) as a from range(30000000)", "--memory", "50MB")
    assert "Out of Memory" in error
    assert error.endswith("set a higher limit of the memory\n")
    assert error.count("\n") == 1


def test_rows_are_written_to_a_topic_once(tool: Tool, admin: Admin, topic: str) -> None:
    admin.create_topics(f"{topic}-sums")
    arguments = ("sql", f'select country as _key, sum(price) as s from "{topic}" group by 1', "--into", f"{topic}-sums")
    assert tool.run(*arguments, "--once", topic).stderr == f"oncelog: wrote 2 records to {topic}-sums\n"
    assert tool.run(*arguments, "--once", topic).stderr == f"oncelog: {topic} is written already; nothing was done\n"
    lines = tool("topic", "consume", f"{topic}-sums", "-e", "-K", "=", "--read-committed").splitlines()
    assert sorted(lines) == ['de={"s":5}', 'fr={"s":6.25}']


def test_error_about_a_bad_record_names_the_options(tool: Tool, server: Server, topic: str) -> None:
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b'{"id": "x"}', key=b"\xff")
    arguments = ("sql", f'select id, _key from "{topic}"', "--schema", f"{topic}=id bigint")
    error = tool.fails(1, *arguments)
    assert f"at offset 10 of {topic}-0: id: it must be a number, not a text. Say with --schema how" in error
    assert "--bad-records null" in error
    assert "keep_bad" not in error
    found = tool(*arguments, "--bad-records", "null", "--output", "json")
    assert json.loads(found.splitlines()[-1]) == {"id": None, "_key": {"base64": "/w=="}}
    assert "Say with --key-format how" in tool.fails(1, *arguments, "--key-format", f"{topic}=string")


def test_explain_shows_what_is_read(tool: Tool, topic: str) -> None:
    query = f"select country from \"{topic}\" where _offset between 3 and 4 and country <> 'x'"
    lines = tool("sql", query, "--explain").splitlines()
    assert lines[:3] == [
        f"{topic}: values are json (schema from a sample), keys string",
        "  reads 2 of 10 offsets, and the columns country, _offset",
        "  partition 0: offsets 3 to 4",
    ]


def test_schema_of_the_command_line(tool: Tool, topic: str) -> None:
    schema = f"{topic}=id decimal(9, 2), nothing varchar"
    found = tool("sql", f'select sum(id), count(nothing) from "{topic}"', "--schema", schema, "--output", "csv")
    assert found.splitlines()[1] == "45.00,0"
    assert "no_such_type" in tool.fails(2, "sql", "select 1", "--schema", "t=id no_such_type")
    assert "missing.avsc" in tool.fails(2, "sql", "select 1", "--schema", "t=@missing.avsc")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("selec",), 1, "syntax error"),
        (("drop table x",), 1, "the query must be a SELECT"),
        (("from no_such_topic",), 1, "no_such_topic does not exist"),
        (("select 1", "--once", "x"), 2, "--once needs --into"),
        (("select 1", "--follow", "--explain"), 2, "--follow cannot be used together"),
        (("select 1", "--to", "rows.xls"), 2, "the name must end in .parquet"),
        (("select 1", "--to", "missing/rows.csv"), 1, "missing/rows.csv.part: No such file"),
        (("select 1", "--into", "no-such-topic"), 1, "no-such-topic"),
        (("select 1", "--max-disorder", "10m"), 2, "is not an ISO 8601 duration"),
        (("select 1", "--memory", "much"), 1, "memory_limit = 'much'"),
        (("from t", "--format", "t=yaml"), 1, "t"),
        (("select 1", "--key-format", "t=string"), 2, "names t; the query reads no topic"),
        (("select 1", "--sqlite", "x"), 2, "--sqlite takes KEY=VALUE"),
    ],
)
def test_wrong_arguments(tool: Tool, arguments: tuple[str, ...], status: int, message: str) -> None:
    assert message in tool.fails(status, "sql", *arguments)


def test_ctrl_c_ends_a_long_query(tool: Tool, topic: str) -> None:
    """On a terminal, where the progress bar is shown first."""
    query = f'select count(*) from "{topic}" a, range(100000) b, range(100000) c where a.id + b.range + c.range = -1'
    parent, terminal = pty.openpty()
    process = subprocess.Popen(
        [str(ONCELOG), "sql", query], env=tool.env, stdout=subprocess.PIPE, stderr=terminal, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    while b"reading" not in shown:
        shown += os.read(parent, 4096)
    rest: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(parent, rest))
    reader.start()
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    reader.join()
    os.close(parent)
    assert process.stdout is not None
    process.stdout.close()
    assert status == 130, rest


def _read_all(terminal: int, into: list[bytes]) -> None:
    try:
        while found := os.read(terminal, 4096):
            into.append(found)
    except OSError:  # the process has ended
        pass


def test_followed_query_shows_new_records(tool: Tool, server: Server, topic: str) -> None:
    query = f'select count(*) as n from "{topic}" where _timestamp < now()'
    process = subprocess.Popen(
        [str(ONCELOG), "sql", query, "--follow", "--every", "0.1", "--output", "json"],
        env=tool.env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline()) == {"n": 10}
        with Producer(server.bootstrap) as producer:
            producer.send(topic, b'{"id": 11}', timestamp=1)
        assert json.loads(process.stdout.readline()) == {"n": 11}
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_numbers_and_times_that_json_or_python_lacks(tool: Tool) -> None:
    query = "select 'nan'::double as a, ['inf'::double] as b, 'infinity'::timestamp as c, date '20000-01-01' as d, "
    query += "[{'t': date '20000-01-01', 'n': 1}] as e"
    found = json.loads(tool("sql", query, "--output", "json"))
    assert found["e"] == [{"t": "20000-01-01", "n": 1}]
    assert (found["a"], found["b"], found["d"]) == ("nan", ["inf"], "20000-01-01")
    assert "20000-01-01" in tool("sql", query)
