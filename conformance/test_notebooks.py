"""A notebook that runs in a Jupyter kernel shows clients and their results as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from oncelog.testing import Broker

CELLS = {
    "from oncelog import Admin, Consumer, Producer\nadmin = Admin(address)": (),
    "with Producer(address) as producer:\n    sent = producer.send('orders', '<b>tea</b>').result()\nsent": (
        "<caption>RecordMetadata</caption>",
        "<td>orders</td>",
    ),
    "admin.topics()": ("<caption>TopicListing</caption>", "<td>orders</td>"),
    "admin.describe_topics('orders')[0]": ("<caption>TopicInfo</caption>", "<caption>partitions</caption>"),
    "admin.describe_cluster()": ("<caption>ClusterInfo</caption>", "<td>127.0.0.1</td>"),
    "admin.end_offsets([('orders', 0)])": ("<td>orders-0</td><td>1</td>",),
    "with Consumer(address, auto_offset_reset='earliest') as consumer:\n"
    "    consumer.assign([('orders', 0)])\n    records = consumer.poll(30)\nrecords": (
        "<td>&lt;b&gt;tea&lt;/b&gt;</td>",
    ),
    "consumer": ("<caption>Consumer</caption>", "<th>records_consumed_total</th><td>1</td>"),
    "admin": ("<caption>Admin</caption>", "<th>request_total</th>"),
    "admin.close()": (),
}
"""Source of a cell -> what its table contains."""


def test_notebook_shows_tables(tmp_path: Path) -> None:
    path = tmp_path / "tables.ipynb"
    with Broker(topics=["orders"]) as broker:
        sources = [f"address = {broker.bootstrap_servers!r}", *CELLS]
        cells = [
            {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}
            for source in sources
        ]
        path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
        command = [sys.executable, "-m", "jupyter", "execute", "--inplace", "--timeout=120", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    notebook = json.loads(path.read_text())
    for cell, parts in zip(notebook["cells"][1:], CELLS.values(), strict=True):
        outputs: list[Any] = [each["data"] for each in cell["outputs"]]
        assert len(outputs) == bool(parts), cell
        for part in parts:
            assert part in "".join(outputs[0]["text/html"]), cell
        assert all("text/plain" in each for each in outputs), "the plain text stays, for other front ends"
