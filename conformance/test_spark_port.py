"""The pipeline of docs/from-spark-kafka.md: with Spark's connector first, then with oncelog from the old checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.spark.java import ensure_java
from support.apache_kafka import ROOT
from support.docs_blocks import blocks
from support.servers import Server

PAGE = "docs/from-spark-kafka.md"
RIVAL = Path(os.environ.get("ONCELOG_SPARK_RIVAL") or ROOT / ".cache" / "spark-rival")
"""An environment with PySpark 4.1.3, and the jars of Spark's connector: `spark_rival` in scripts/lib.sh."""


@pytest.mark.timeout(600)
def test_ported_pipeline_continues_at_the_offsets_of_the_old_checkpoint(own_server: Server, tmp_path: Path) -> None:
    files = {block.text: block.code for block in blocks(PAGE, (ROOT / PAGE).read_text()) if block.kind == "file"}
    for name, code in files.items():
        (tmp_path / name).write_text(code.replace("localhost:9092", own_server.bootstrap))
    ensure_java()
    with Admin(own_server.bootstrap) as admin:
        admin.create_topics(["orders", "invoices"], 1)

    send_orders(own_server, 1, 2)
    jars = ",".join(map(str, sorted(RIVAL.glob("jars/*.jar"))))
    run(RIVAL / "venv" / "bin" / "python", "invoices_kafka.py", tmp_path, f"--jars {jars}")
    assert old_offsets(tmp_path / "checkpoints" / "invoices") == {"orders": {"0": 2}}, "the offsets on the page"

    send_orders(own_server, 3)
    run(Path(sys.executable), "invoices_oncelog.py", tmp_path)
    with Consumer(own_server.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([("invoices", 0)])
        consumer.seek_to_beginning()
        found: list[int] = []
        while any(consumer.lag().values()):
            found += [json.loads(record.value or b"")["id"] for record in consumer.poll(1)]
    assert found == [1, 2, 3]


def send_orders(server: Server, *numbers: int) -> None:
    with Producer(server.bootstrap) as producer:
        for number in numbers:
            producer.send("orders", json.dumps({"id": number, "price": 2.5, "count": number}))


def run(python: Path, program: str, folder: Path, options: str = "") -> None:
    arguments = f"{options} --conf spark.ui.enabled=false --driver-memory 512m pyspark-shell"
    spark = {"PYSPARK_SUBMIT_ARGS": arguments, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [python, program],
        cwd=folder,
        env={**os.environ, **spark},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def old_offsets(checkpoint: Path) -> dict[str, dict[str, int]]:
    """Return the offsets of a query with one source, as the page says."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    found: dict[str, dict[str, int]] = json.loads((checkpoint / "offsets" / str(last)).read_text().splitlines()[-1])
    return found
