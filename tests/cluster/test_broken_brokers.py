"""`oncelog up --brokers 3` if one broker cannot start: the others run, and it returns after the repair."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from oncelog.cluster.brokers import read_registrations
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.cluster.topic_nodes import read_topic
from support.command_line import ONCELOG
from support.numbers import check_numbers, write_numbers
from support.processes import children, wait_until
from support.servers import OncelogCluster

Up = Callable[..., OncelogCluster]
RECORDS = 60


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Run `oncelog up --brokers 3` with arguments, always on the same data."""
    made: list[OncelogCluster] = []

    def start(*arguments: str) -> OncelogCluster:
        made.append(OncelogCluster(tmp_path, arguments=("--brokers", "3", *arguments)))
        return made[-1]

    yield start
    for cluster in made:
        cluster.stop()


@pytest.fixture
def data(up: Up) -> Path:
    """Return the data of three brokers that were stopped, with acknowledged records in a topic."""
    cluster = up("--topic", "t:3:3")
    write_numbers(cluster.bootstrap, range(RECORDS))
    assert cluster.stop() == 0
    return cluster.data


@contextmanager
def closing_cluster(cluster: OncelogCluster) -> Iterator[OncelogCluster]:
    try:
        yield cluster
    finally:
        cluster.stop()


def partitions(cluster: OncelogCluster) -> list[Any]:
    topics = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=20).topics
    return list(topics["t"].partitions.values())


def in_sync(cluster: OncelogCluster) -> set[tuple[int, ...]]:
    return {tuple(sorted(partition.isrs)) for partition in partitions(cluster)}


def leaders(cluster: OncelogCluster) -> set[int]:
    return {partition.leader for partition in partitions(cluster)}


def is_alone(store: SqliteStore, broker: int) -> bool:
    """Return whether the tree has only this broker, and its in-sync replicas only this one.

    A broker answers clients from an image that may be older than what another broker has answered before. The
    registrations are read first, because no broker without one can join the in-sync replicas again.
    """
    return set(read_registrations(store)) == {broker} and all(
        partition.isr == (broker,) for partition in read_topic(store, "t").partitions
    )


def messages(cluster: OncelogCluster) -> str:
    return cluster.process.stderr_path.read_text()


def remove(folder: Path) -> None:
    folder.rename(folder.with_name("aside"))


def replace_by_file(folder: Path) -> None:
    remove(folder)
    folder.write_text("not a directory")


def damage(folder: Path) -> None:
    folder.joinpath("meta.properties").write_text(f"version=1\ncluster.id=another\nnode.id={folder.name[-1]}\n")


def put_back(folder: Path) -> None:
    aside = folder.with_name("aside")
    if aside.exists():
        folder.unlink(missing_ok=True)  # fails for a directory, which `mv` would move the other one into
        aside.rename(folder)
    else:
        folder.joinpath("meta.properties").unlink()


@pytest.mark.parametrize(
    ("destroy", "reason"),
    [
        (remove, "it is missing, but this broker had logs in it"),
        (replace_by_file, "cannot use directory"),
        (damage, "cluster.id=another"),
    ],
)
def test_others_run_until_the_directory_is_repaired(
    up: Up, data: Path, destroy: Callable[[Path], None], reason: str
) -> None:
    folder = data / "broker-2"
    destroy(folder)
    cluster = up("--topic", "t:3:3")
    assert cluster.bootstrap.count(",") == 1
    said = messages(cluster)
    assert reason in said
    assert f"before it was ready, so its replicas in {folder} are not available. The other brokers run" in said
    assert f"once with --set lost.log.dirs={folder}" in said
    wait_until(lambda: in_sync(cluster) == {(1, 3)}, "broker 2 is not in sync")
    write_numbers(cluster.bootstrap, range(RECORDS, 2 * RECORDS))
    check_numbers(cluster.bootstrap, 2 * RECORDS)
    put_back(folder)
    wait_until(lambda: "broker 2 is ready now, at 127.0.0.1:" in messages(cluster), "broker 2 has started")
    wait_until(lambda: in_sync(cluster) == {(1, 2, 3)}, "broker 2 is in sync again")
    assert cluster.stop() == 0


