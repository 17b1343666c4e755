"""Several log directories: placement of partitions, rejected directories, and existing data.

Failing disks: `test_disk_failures.py`.
"""

from __future__ import annotations

import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.config.errors import ConfigError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import BrokerStorage, append, fill
from support.log_directories import nothing, refusal, refused

# -- placement -----------------------------------------------------------------------------------------------------


def test_new_partitions_go_to_the_emptiest_directory_and_are_found_again(storage: BrokerStorage) -> None:
    async def first(broker: Broker) -> None:
        await fill(broker, "t", 4)

    async def second(broker: Broker) -> None:
        for partition in range(4):
            assert broker.partitions.require("t", partition).log.log_end_offset == 1
        await broker.topics.delete(broker.metadata.image.topic("t"))  # type: ignore[arg-type]
        await fill(broker, "u", 5)

    storage.run_broker(first)
    homes = storage.log_dir_names()
    assert sorted(homes.values()) == ["a", "a", "b", "b"]
    storage.paths.reverse()
    storage.run_broker(second)
    assert sorted(storage.log_dir_names().values()) == ["a", "a", "b", "b", "b"]
    assert all(name.startswith("u-") for name in storage.log_dir_names())


def test_each_directory_has_its_own_id(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        ids = [directory.directory_id for directory in broker.directories]
        assert len(set(ids)) == 2
        assert None not in ids

    storage.run_broker(life)
    before = [Path(path, "meta.properties").read_text() for path in storage.paths]
    storage.run_broker(life)
    assert [Path(path, "meta.properties").read_text() for path in storage.paths] == before
    assert "oncelog.format=1" in before[0]
    assert "version=1" in before[0]


def test_metadata_directory_of_kafka_without_records_is_ignored(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        assert len(broker.directories.online) == 2

    storage.run_broker(life)
    folder = Path(storage.paths[0], "__cluster_metadata-0")
    folder.mkdir()
    (folder / "quorum-state").write_text("{}")
    storage.run_broker(life)


def test_directories_are_opened_in_a_worker_thread(storage: BrokerStorage) -> None:
    """Their `meta.properties` are synced, and leftovers of deletions are removed."""

    async def life(broker: Broker) -> None:
        assert storage.disk.sync_threads
        assert threading.get_ident() not in storage.disk.sync_threads

    storage.run_broker(life)


def test_directory_of_another_cluster_node_or_version_is_rejected(storage: BrokerStorage) -> None:
    storage.run_broker(nothing)
    assert "node.id" in refused(storage, node_id="7")
    path = Path(storage.paths[1], "meta.properties")
    text = path.read_text()
    path.write_text(text.replace("cluster.id=", "cluster.id=other"))
    assert "another cluster" in refused(storage)
    path.write_text(text.replace("oncelog.format=1", "oncelog.format=2"))
    assert "newer oncelog" in refused(storage)
    path.write_text(text.replace("version=1", "version=9"))
    assert "version 9" in refused(storage)
    path.write_text(text)
    storage.run_broker(nothing)


def test_directory_of_an_older_oncelog_is_upgraded(storage: BrokerStorage) -> None:
    storage.run_broker(nothing)
    path = Path(storage.paths[0], "meta.properties")
    old = [line for line in path.read_text().splitlines() if not line.startswith(("directory.id", "oncelog"))]
    path.write_text("\n".join(old) + "\n")
    storage.run_broker(nothing)
    assert "directory.id=" in path.read_text()
    assert "oncelog.format=1" in path.read_text()


def test_copy_of_a_directory_is_rejected(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 1)

    storage.run_broker(life)
    shutil.rmtree(storage.paths[1])
    shutil.copytree(storage.paths[0], storage.paths[1])
    assert "same directory.id" in refused(storage)
    meta = Path(storage.paths[1], "meta.properties")
    meta.write_text("\n".join(line for line in meta.read_text().splitlines() if "directory.id" not in line))
    assert "t-0 is in" in refused(storage)
    shutil.rmtree(Path(storage.paths[1], "t-0"))
    storage.run_broker(nothing)


# -- existing data --------------------------------------------------------------------------------------------------


def test_directory_that_is_now_empty_is_offline_until_it_is_restored(storage: BrokerStorage) -> None:
    """An unmounted disk: its partitions must not start empty."""
    first_of_all = Path(storage.paths[0])

    async def first(broker: Broker) -> None:
        await fill(broker, "t", 2)

    async def without(broker: Broker) -> None:
        assert refusal(broker, "t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.partitions.require("t", 1).log.log_end_offset == 1

    async def again(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    storage.run_broker(first)
    first_of_all.rename(first_of_all.with_name("unmounted"))
    storage.run_broker(without)
    assert not first_of_all.exists()
    first_of_all.mkdir()
    storage.run_broker(without)
    first_of_all.rmdir()
    first_of_all.with_name("unmounted").rename(first_of_all)
    storage.run_broker(again)


def test_new_log_does_not_bring_back_a_deleted_directory(storage: BrokerStorage) -> None:
    """A restarted broker would find logs in the directory, and open them without their records."""
    deleted = Path(storage.paths[0])

    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        deleted.rename(deleted.with_name("moved"))
        await broker.topics.create("u", partitions=2)
        for partition in range(2):
            with suppress(ProtocolError, OSError):
                append(broker.partitions.require("u", partition))
        assert not deleted.exists()
        assert len(broker.directories.online) == 1

    storage.run_broker(life)


def test_broker_without_any_of_its_log_directories_does_not_start(storage: BrokerStorage) -> None:
    storage.run_broker(lambda broker: fill(broker, "t", 2))
    for path in storage.paths:
        shutil.rmtree(path)
    assert "this broker had logs in it" in refused(storage)


def test_directory_removed_from_the_settings_prevents_the_start(storage: BrokerStorage) -> None:
    storage.run_broker(lambda broker: fill(broker, "t", 2))
    gone = storage.paths.pop(0)
    assert f"has logs in {gone} " in refused(storage)
    storage.paths.insert(0, str(Path(gone).with_name("moved")))
    Path(gone).rename(storage.paths[0])
    storage.run_broker(nothing)  # the same directory in another place


def test_copied_directories_are_named_by_the_path_of_the_copy(
    storage: BrokerStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def without(broker: Broker) -> None:
        assert refusal(broker, "t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.partitions.require("t", 1).log.log_end_offset == 1

    async def given_up(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 0
        assert broker.partitions.require("t", 1).log.log_end_offset == 1

    storage.run_broker(lambda broker: fill(broker, "t", 2))
    original = storage.paths[0]
    storage.paths[:] = [str(tmp_path / "copy" / Path(path).name) for path in storage.paths]
    Path(storage.paths[1]).parent.mkdir()
    Path(original).with_name(Path(storage.paths[1]).name).rename(storage.paths[1])
    storage.run_broker(without)
    assert f"cannot use log directory {storage.paths[0]}" in caplog.text
    assert f"The metadata has its former path, {original}" in caplog.text
    assert not Path(storage.paths[0]).exists()
    storage.run_broker(given_up, lost_log_dirs=storage.paths[0])
    storage.run_broker(given_up)


def test_lost_directory_starts_empty_on_request(storage: BrokerStorage, caplog: pytest.LogCaptureFixture) -> None:
    async def after_the_loss(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 0
        assert broker.partitions.require("t", 1).log.log_end_offset == 1

    storage.run_broker(lambda broker: fill(broker, "t", 2))
    shutil.rmtree(storage.paths[0])
    storage.run_broker(after_the_loss, lost_log_dirs=storage.paths[0])
    assert f"log directory {storage.paths[0]} is lost. Its partitions start without records" in caplog.text
    storage.run_broker(after_the_loss)
    gone = storage.paths.pop()
    refused(storage)
    storage.run_broker(nothing, lost_log_dirs=gone)
    storage.run_broker(nothing)


def test_setting_for_a_lost_directory_counts_once(storage: BrokerStorage, caplog: pytest.LogCaptureFixture) -> None:
    """It may stay in the command. If the new disk is not mounted later, its partitions must not start empty."""
    lost = Path(storage.paths[0])

    async def full(broker: Broker) -> None:
        append(broker.partitions.require("t", 0))
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    async def without(broker: Broker) -> None:
        assert refusal(broker, "t", 0) is ErrorCode.KAFKA_STORAGE_ERROR

    async def again(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    async def empty(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 0

    storage.run_broker(lambda broker: fill(broker, "t", 2))
    shutil.rmtree(lost)
    storage.run_broker(full, lost_log_dirs=str(lost))
    storage.run_broker(again, lost_log_dirs=str(lost))
    lost.rename(lost.with_name("unmounted"))
    storage.run_broker(without, lost_log_dirs=str(lost))
    assert f"lost.log.dirs has no effect on {lost}" in caplog.text
    lost.with_name("unmounted").rename(lost)
    storage.run_broker(again, lost_log_dirs=str(lost))
    shutil.rmtree(lost)
    storage.run_broker(without)  # without the setting, so that it counts again
    storage.run_broker(empty, lost_log_dirs=str(lost))


def test_unknown_lost_directory_prevents_the_start(storage: BrokerStorage) -> None:
    """Otherwise, a mistyped path would have no effect, and the broker would continue without the disk."""
    storage.run_broker(lambda broker: fill(broker, "t", 2))
    kept, gone = storage.paths
    wrong = f"{gone}x"
    said = (
        f"lost.log.dirs names {wrong}, but no broker has or had such a log directory. log.dirs is {kept},{gone}. "
        "Correct the path, or remove it"
    )
    with pytest.raises(ConfigError, match=rf"^{re.escape(said)}$"):
        storage.run_broker(nothing, lost_log_dirs=f"{gone},{wrong}")
    storage.paths.pop()
    with pytest.raises(ConfigError, match=rf"log.dirs is {kept}; the cluster also has, or had, {gone}\. Correct"):
        storage.run_broker(nothing, lost_log_dirs=wrong)
    for _ in range(2):
        storage.run_broker(nothing, lost_log_dirs=gone)
    storage.run_broker(nothing)  # after that, no broker has it
    with pytest.raises(ConfigError, match=rf"names {gone}, but"):
        storage.run_broker(nothing, lost_log_dirs=gone)


def test_deleted_directory_id_is_recognized_again(storage: BrokerStorage) -> None:
    storage.run_broker(lambda broker: fill(broker, "t", 2))
    file = Path(storage.paths[0], "meta.properties")
    before = file.read_text()
    file.unlink()
    storage.run_broker(nothing)
    assert file.read_text() == before
