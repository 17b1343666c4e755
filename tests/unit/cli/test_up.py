"""`oncelog up` from a user's view: one line when ready, one broker that restarts, clean stops, clear errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from oncelog.cli.broker_settings import of_broker, with_address
from support.processes import ManagedProcess, accepts, children, gone, wait_until
from support.servers import OncelogCluster
from support.wire import Wire, batch

ONCELOG = Path(sys.executable).with_name("oncelog")
NewCluster = Callable[..., OncelogCluster]


def errors_of(cluster: OncelogCluster) -> str:
    return cluster.process.stderr_path.read_text()


def run(
    *arguments: str | bytes | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run a command to its end: (exit status, stdout, stderr)."""
    command = [part if isinstance(part, bytes) else str(part) for part in (ONCELOG, *arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **(env or {})}, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr


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


def test_up_prints_the_data_folder(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster()
    assert f"oncelog: the data is in {cluster.data}\n" in errors_of(cluster)
    cluster = new_cluster(settings={"log.dirs": str(tmp_path / "logs")})
    assert f"oncelog: the data is in {cluster.data}; the logs are in {tmp_path / 'logs'}\n" in errors_of(cluster)


def test_data_in_a_parent_folder_is_mentioned(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / ".oncelog").mkdir()
    (tmp_path / ".oncelog" / "metadata.sqlite").touch()
    hint = f"{tmp_path / '.oncelog'} contains older data; to use it, pass --data {tmp_path / '.oncelog'}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = ("up", "--port", str(taken.getsockname()[1]))  # ends because the port is in use
        assert hint in run(*up, cwd=below)[2]
        assert hint not in run(*up, "--data", "here", cwd=below)[2]
        assert hint in run(*up, cwd=below)[2]
        (below / ".oncelog" / "metadata.sqlite").touch()
        assert hint not in run(*up, cwd=below)[2]


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


def test_second_up_on_the_same_folder_is_an_error(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    status, out, err = run("up", "--port", "0", "--data", cluster.data)
    assert (status, out) == (1, "")
    assert err == (
        f"oncelog: directory {cluster.data} is in use by process {cluster.process.pid}."
        " Stop that process, or choose another directory\n"
    )
    assert accepts(cluster.bootstrap)


def test_second_broker_on_the_same_folder_is_an_error(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster()
    config = tmp_path / "server.properties"
    config.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={cluster.data / 'broker-1'}\n")
    status, _, err = run("broker", "--config", config)
    assert status == 1
    assert f"is in use by process {cluster.broker_pid()}" in err


def test_files_of_a_dead_broker_are_ignored(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.process.kill()  # both processes, so that nothing is cleaned up
    assert (cluster.data / "broker-1" / "broker.pid").exists()
    # its process id belongs to another process now
    (cluster.data / "broker-1" / "broker.pid").write_text(f"{os.getpid()}\n")
    cluster.start()
    assert cluster.broker_pid() != os.getpid()
    assert cluster.stop() == 0


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run("up", "--port", str(port), "--data", tmp_path / "data")
    assert (status, out) == (1, "")
    hint = "choose another with --port (0: any free port)"
    assert err == f"oncelog: cannot listen on 127.0.0.1:{port}, because the port is in use; {hint}\n"


def test_port_in_use_for_one_of_three_brokers_starts_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run("up", "--brokers", "3", "--port", str(port - 2), "--data", tmp_path / "data")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"oncelog: cannot listen on 127\.0\.0\.1:\d+, because the port is in use; choose .*\n", err), (
        err
    )
    assert not list((tmp_path / "data").glob("broker-*"))


def test_unusable_folder_is_reported_with_the_reason(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.stop()
    identity = cluster.data / "broker-1" / "meta.properties"
    text = identity.read_text()
    identity.write_text(re.sub("cluster.id=.*", "cluster.id=another", text))
    status, out, err = run("up", "--port", "0", "--data", cluster.data)
    assert (status, out) == (1, "")
    assert err.startswith("oncelog: cannot start broker 1: ")
    assert "has cluster.id=another, but this broker's metadata has" in err
    assert err.count("\n") == 1
    identity.write_text(text)
    (cluster.data / "metadata.sqlite").write_bytes(b"no database" * 1000)
    status, out, err = run("up", "--port", "0", "--data", cluster.data)
    assert (status, out) == (1, "")
    assert err.startswith("oncelog: cannot start broker 1: DatabaseError: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--brokers", "3", "--set", "log.dirs=x"], 2, "log.dirs cannot be set for several brokers; use --data"),
        (["--brokers", "2", "--topic", "t:1:3"], 2, "replication factor 3 needs 3 brokers, but --brokers is 2"),
        (["--brokers", "0"], 2, "0 is not in the range 1<=x<=64"),
        (["--brokers", "1000"], 2, "1000 is not in the range 1<=x<=64"),
        (["--brokers", "x"], 2, "'x' is not a valid integer"),
        (["--brokers", "3", "--set", "node.id=7"], 2, "--set node.id has no effect: `oncelog up` numbers its brokers"),
        (["--set", "broker.id=7"], 2, "--set broker.id has no effect: `oncelog up` numbers its brokers"),
        (["--brokers", "3", "--set", "log.dir=x"], 2, "log.dir cannot be set for several brokers; use --data"),
        (["--topic", "a", "--topic", "a:2"], 2, "--topic a:2: topic 'a' is named twice"),
        (["--topic", "a.b", "--topic", "a_b"], 2, "--topic a_b: topic 'a_b' collides with 'a.b'"),
        (["--topic", "a:6000", "--topic", "b:4001"], 2, "--topic names 10001 partitions, but at most 10000 are"),
        (["--set", "num.partitions=x"], 2, "num.partitions must be a whole number, not 'x'"),
        (["--set", "listeners=x"], 2, "listeners must look like PLAINTEXT://HOST:PORT, not 'x'"),
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


def test_ephemeral_leaves_nothing(tmp_path: Path) -> None:
    command = [ONCELOG, "up", "--port", "0", "--ephemeral"]
    process = ManagedProcess(command, tmp_path / "out", "up", {**os.environ, "TMPDIR": str(tmp_path)})
    try:
        process.wait_for(lambda: list(process.lines()), "ready")
        assert len(list(tmp_path.glob("oncelog-*"))) == 1
        assert process.stop() == 0
        assert list(tmp_path.glob("oncelog-*")) == []
    finally:
        process.kill()


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
verbs = {name for name in sys.modules if name.startswith("oncelog.cli.")} - {"oncelog.cli.app", "oncelog.cli.lazy"}
assert not verbs, verbs
import oncelog.cli.up
heavy = {"asyncio", "oncelog.client", "oncelog.broker.broker", "rich", "numpy", "pyarrow", "logging"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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


@pytest.mark.parametrize(
    ("given", "address"),
    [("box", "box:0"), ("box:9", "box:9"), ("::1", "[::1]:0"), ("[::1]", "[::1]:0"), ("[::1]:9", "[::1]:9")],
)
def test_advertise_option(given: str, address: str) -> None:
    settings = with_address({}, host=None, port=None, advertise=given)
    assert settings["advertised.listeners"] == f"PLAINTEXT://{address}"


INNER = {"listeners": "INNER://127.0.0.1:1", "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT"}


def test_options_keep_the_name_of_the_listener() -> None:
    settings = with_address(INNER, host="::1", port=None, advertise="box")
    assert settings["listeners"] == "INNER://[::1]:1"
    assert settings["advertised.listeners"] == "INNER://box:0"


def test_options_are_rejected_with_several_listeners() -> None:
    settings = {**INNER, "listeners": "INNER://127.0.0.1:1,OUTER://127.0.0.1:2"}
    assert with_address(settings, host=None, port=None, advertise=None) == settings
    with pytest.raises(click.UsageError, match="the settings have INNER, OUTER"):
        with_address(settings, host=None, port=3, advertise=None)


@pytest.mark.parametrize("given", ["box:nine", "box:99999", ":9", "box:"])
def test_invalid_advertised_address_is_rejected(given: str) -> None:
    with pytest.raises(click.UsageError, match="--advertise takes HOST"):
        with_address({}, host=None, port=None, advertise=given)


def test_each_of_several_brokers_listens_on_the_next_ports() -> None:
    listeners = {"listeners": "INNER://127.0.0.1:9092,OUTER://[::1]:0", "advertised.listeners": "INNER://box:100"}
    settings = {**INNER, **listeners}
    assert of_broker(settings, 1) == settings
    third = of_broker(settings, 3)
    assert third["listeners"] == "INNER://127.0.0.1:9094,OUTER://[::1]:0"
    assert third["advertised.listeners"] == "INNER://box:102"
    assert of_broker({}, 2)["listeners"] == "PLAINTEXT://127.0.0.1:9093"
    with pytest.raises(click.UsageError, match="broker 2 would listen on port 65536"):
        of_broker({"listeners": "PLAINTEXT://127.0.0.1:65535"}, 2)


def test_brokers_with_overlapping_ports_are_rejected(tmp_path: Path) -> None:
    listeners = "listeners=INNER://127.0.0.1:9092,OUTER://127.0.0.1:9093"
    protocols = f"listener.security.protocol.map={INNER['listener.security.protocol.map']}"
    status, out, err = run("up", "--brokers", "2", "--set", listeners, "--set", protocols, cwd=tmp_path)
    assert (status, out) == (2, "")
    assert "brokers 1 and 2 would both listen on port 9093" in err


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "127.0.0.1"])
def test_up_on_all_addresses_warns_once_and_accepts_ipv4(new_cluster: NewCluster, host: str) -> None:
    """As Kafka with [::], which accepts IPv6 and IPv4."""
    cluster = new_cluster(arguments=("--host", host))
    port = int(cluster.bootstrap.rpartition(":")[2])
    for address in ("127.0.0.1", *(("::1",) if host == "::" else ())):
        socket.create_connection((address, port), 60).close()
    assert accepts(cluster.bootstrap)
    assert errors_of(cluster).count("has no access control") == (0 if host == "127.0.0.1" else 1)
    cluster.kill()  # it listens on the same addresses again
    cluster.process.wait_for(lambda: errors_of(cluster).count("started") == 2, "the broker is restarted")
    socket.create_connection(("127.0.0.1", port), 60).close()


def test_up_refuses_data_of_more_brokers(tmp_path: Path) -> None:
    (tmp_path / "broker-3").mkdir()
    status, out, err = run("up", "--port", "0", "--data", tmp_path)
    assert (status, out) == (1, "")
    assert err == f"oncelog: {tmp_path} has the data of broker 3; run `oncelog up --brokers 3`\n"
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["broker-3"]


@pytest.mark.parametrize(
    ("brokers", "remedy"), [((2, 3), "cannot be rebuilt from the logs of several"), ((1,), "without --brokers")]
)
def test_up_refuses_logs_of_several_brokers_without_metadata(
    tmp_path: Path, brokers: tuple[int, ...], remedy: str
) -> None:
    """A broker without logs would create a new cluster, and the others would rename their logs."""
    for number in brokers:
        folder = tmp_path / f"broker-{number}" / "t-0"
        folder.mkdir(parents=True)
        (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ")
        (folder.parent / "meta.properties").write_text(f"version=1\nnode.id={number}\noncelog.format=1\n")
    before = sorted(tmp_path.rglob("*"))
    status, out, err = run("up", "--brokers", "3", "--port", "0", "--data", tmp_path)
    assert (status, out) == (1, "")
    assert f"{tmp_path}/metadata.sqlite is missing, but there are logs in {tmp_path}/broker-{brokers[0]}" in err
    assert remedy in err
    assert [path for path in sorted(tmp_path.rglob("*")) if not path.name.startswith(".")] == before


def test_missing_data_is_not_replaced_by_an_empty_log(new_cluster: NewCluster) -> None:
    """Acknowledged data must not vanish silently."""
    cluster = new_cluster()
    cluster.stop()
    shutil.rmtree(cluster.data / "broker-1")
    status, out, err = run("up", "--port", "0", "--data", cluster.data)
    assert (status, out) == (1, "")
    assert "this broker had logs in it" in err
    shutil.rmtree(cluster.data)
    cluster.start()
    pid = cluster.broker_pid()
    shutil.rmtree(cluster.data)
    os.kill(pid, signal.SIGKILL)
    assert cluster.process.popen.wait(90) == 1
    assert f"Not restarting it, because {cluster.data / 'metadata.sqlite'} is missing." in errors_of(cluster)


def test_broker_does_not_start_without_its_metadata_unless_it_restores_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--topic", "kept"))
    with Wire(cluster.bootstrap) as wire:
        topic_id = wire.create_topic("words")
        assert not wire.produce("words", batch([b"one"])).error_code
    cluster.stop()
    metadata = cluster.data / "metadata.sqlite"
    metadata.unlink()
    up = ("up", "--port", "0", "--data", cluster.data)
    for _ in range(2):  # the first attempt leaves an empty metadata.sqlite
        status, out, err = run(*up)
        assert (status, out) == (1, "")
        assert "the metadata is missing, but" in err
        assert "`--set restore.metadata=true`" in err
    cluster._arguments = ("--set", "restore.metadata=true")
    cluster.start()
    with Wire(cluster.bootstrap) as wire:
        assert wire.values(topic_id) == [b"one"]
    assert "Settings of topics and brokers, and topics without a directory, are lost" in errors_of(cluster)