def test_directory_that_is_deleted_under_a_running_broker_is_not_made_again(up: Up, data: Path) -> None:
    cluster = up()
    folder = data / "broker-2"
    remove(folder)
    reason = f"cannot use directory {folder}: it is missing, but this broker had logs in it"
    wait_until(lambda: messages(cluster).count(reason) >= 3, "it retries")
    assert "repair it, or put the directory back if it is missing" in messages(cluster)
    assert not folder.exists()
    put_back(folder)
    wait_until(lambda: in_sync(cluster) == {(1, 2, 3)}, "broker 2 is in sync again")
    assert cluster.stop() == 0


def test_copied_cluster_without_a_directory_names_the_path_of_the_copy(up: Up, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy / "data", ignore=shutil.ignore_patterns("broker-2"))
    folder = copy / "data" / "broker-2"
    arguments = ("--brokers", "3")
    with closing_cluster(OncelogCluster(copy, arguments=arguments)) as cluster:
        said = messages(cluster)
        assert f"cannot use directory {folder}: it is missing, but this broker had logs in it" in said
        assert f"The metadata has its former path, {data / 'broker-2'}" in said
        assert not folder.exists()
    advised = f"lost.log.dirs={folder}"
    assert f"run it once with --set {advised}" in said
    with closing_cluster(OncelogCluster(copy, arguments=(*arguments, "--set", advised))) as cluster:
        assert cluster.bootstrap.count(",") == 2
        check_numbers(cluster.bootstrap, RECORDS)
        wait_until(lambda: in_sync(cluster) == {(1, 2, 3)}, "broker 2 is in sync again")


def test_lost_disk_is_replaced_while_the_whole_cluster_starts(up: Up, data: Path) -> None:
    folder = data / "broker-2"
    shutil.rmtree(folder)
    cluster = up("--set", f"lost.log.dirs={folder}")
    assert cluster.bootstrap.count(",") == 2
    copied = "Partitions with other replicas are copied from them, and all other partitions start without records"
    assert f"log directory {folder} is lost. {copied}" in messages(cluster)
    check_numbers(cluster.bootstrap, RECORDS)
    wait_until(lambda: in_sync(cluster) == {(1, 2, 3)}, "broker 2 is in sync again")
    assert cluster.stop() == 0
    for broker in (1, 3):
        damage(data / f"broker-{broker}")
    cluster = up("--set", "unclean.leader.election.enable=true")
    assert cluster.bootstrap.count(",") == 0
    check_numbers(cluster.bootstrap, RECORDS)


def test_lost_disk_is_not_advised_again_if_the_setting_names_it(up: Up, data: Path) -> None:
    folder = data / "broker-2"
    replace_by_file(folder)
    cluster = up("--set", f"lost.log.dirs={folder}")
    assert cluster.bootstrap.count(",") == 1
    said = messages(cluster)
    assert "cannot use directory" in said
    assert "oncelog: Correct the cause that is printed above.\n" in said
    assert "once with --set lost.log.dirs" not in said
    folder.unlink()
    wait_until(lambda: "broker 2 is ready now, at 127.0.0.1:" in messages(cluster), "broker 2 has started")
    assert f"log directory {folder} is lost" in messages(cluster)
    assert cluster.stop() == 0


def test_unclean_election_gives_up_a_disk_that_alone_was_in_sync(up: Up, data: Path) -> None:
    cluster = up()
    wait_until(lambda: in_sync(cluster) == {(1, 2, 3)}, "all brokers are in sync")
    os.kill(cluster.process.pid, signal.SIGSTOP)  # it must not restart the brokers
    for broker in (1, 3):
        os.kill(cluster.broker_pid(broker), signal.SIGKILL)
    with closing(SqliteStore(str(data / "metadata.sqlite"))) as store:
        wait_until(lambda: is_alone(store, 2), "only broker 2 is in sync")
    cluster.process.kill()
    folder = data / "broker-2"
    shutil.rmtree(folder)
    cluster = up("--set", f"lost.log.dirs={folder}")
    assert cluster.bootstrap.count(",") == 2
    wait_until(lambda: leaders(cluster) == {-1}, "no broker leads")
    oncelog = Path(sys.executable).with_name("oncelog")
    alter = [oncelog, "topic", "alter", "t", "--config", "unclean.leader.election.enable=true"]
    subprocess.run([*alter, "-b", cluster.bootstrap], check=True)
    check_numbers(cluster.bootstrap, RECORDS)
    assert leaders(cluster) <= {1, 3}
    wait_until(lambda: in_sync(cluster) == {(1, 2, 3)}, "all brokers are in sync again")


