"""`oncelog up` in trouble: nothing reads its stderr, it cannot create a process, or a broker does not end."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from oncelog import Admin
from oncelog.cli.supervisor import ONE_CTRL_C_S
from support.processes import ManagedProcess, accepts, gone, wait_until
from support.servers import OncelogCluster

ONCELOG = Path(sys.executable).with_name("oncelog")
NewCluster = Callable[..., OncelogCluster]
PTRACE_SEIZE = 0x4206
WALL = 0x40000000
"""The flag `__WALL` of waitpid(2)."""


def said(cluster: OncelogCluster) -> str:
    return cluster.process.stderr_path.read_text()


def broker_pid(data: Path, broker: int) -> int:
    """Return the process id of a broker, or 0 while it has none."""
    path = data / f"broker-{broker}" / "broker.pid"
    return int(path.read_text()) if path.exists() else 0


def test_broker_is_restarted_although_nothing_reads_stderr(tmp_path: Path) -> None:
    command = [ONCELOG, "up", "--brokers", "2", "--port", "0", "--data", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            assert up.stderr is not None
            second = up.stdout.readline().strip().rpartition(",")[2]
            up.stderr.close()  # as if `tee` had ended
            survivor, killed = broker_pid(tmp_path, 1), broker_pid(tmp_path, 2)
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: broker_pid(tmp_path, 2) not in (0, killed) and accepts(second), "broker 2 serves again")
            assert not gone(survivor)
            up.terminate()
            assert up.wait(60) == 0
        finally:
            up.kill()


def test_broker_is_restarted_when_its_process_can_be_created_again(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    pid = cluster.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    cluster.kill()
    wait_until(lambda: "cannot start broker 1: Too many open files; retrying in" in said(cluster), "it retries")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    cluster.wait_ready()
    assert cluster.stop() == 0


def test_up_ends_although_a_broker_survives_sigkill(new_cluster: NewCluster) -> None:
    """A traced process that was killed has not ended for its parent, as one in an uninterruptible wait."""
    cluster = new_cluster(arguments=("--brokers", "2"))
    hanging, other = cluster.broker_pid(1), cluster.broker_pid(2)
    assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, hanging, None, None) == 0
    os.kill(other, signal.SIGSTOP)
    try:
        os.kill(cluster.process.pid, signal.SIGINT)
        time.sleep(ONE_CTRL_C_S + 0.1)
        os.kill(cluster.process.pid, signal.SIGINT)
        assert cluster.process.popen.wait(90) == 1
        assert gone(other)
        assert f"broker 1 (process {hanging}) does not end, although it was killed" in said(cluster)
        assert said(cluster).count("does not end") == 1
    finally:
        os.waitpid(hanging, WALL)


def test_up_names_the_broker_that_it_waits_for_while_stopping(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--brokers", "2"))
    hanging = cluster.broker_pid(1)
    os.kill(hanging, signal.SIGSTOP)
    cluster.process.popen.terminate()
    waits = f"oncelog: waiting for broker 1 (process {hanging}) to end, for 59 s at most; another Ctrl-C kills now"
    wait_until(lambda: waits in said(cluster), "it says what it waits for")
    assert "killing" not in said(cluster)
    os.kill(hanging, signal.SIGCONT)
    assert cluster.process.popen.wait(90) == 0
    assert said(cluster).count("waiting for") == 1


def test_broker_that_hangs_at_its_start_does_not_hide_the_others(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--brokers", "2", "--topic", "t:1:2"))
    assert cluster.stop() == 0
    identity = cluster.data / "broker-2" / "meta.properties"
    text = identity.read_text()
    identity.unlink()
    os.mkfifo(identity)  # opening it blocks
    cluster.start()
    assert cluster.bootstrap.count(",") == 0
    assert "broker 2 is not ready yet; the other brokers run without it" in said(cluster)
    pipe = identity.rename(cluster.data / "pipe")
    identity.write_text(text)
    pipe.write_text(text)
    wait_until(lambda: "broker 2 is ready now, at" in said(cluster), "broker 2 is ready")


def test_sighup_is_ignored_under_nohup(tmp_path: Path) -> None:
    command = ["nohup", ONCELOG, "up", "--port", "0", "--data", tmp_path / "data"]
    process = ManagedProcess(command, tmp_path, "up")
    try:
        process.wait_for(lambda: list(process.lines()), "it is ready")
        for pid in (process.pid, broker_pid(tmp_path / "data", 1)):
            match = re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
            assert match is not None
            assert int(match[1], 16) & 1 << signal.SIGHUP - 1
        assert process.stop() == 0
    finally:
        process.kill()


def test_restarted_broker_uses_changed_settings_unless_they_are_invalid(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://127.0.0.1:0\n")
    cluster = OncelogCluster(tmp_path / "server", arguments=("--config", str(file)))

    def limit() -> str | None:
        with Admin(cluster.bootstrap) as admin:
            return admin.describe_configs("broker", 1)["message.max.bytes"]

    def restart(line: str) -> None:
        file.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\n{line}\n")
        pid = broker_pid(cluster.data, 1)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: broker_pid(cluster.data, 1) not in (0, pid) and accepts(cluster.bootstrap), "it restarts")

    try:
        restart("message.max.bytes=1234")
        assert limit() == "1234"
        restart("message.max.bytes=many")
        assert limit() == "1234"
        assert "broker 1 keeps its previous settings" in said(cluster)
        file.write_text("")  # an editor has not written it yet
        os.kill(pid := broker_pid(cluster.data, 1), signal.SIGTERM)
        wait_until(lambda: broker_pid(cluster.data, 1) not in (0, pid) and accepts(cluster.bootstrap), "it restarts")
        assert limit() == "1234"
        assert "it has no settings" in said(cluster)
        restart("message.max.bytes=4321")
        assert limit() == "4321"
    finally:
        cluster.stop()
