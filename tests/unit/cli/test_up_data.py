"""The data of `oncelog up`: where it is, who else uses it, and what happens if a part of it is missing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import ONCELOG, errors_of, run
from support.processes import ManagedProcess, accepts
from support.servers import OncelogCluster
from support.wire import Wire, batch

NewCluster = Callable[..., OncelogCluster]


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
    assert err == f"oncelog: cannot start broker 1: {cluster.data}/metadata.sqlite: file is not a database\n"


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
    assert "it is missing, but this broker had logs in it. Mount its disk, or move the directory back" in err
    assert f"start once with lost.log.dirs={cluster.data / 'broker-1'}" in err
    assert not (cluster.data / "broker-1").exists()
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
    assert "Settings of topics and brokers, ACLs, quotas, and topics without a directory, are lost" in errors_of(
        cluster
    )
