"""examples/read_process_write.py, killed or aborted at each of its steps: nothing is lost or duplicated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from support.cures import EXAMPLES
from support.docs_blocks import ROOT, blocks
from support.history import check_once
from support.processes import wait_until
from support.reading import read
from support.servers import OncelogCluster

NUMBER, PARTITIONS = 30, 2
WORDS = [b"WORD-%d" % number for number in range(NUMBER)]


def transform(cluster: OncelogCluster, source: str, target: str, *arguments: str) -> int:
    command = [sys.executable, EXAMPLES / "read_process_write.py", source, target, "--name", source]
    command += ["--bootstrap", cluster.bootstrap, "--idle", "1", *arguments]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def test_each_record_is_processed_once(oncelog_cluster: OncelogCluster, name: str) -> None:
    source, target = filled(oncelog_cluster, name)
    for step in ("sent", "offsets", "committed"):
        assert transform(oncelog_cluster, source, target, "--die", step) == -signal.SIGKILL
    assert transform(oncelog_cluster, source, target) == 0
    check_once(WORDS, read(oncelog_cluster.bootstrap, target, PARTITIONS))
    # The log also contains the killed attempts: only the transaction hides them.
    assert len(read(oncelog_cluster.bootstrap, target, PARTITIONS, committed=False)) > NUMBER


@pytest.mark.parametrize("step", ["sent", "offsets"])
def test_aborted_block_is_processed_again(oncelog_cluster: OncelogCluster, name: str, step: str) -> None:
    source, target = filled(oncelog_cluster, name)
    assert transform(oncelog_cluster, source, target, "--abort", step) == 0
    check_once(WORDS, read(oncelog_cluster.bootstrap, target, PARTITIONS))
    assert len(read(oncelog_cluster.bootstrap, target, PARTITIONS, committed=False)) > NUMBER


@pytest.mark.parametrize("page", ["README.md", "docs/exactly-once.md", "docs/python-client.md"])
def test_loop_of_a_page_continues_at_once_after_a_kill(
    oncelog_cluster: OncelogCluster, name: str, page: str, tmp_path: Path
) -> None:
    """Before, the second start waited for the session of the killed one, and ended without work or a log line."""
    found = blocks(page, (ROOT / page).read_text())
    loop = next(block.code for block in found if "transaction.send_offsets(consumer)\n" in block.code)
    texts = {"localhost:9092": oncelog_cluster.bootstrap, "etl": name, "words": name, "copies": f"{name}-out"}
    for old, new in texts.items():
        loop = loop.replace(f'"{old}', f'"{new}')
    loop = loop.replace("tables(timeout=10)", "tables(timeout=4)")
    imports = "from oncelog import Consumer, Producer\n"
    program = tmp_path / "loop.py"
    program.write_text(imports + loop)
    with Admin(oncelog_cluster.bootstrap) as admin:
        admin.create_topics([name, f"{name}-out"])
    with Producer(oncelog_cluster.bootstrap) as producer:
        producer.send(name, b"before").result(30)
        killed = subprocess.Popen([sys.executable, program])
        try:
            with Consumer(oncelog_cluster.bootstrap, isolation_level="read_committed") as output:
                output.assign({(f"{name}-out", 0): 0})
                wait_until(lambda: output.poll(0.2), "the first process has copied a record")
        finally:
            killed.kill()
            killed.wait()
        producer.send(name, b"after").result(30)
    subprocess.run([sys.executable, program], check=True, timeout=120)
    with Consumer(oncelog_cluster.bootstrap, isolation_level="read_committed") as output:
        output.assign({(f"{name}-out", 0): 0})
        assert [record.value.lower() for record in output.poll(30)] == [b"before", b"after"]


def filled(cluster: OncelogCluster, name: str) -> tuple[str, str]:
    source, target = name, f"{name}-out"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([source, target], PARTITIONS)
    with Producer(cluster.bootstrap) as producer:
        for number in range(NUMBER):
            producer.send(source, f"word-{number}".encode(), key=str(number).encode())
    return source, target
