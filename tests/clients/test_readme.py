"""README's snippets for Python, as they are printed but for address, topics and groups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from support.servers import Server

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("tables(timeout", ""),
        ("for record in consumer:  ", "0 None b'to'\n1 b'hamlet' b'to be'\n"),
        ("oncelog.aio", "b'or not'\n"),
        ("prepare()", ""),
    ],
)
def test_a_snippet(server: Server, name: str, capsys: pytest.CaptureFixture[str], which: str, told: str) -> None:
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if which in code]
    given = {"localhost:9092": server.bootstrap, "timeout=5": "timeout=60"}
    given |= {f'"{word}"': f'"{word}-{name}"' for word in ("words", "copies", "readers", "etl", "etl-1", "etl-2")}
    for printed, here in given.items():
        code = code.replace(printed, here)
    if "for table" in code:
        code += "        break\n"  # after the first table, however long a group takes to form
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics([f"words-{name}", f"copies-{name}"])
        producer.send(f"words-{name}", "to").result()
    exec(code, {"__name__": name})
    assert capsys.readouterr().out == told
    if "copies" in code:
        written = b"to be decided" if "prepare()" in code else b"to"
        with Consumer(server.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([(f"copies-{name}", 0)])
            assert [record.value for record in consumer.poll(30)] == [written]
