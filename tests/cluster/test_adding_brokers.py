"""`oncelog up --brokers N` on existing data of another number of brokers, or of another place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.servers import OncelogCluster

NewCluster = Callable[..., OncelogCluster]


def refusal(cluster: OncelogCluster, *arguments: str) -> str:
    """Run `oncelog up` on the data of a stopped cluster. Return the error, and check that nothing has changed."""
    before = sorted(path.name for path in cluster.data.iterdir() if not path.name.startswith("metadata.sqlite-"))
    with pytest.raises(AssertionError, match="ended with 1") as caught:
        OncelogCluster(cluster.directory, arguments=arguments)
    after = sorted(path.name for path in cluster.data.iterdir() if not path.name.startswith("metadata.sqlite-"))
    assert after == before
    return str(caught.value)


def test_logs_in_other_directories_are_not_given_up_for_more_brokers(new_cluster: NewCluster, tmp_path: Path) -> None:
    folders = f"{tmp_path / 'disk1'},{tmp_path / 'disk2'}"
    cluster = new_cluster(settings={"log.dirs": folders}, arguments=("--topic", "t:4"))
    assert cluster.stop() == 0
    told = refusal(cluster, "--brokers", "3")
    assert f"the logs of broker 1 are in {folders}, and several brokers can only use" in told
    assert f"run `oncelog up --data {cluster.data} --set log.dirs={folders}` without --brokers" in told
    cluster.start()


def test_fewer_brokers_than_the_metadata_knows_are_refused(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--brokers", "3"))
    assert cluster.stop() == 0
    shutil.rmtree(cluster.data / "broker-3")
    assert "has the data of broker 3; run `oncelog up --brokers 3`" in refusal(cluster, "--brokers", "2")


def test_moved_data_gets_more_brokers(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster()
    assert cluster.stop() == 0
    cluster.data.rename(tmp_path / "moved")
    moved = OncelogCluster(tmp_path, arguments=("--data", str(tmp_path / "moved"), "--brokers", "2"))
    assert moved.bootstrap.count(",") == 1
    assert moved.stop() == 0


def test_swapped_directories_are_refused(new_cluster: NewCluster) -> None:
    cluster = new_cluster(arguments=("--brokers", "3", "--topic", "t:3:3"))
    assert cluster.stop() == 0
    first, second = cluster.data / "broker-1", cluster.data / "broker-2"
    aside = cluster.data / "aside"

    def swap() -> None:
        first.rename(aside)
        second.rename(first)
        aside.rename(second)

    swap()
    told = refusal(cluster, "--brokers", "3")
    assert f"{first} is the log directory of broker 2, but broker 1 would use it. Move the data back" in told
    started = cluster.process.stderr_path.read_text().count("[KafkaServer id=")
    assert started == 3, "a broker that starts would remove the others from the ISR"
    swap()
    cluster.start()
