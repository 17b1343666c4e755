"""Declarative Pipelines: `spark-pipelines run` uses the format as source and sink without a registration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from oncelog import Producer
from oncelog.spark.java import ensure_java
from spark.judges import create, open_producers, values
from support.servers import Server

SPEC = """
name: copies
storage: file://{folder}/storage
libraries:
  - glob:
      include: definitions.py
"""

DEFINITIONS = """
from pyspark import pipelines as dp

brokers = {{"kafka.bootstrap.servers": "{bootstrap}"}}

dp.create_sink("copies", "oncelog", {{**brokers, "topic": "{name}-out", "transactionalIdPrefix": "{name}"}})

@dp.append_flow(target="copies")
def copy():
    rows = spark.readStream.format("oncelog").options(**brokers, subscribe="{name}", startingOffsets="earliest")
    return rows.load().select("key", "value")
"""


@pytest.mark.timeout(240)
def test_pipeline_writes_to_a_topic(server: Server, name: str, tmp_path: Path) -> None:
    create(server.bootstrap, name)
    create(server.bootstrap, f"{name}-out")
    with Producer(server.bootstrap) as producer:
        for number in range(20):
            producer.send(name, str(number).encode())
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "definitions.py").write_text(DEFINITIONS.format(bootstrap=server.bootstrap, name=name))
    ensure_java()
    home = Path(pyspark.__file__).parent
    paths = {"SPARK_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env = {**os.environ, **paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [home / "bin" / "spark-pipelines", "run", "--conf", "spark.ui.enabled=false"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=230, check=False)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert values(server.bootstrap, f"{name}-out") == {str(number): 1 for number in range(20)}
    assert not open_producers(server.bootstrap, f"{name}-out", f"{name}-commits")