def test_broker_that_is_killed_before_it_is_ready_starts_again(up: Up, data: Path) -> None:
    pid_file = data / "broker-2" / "broker.pid"

    def kill() -> None:
        wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "broker 2 starts")
        os.kill(int(pid_file.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    cluster = up()
    killer.join()
    assert cluster.bootstrap.count(",") == 2
    assert "broker 2 ended by signal 9 before it was ready" in messages(cluster)
    check_numbers(cluster.bootstrap, RECORDS)
    assert len(children(cluster.process.pid)) == 3


@pytest.mark.parametrize("interrupt", [False, True])
def test_command_says_why_its_records_wait(up: Up, data: Path, interrupt: bool) -> None:
    damage(data / "broker-3")
    cluster = up("--set", "min.insync.replicas=3")
    wait_until(lambda: in_sync(cluster) == {(1, 2)}, "broker 3 is not in sync")
    timeout = "3600" if interrupt else "15"
    command = [ONCELOG, "topic", "produce", "t", "-p", "0", "-b", cluster.bootstrap, "--timeout", timeout]
    # an ignored SIGINT, which a shell gives to background commands, would be inherited
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, inherited)
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("one\ntwo\n")
        process.stdin.close()
        reason = "2 replica(s) are in sync; min.insync.replicas=3 (NOT_ENOUGH_REPLICAS)"
        first = process.stderr.readline()
        assert "t-0, sequences 0 to 1 of producer id" in first
        assert "queued again, behind 0 and before 0 other batches, after attempt 1: NOT_ENOUGH_REPLICAS, t-0" in first
        assert f"records for t-0 wait: t-0: {reason}" in process.stderr.readline()
        assert process.poll() is None
        if interrupt:
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
            assert "2 of 2 records are not acknowledged" in process.stderr.read()
        else:
            assert process.wait(120) == 1
            said = process.stderr.read()
            assert re.search(r"oncelog: 2 records for t-0 .*\(\d+ attempts failed, the last one with", said)
            assert f"t-0: {reason.partition(' (')[0]}" in said
            assert "t-0: t-0" not in said


def test_missing_topic_is_created_by_a_broker_that_runs(up: Up, data: Path) -> None:
    damage(data / "broker-3")
    cluster = up("--topic", "new:2:2")
    assert "new" in AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=20).topics


def test_first_group_reads_without_the_missing_broker_and_its_offsets_have_three_replicas(up: Up, data: Path) -> None:
    damage(data / "broker-3")
    cluster = up()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found: list[object] = []
    wait_until(lambda: found.extend(consumer.consume(RECORDS, 1)) or len(found) >= RECORDS, "all records are read")
    consumer.commit(asynchronous=False)
    consumer.close()
    offsets = admin.list_topics(timeout=20).topics["__consumer_offsets"].partitions
    assert {tuple(sorted(partition.replicas)) for partition in offsets.values()} == {(1, 2, 3)}


def test_start_fails_if_no_broker_can_start(up: Up, data: Path) -> None:
    for broker in (1, 2, 3):
        damage(data / f"broker-{broker}")
    with pytest.raises(AssertionError, match="ended with 1"):
        up()


def test_new_topic_gets_a_replica_on_the_broker_that_cannot_start(up: Up, data: Path) -> None:
    damage(data / "broker-3")
    admin = AdminClient({"bootstrap.servers": up("--topic", "new:2:3").bootstrap})

    def in_sync() -> list[tuple[list[int], int]]:
        partitions = admin.list_topics(timeout=20).topics["new"].partitions.values()
        return [(sorted(each.replicas), len(each.isrs)) for each in partitions]

    assert in_sync() == [([1, 2, 3], 2)] * 2
    put_back(data / "broker-3")
    wait_until(lambda: in_sync() == [([1, 2, 3], 3)] * 2, "the third broker is in sync")


def test_new_cluster_does_not_start_without_a_broker(up: Up, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broker-2").write_text("not a directory")
    with pytest.raises(AssertionError, match="ended with 1"):
        up("--topic", "t:3:3")
