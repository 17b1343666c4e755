"""`oncelog up` from a user's view: one line when ready, one broker that restarts, clean stops, clear errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import ONCELOG, errors_of, run
from support.processes import ManagedProcess, accepts, children, gone, wait_until
from support.servers import OncelogCluster

NewCluster = Callable[..., OncelogCluster]


def test_ready_line_and_clean_stop(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", cluster.bootstrap)
    assert list(cluster.process.lines()) == [f"BROKERS={cluster.bootstrap}"]
    assert "[KafkaServer id=1] started" in errors_of(cluster)
    assert accepts(cluster.bootstrap)
    pid = cluster.broker_pid()
    assert pid in children(cluster.process.pid)
    assert cluster.stop() == 0
    assert gone(pid)
    assert not (cluster.data / "broker-1" / "broker.pid").exists()
    assert (cluster.data / "broker-1" / ".kafka_cleanshutdown").exists()
    assert not accepts(cluster.bootstrap)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_stop_the_broker_cleanly(new_cluster: NewCluster, number: signal.Signals) -> None:
    inherited = signal.signal(number, signal.SIG_DFL)  # nohup lets the tests ignore SIGHUP
    try:
        cluster = new_cluster()
    finally:
        signal.signal(number, inherited)
    os.kill(cluster.process.pid, number)
    assert cluster.process.popen.wait(90) == 0
    assert (cluster.data / "broker-1" / ".kafka_cleanshutdown").exists()


def test_ctrl_c_reaches_both_processes_and_the_stop_is_clean(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    os.killpg(cluster.process.pid, signal.SIGINT)
    assert cluster.process.popen.wait(90) == 0
    assert (cluster.data / "broker-1" / ".kafka_cleanshutdown").exists()


def test_two_interrupts_do_not_kill_a_broker_that_closes_its_logs(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    broker = cluster.broker_pid()
    os.kill(broker, signal.SIGSTOP)
    for _ in range(2):
        os.kill(cluster.process.pid, signal.SIGINT)
        time.sleep(0.1)
    os.kill(broker, signal.SIGCONT)
    assert cluster.process.popen.wait(90) == 0
    assert (cluster.data / "broker-1" / ".kafka_cleanshutdown").exists()


def test_killed_broker_returns_on_its_port(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    pids = [cluster.broker_pid()]
    for _ in range(2):
        cluster.kill()
        cluster.process.wait_for(lambda: cluster.broker_pid() not in pids, "a new process id")
        cluster.wait_ready()
        pids.append(cluster.broker_pid())
    assert len(set(pids)) == 3
    assert len(list(cluster.process.lines())) == 1
    assert errors_of(cluster).count("oncelog: broker 1 ended by signal 9; restarting") == 2
    assert cluster.stop() == 0


def test_exit_with_parent_ends_the_broker_after_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "print(process.pid, process.stdout.readline().decode(), flush=True)\n"
        "process.wait()\n"
    )
    command = [ONCELOG, "up", "--port", "0", "--data", tmp_path / "data", "--exit-with-parent"]
    with subprocess.Popen([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        supervisor, line = parent.stdout.readline().split()
        assert line.startswith("BROKERS=")
        broker = int((tmp_path / "data" / "broker-1" / "broker.pid").read_text())
        parent.kill()
    wait_until(lambda: gone(int(supervisor)), "the supervisor ends")
    wait_until(lambda: gone(broker), "the broker ends")
    assert (tmp_path / "data" / "broker-1" / ".kafka_cleanshutdown").exists()


def test_up_notices_a_parent_that_has_ended_before_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    status, _, errors = run("up", "--port", "0", "--ephemeral", "--parent-pid", str(ended.pid))
    assert status == 0
    assert "the parent process has ended" in errors


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_ordinary_up_ignores_the_signals_for_tests(new_cluster: NewCluster, number: signal.Signals) -> None:
    cluster = new_cluster()
    broker = cluster.broker_pid()
    os.kill(cluster.process.pid, number)
    wait_until(lambda: f"oncelog: ignoring {number.name}; to stop," in errors_of(cluster), "it says so")
    assert cluster.broker_pid() == broker
    assert accepts(cluster.bootstrap)
    assert cluster.stop() == 0


def test_signals_hold_the_broker_down_and_restart_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--fault-signals",))
    killed = cluster.broker_pid()
    os.kill(cluster.process.pid, signal.SIGUSR1)
    wait_until(lambda: gone(killed), "the broker is killed")
    wait_until(lambda: "not restarting it before SIGUSR2" in errors_of(cluster), "the supervisor holds it down")
    os.kill(cluster.process.pid, signal.SIGUSR2)
    wait_until(lambda: errors_of(cluster).count("started") == 2, "the broker is restarted")
    os.kill(cluster.process.pid, signal.SIGUSR2)
    wait_until(lambda: "ended with status 0; restarting now" in errors_of(cluster), "the broker is stopped cleanly")
    wait_until(lambda: errors_of(cluster).count("started") == 3, "the broker is restarted again")
    os.kill(cluster.process.pid, signal.SIGUSR1)
    assert cluster.stop() == 0


def test_no_restart(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--no-restart",))
    cluster.kill()
    assert cluster.process.popen.wait(90) == 1
    assert "oncelog: broker 1 ended by signal 9\n" in errors_of(cluster)


def test_broker_of_a_killed_supervisor_stops_and_the_next_up_waits_for_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    pid = cluster.broker_pid()
    os.kill(cluster.process.pid, signal.SIGKILL)
    cluster.process.popen.wait()
    cluster.start()  # at once: the previous broker may still be closing its logs
    wait_until(lambda: gone(pid), "the orphan ends")
    assert cluster.broker_pid() != pid


def test_second_sigterm_does_not_shorten_the_stop(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for _ in range(2):
        os.kill(cluster.process.pid, signal.SIGTERM)
    assert cluster.process.popen.wait(90) == 0
    assert "killing" not in errors_of(cluster)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--brokers", "3", "--set", "log.dirs=x"], 2, "log.dirs cannot be set for several brokers; use --data"),
        (["--brokers", "2", "--topic", "t:1:3"], 2, "replication factor 3 needs 3 brokers, but --brokers is 2"),
        (["--brokers", "0"], 2, "0 is not in the range 1<=x<=64"),
        (["--brokers", "1000"], 2, "1000 is not in the range 1<=x<=64"),
        (["--brokers", "x"], 2, "'x' is not a whole number"),
        (["--brokers", "3", "--set", "node.id=7"], 2, "--set node.id has no effect: `oncelog up` numbers its brokers"),
        (["--set", "broker.id=7"], 2, "--set broker.id has no effect: `oncelog up` numbers its brokers"),
        (["--brokers", "3", "--set", "log.dir=x"], 2, "log.dir cannot be set for several brokers; use --data"),
        (["--topic", "a", "--topic", "a:2"], 2, "--topic a:2: topic 'a' is named twice"),
        (["--topic", "a.b", "--topic", "a_b"], 2, "--topic a_b: topic 'a_b' collides with 'a.b'"),
        (["--topic", "a:6000", "--topic", "b:4001"], 2, "--topic names 10001 partitions, but at most 10000 are"),
        (["--set", "num.partitions=x"], 2, "num.partitions must be a whole number, not 'x'"),
        (["--set", "listeners=x"], 2, "listeners must look like PLAINTEXT://HOST:PORT, not 'x'"),
        (["--set", "min.insync.replica=2"], 2, "there is no such setting; did you mean min.insync.replicas?"),
        (["--set", "nonsense"], 2, "--set takes KEY=VALUE, not 'nonsense'"),
        (["--data", b"bad-\xff"], 2, "bad-\\xff has bytes that are not UTF-8; rename it, or use another path"),
        (["--set", b"log.dirs=bad-\xff"], 2, "bad-\\xff has bytes that are not UTF-8; rename it"),
        (["--host", "not-a-host.invalid"], 1, "oncelog: cannot listen on 'not-a-host.invalid': "),
        (["--data", "/proc/nowhere"], 1, "oncelog: cannot use directory /proc/nowhere: "),
        (["--port", "70000"], 2, "70000 is not in the range"),
        (["--topic", "a:0"], 2, "--topic takes NAME[:PARTITIONS[:REPLICATION-FACTOR]], not 'a:0'"),
        (["--topic", "a:1:2"], 2, "replication factor 2 needs 2 brokers, but --brokers is 1"),
        (["--topic", "a/b"], 2, "topic name 'a/b' may contain only"),
        (["--ephemeral", "--data", "x"], 2, "--data and --ephemeral cannot be used together"),
        (["--no-such-flag"], 2, "No such option"),
    ],
)
def test_errors_are_one_sentence(tmp_path: Path, arguments: list[str | bytes], status: int, message: str) -> None:
    got, out, err = run("up", "--port", "0", *arguments, cwd=tmp_path)
    assert (got, out) == (status, "")
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / ".oncelog" / "broker-1").exists()
    if status == 1:
        assert err.count("\n") == 1


def test_settings_from_file_environment_and_flags(new_cluster: NewCluster, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=2\nlog.retention.hours=5\nlog.dirs=/nowhere\nfile.only.key=1\n")
    cluster = new_cluster(
        arguments=("--config", str(config)),
        settings={"group.initial.rebalance.delay.ms": "7"},
        env={"KAFKA_NUM_PARTITIONS": "4", "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "9"},
    )
    shown = json.loads(run("cluster", "describe", "-b", cluster.bootstrap, "--configs", "--format", "json")[1])
    configs = shown["brokers"][0]["configs"]
    assert configs["num.partitions"] == "4"
    assert configs["log.retention.ms"] == "18000000"
    assert configs["group.initial.rebalance.delay.ms"] == "7"
    assert "unknown setting file.only.key" in errors_of(cluster)
    assert "log.dirs=/nowhere is ignored, because `oncelog up` keeps its data in" in errors_of(cluster)


def test_topics_exist_when_up_is_ready_and_are_created_once(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--topic", "one", "--topic", "many:3"))
    for _ in range(2):
        topics = json.loads(run("topic", "list", "-b", cluster.bootstrap, "--format", "json")[1])
        assert {topic["name"]: topic["partitions"] for topic in topics} == {"one": 1, "many": 3}
        cluster.stop()
        cluster.start()


def test_single_broker_from_a_properties_file(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    data = tmp_path / "logs"
    config.write_text(f"node.id=5\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\n")
    process = ManagedProcess([ONCELOG, "broker", "--config", config], tmp_path, "broker")
    try:
        process.wait_for(
            lambda: "[KafkaServer id=5] started" in process.stderr_path.read_text(), "the broker says that it is ready"
        )
        assert int((data / "broker.pid").read_text()) == process.pid
        assert process.stop() == 0
    finally:
        process.kill()


def test_help_imports_no_verb_and_up_no_client() -> None:
    code = """
import contextlib, io, sys
from oncelog.cli.app import oncelog
with contextlib.redirect_stdout(io.StringIO()) as out:  # click.testing imports pdb, and that asyncio on 3.14
    oncelog.main(["--help"], standalone_mode=False)
assert "topic" in out.getvalue(), out.getvalue()
verbs = {name for name in sys.modules if name.startswith("oncelog.cli.")}
verbs -= {f"oncelog.cli.{name}" for name in ("app", "lazy", "log_format")}
assert not verbs, verbs
import oncelog.cli.up
heavy = {"asyncio", "oncelog.client", "oncelog.broker.broker", "rich", "numpy", "pyarrow", "logging"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_ctrl_c_during_the_imports_prints_nothing() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "oncelog.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from oncelog.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_broker_imports_nothing_heavy() -> None:
    code = """
import sys
import oncelog.broker.process, oncelog.broker.broker, oncelog.cluster.store_sqlite, oncelog.log.disk
heavy = {"numpy", "pyarrow", "numba", "rich", "click", "oncelog.client", "pandas"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_idle_broker_uses_little_memory(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    fields = Path(f"/proc/{cluster.broker_pid()}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", fields)
    assert match is not None
    assert int(match[1]) < 80 * 1024
