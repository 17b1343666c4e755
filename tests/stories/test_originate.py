"""examples/originate.py, killed at each of its steps: it knows its last committed transaction, and repeats none."""

from __future__ import annotations

import signal
import subprocess
import sys

from oncelog import Admin, Consumer
from support.cures import EXAMPLES
from support.servers import OncelogCluster

COUNT = 5


def run(cluster: OncelogCluster, name: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, EXAMPLES / "originate.py", f"{name}-out", "--bootstrap", cluster.bootstrap]
    done = subprocess.run(
        [*command, "--name", name, "--count", str(COUNT), *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout.strip()


def test_each_transaction_is_written_once(oncelog_cluster: OncelogCluster, name: str) -> None:
    output = [(f"{name}-out", 0)]
    with Admin(oncelog_cluster.bootstrap) as admin:
        admin.create_topics(f"{name}-out")
        told = []
        for at, step in enumerate(("sent", "numbered", "committed"), 1):
            code, line = run(oncelog_cluster, name, "--die", step, "--at", str(at))
            assert code == -signal.SIGKILL
            told.append(line)
        told.append(run(oncelog_cluster, name)[1])
        assert told == [f"transaction {number} is committed" for number in (0, 0, 1, 3)]
        offsets = admin.committed(name)
        assert dict(offsets) == {(f"{name}-progress", 0): 0}, "no lag, and none that reads as negative"
        assert admin.end_offsets(offsets) == offsets
    with Consumer(oncelog_cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as reader:
        reader.assign(output)
        found: list[str] = []
        while len(found) < 2 * COUNT:
            found += [record.value.decode() for record in reader.poll(30)]
        assert not reader.poll(1)
    assert found == [f"{side} {number}" for number in range(1, COUNT + 1) for side in ("debit", "credit")]
