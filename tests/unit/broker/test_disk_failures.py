"""Failing log directories: what goes offline with them, and what the broker answers.

The disk is real, with failures injected by path and kind of operation.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import re
import shutil
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.find_coordinator import bind as find_coordinator
from oncelog.broker.requests.context import RequestContext
from oncelog.coordinator.partitioning import partition_for
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from support.broker_fixtures import BrokerStorage, append, fill
from support.log_directories import SMALL_SEGMENTS, described, log_dirs, refusal, refused
from support.turns import until

KINDS = [("write", errno.ENOSPC), ("write", errno.EIO), ("write", errno.EFBIG), ("read", errno.EIO)]


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_failure_takes_only_its_directory_offline(storage: BrokerStorage, kind: str, error: int) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        bad, good = broker.partitions.require("t", 0), broker.partitions.require("t", 1)
        storage.disk.break_down(kind, storage.paths[0], error)
        with pytest.raises(ProtocolError) as caught:
            append(bad) if kind == "write" else bad.log.read(0, 1000, upto=1, at_least_one=True)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        storage.disk.repair()  # too late: the directory stays offline
        with pytest.raises(ProtocolError) as caught:
            append(bad)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: bad.offline)
        assert refusal(broker, "t") is ErrorCode.KAFKA_STORAGE_ERROR
        assert not broker.partitions.leads("t", 0)
        append(good)
        shown = await described(broker, "t", 0)
        assert (shown.error_code, shown.leader_id, shown.offline_replicas) == (
            ErrorCode.LEADER_NOT_AVAILABLE, -1, [broker.node_id]
        )  # fmt: skip
        shown = await described(broker, "t", 1)
        assert (shown.error_code, shown.leader_id, shown.offline_replicas) == (0, broker.node_id, [])
        await fill(broker, "u", 2)  # new topics go to the directories that are online
        assert not broker.failed.done()

    async def after(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1
        assert broker.partitions.require("t", 1).log.log_end_offset == 2

    storage.run_broker(life)
    assert not Path(storage.paths[0], ".kafka_cleanshutdown").exists()
    assert Path(storage.paths[1], ".kafka_cleanshutdown").exists()
    assert {name: home for name, home in storage.log_dir_names().items() if name.startswith("u")} == {
        "u-0": "b",
        "u-1": "b",
    }
    storage.run_broker(after)


def test_failed_sync_is_not_retried(tmp_path: Path) -> None:
    storage = BrokerStorage(tmp_path, log_flush_offset_checkpoint_interval_ms="5")
    storage.disk.once = True

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1, configs=SMALL_SEGMENTS)
        replica = broker.partitions.require("t", 0)
        for _ in range(3):
            append(replica)
        storage.disk.break_down("sync", storage.paths[0])  # now: a worker thread may be syncing the checkpoints
        await until(lambda: replica.offline)
        assert replica.log.recovery_point == 0
        assert refusal(broker, "t") is ErrorCode.KAFKA_STORAGE_ERROR

    async def after(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 3

    storage.run_broker(life)
    storage.run_broker(after)


def test_full_disk_is_logged_with_its_free_bytes_and_what_to_delete(
    storage: BrokerStorage, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 1)
        storage.disk.break_down("write", storage.paths[0], errno.ENOSPC)
        with pytest.raises(ProtocolError):
            append(broker.partitions.require("t", 0))
        await until(lambda: "offline" in caplog.text)

    storage.run_broker(life)
    (line,) = (record.getMessage() for record in caplog.records if "has failed and is off" in record.getMessage())
    said = rf"log directory {storage.paths[0]} has failed .*: the file system of {storage.paths[0]} is full: \d+ bytes"
    assert re.match(said, line)
    assert "Delete files there" in line


def test_broker_stops_with_its_last_directory(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        for partition in range(2):
            storage.disk.break_down("write", storage.paths[partition], errno.ENOSPC)
            with pytest.raises(ProtocolError):
                append(broker.partitions.require("t", partition))
        reason = await broker.failed
        assert "all log directories have failed" in reason
        assert storage.paths[0] in reason

    storage.run_broker(life)


def test_directory_deleted_while_in_use_goes_offline(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        shutil.rmtree(storage.paths[1])
        await until(lambda: [each.path for each in broker.directories.online] == [storage.paths[0]])
        codes = {each.log_dir: each.error_code for each in (await log_dirs(broker)).results}
        assert codes == {storage.paths[0]: ErrorCode.NONE, storage.paths[1]: ErrorCode.KAFKA_STORAGE_ERROR}
        shutil.rmtree(storage.paths[0])
        assert "meta.properties is missing" in await broker.failed

    storage.run_broker(life)


def test_directory_that_cannot_be_read_at_the_start_is_offline(storage: BrokerStorage) -> None:
    async def first(broker: Broker) -> None:
        await fill(broker, "t", 2)
        await broker.topics.create("empty", partitions=1)

    async def second(broker: Broker) -> None:
        assert refusal(broker, "t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.partitions.require("t", 1).log.log_end_offset == 1
        assert refusal(broker, "empty") is ErrorCode.KAFKA_STORAGE_ERROR  # the log may be in the offline directory
        await fill(broker, "new", 1)
        answer = await log_dirs(broker)
        codes = {result.log_dir: result.error_code for result in answer.results}
        assert codes == {storage.paths[0]: ErrorCode.KAFKA_STORAGE_ERROR, storage.paths[1]: ErrorCode.NONE}
        await broker.topics.delete(broker.metadata.image.topic("t"))  # type: ignore[arg-type]

    async def third(broker: Broker) -> None:
        await fill(broker, "t", 2)  # the deleted topic's log is set aside

    storage.run_broker(first)
    storage.disk.break_down("list", storage.paths[0])
    storage.run_broker(second)
    storage.disk.repair()
    storage.run_broker(third)
    assert list(Path(storage.paths[0]).glob("t-0.*-stray"))
    storage.disk.break_down("list", str(Path(storage.paths[0]).parent))
    assert "cannot use any of the log directories" in refused(storage)


def test_checkpoints_omit_a_log_that_was_set_aside(storage: BrokerStorage) -> None:
    """The log's topic was deleted and recreated in another directory, while the log's directory was offline."""
    names = ("cleaner-offset-checkpoint", "recovery-point-offset-checkpoint")

    def checkpoints(path: str) -> list[bool]:
        return ["t 0 " in Path(path, name).read_text() for name in names]

    async def first(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1, configs=SMALL_SEGMENTS | {"cleanup.policy": "compact"})
        for _ in range(9):
            append(broker.partitions.require("t", 0))
        assert await broker.cleaner.clean_due()

    async def second(broker: Broker) -> None:
        await broker.topics.delete(broker.metadata.image.topic("t"))  # type: ignore[arg-type]
        await fill(broker, "t", 1)

    async def third(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    storage.run_broker(first, log_cleaner_enable="false")
    assert checkpoints(storage.paths[0]) == [True, True]
    storage.disk.break_down("list", storage.paths[0])
    storage.run_broker(second)
    storage.disk.repair()
    storage.run_broker(third)
    assert list(Path(storage.paths[0]).glob("t-0.*-stray"))
    assert checkpoints(storage.paths[0]) == [False, False]
    assert storage.log_dir_names()["t-0"] == "b"


def test_directory_that_fails_while_metadata_is_loaded_is_offline(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        assert {Path(each.path).name for each in broker.directories.online} == {"b"}
        assert not broker.failed.done()

    storage.run_broker(lambda broker: fill(broker, "before", 2))
    storage.disk.break_down("read whole", storage.paths[0])
    storage.run_broker(life)


def test_unreadable_log_takes_its_directory_offline(storage: BrokerStorage) -> None:
    async def first(broker: Broker) -> None:
        await fill(broker, "t", 2)

    async def second(broker: Broker) -> None:
        await until(lambda: refusal(broker, "t") is ErrorCode.KAFKA_STORAGE_ERROR)
        assert broker.partitions.require("t", 1).log.log_end_offset == 1

    storage.run_broker(first)
    storage.disk.break_down("list", f"{storage.paths[0]}/t-0")
    storage.run_broker(second)


def test_coordinators_resign_with_their_directory(storage: BrokerStorage) -> None:
    def group_of(broker: Broker, path: str) -> str:
        """Return a group whose coordinator is in the directory."""
        for number in range(1000):
            home = broker.directories.find("__consumer_offsets", partition_for(f"g{number}", 50))
            if home is not None and home.path == path:
                return f"g{number}"
        raise AssertionError(path)

    async def coordinator(broker: Broker, group: str) -> int:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        answer = await find_coordinator(broker.services)(request, RequestContext(10, 6, 1, "test", Session()))
        return answer.coordinators[0].error_code

    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal("__consumer_offsets")
        bad, good = (group_of(broker, path) for path in storage.paths)

        def join(group: str, member: str) -> asyncio.Task[object]:
            request = JoinGroupRequest(
                group_id=group, member_id=member, session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
                protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )  # fmt: skip
            joining = broker.groups.join_group(request, 9, "test", Session())
            return asyncio.get_running_loop().create_task(joining)  # type: ignore[arg-type]

        member = (await join(bad, "")).member_id  # type: ignore[attr-defined]
        first = await join(bad, member)
        assert not first.error_code  # type: ignore[attr-defined]
        other = (await join(bad, "")).member_id  # type: ignore[attr-defined]
        waiting = join(bad, other)  # for the first member to rejoin
        await asyncio.sleep(0)
        assert not waiting.done()
        storage.disk.break_down("read", storage.paths[0])
        home = partition_for(bad, 50)
        append(broker.partitions.require("__consumer_offsets", home))
        with pytest.raises(ProtocolError):
            broker.partitions.require("__consumer_offsets", home).log.read(0, 1000, upto=1, at_least_one=True)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]
        assert (await join(bad, "")).error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]
        assert await coordinator(broker, bad) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await join(good, "")).error_code == ErrorCode.MEMBER_ID_REQUIRED  # type: ignore[attr-defined]
        assert await coordinator(broker, good) == ErrorCode.NONE

    storage.run_broker(life)


def test_contents_of_the_directories_are_described(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        answer = await log_dirs(broker)
        assert [result.log_dir for result in answer.results] == storage.paths
        for index, result in enumerate(answer.results):
            assert not result.error_code
            assert 0 < result.usable_bytes <= result.total_bytes
            (partition,) = result.topics[0].partitions
            assert (result.topics[0].name, partition.partition_index) == ("t", index)
            assert partition.partition_size == broker.partitions.require("t", index).log.size_bytes > 0
            assert (partition.offset_lag, partition.is_future_key) == (0, False)
        answer = await log_dirs(broker, {"t": [1, 7], "missing": [0]})
        assert [[topic.name for topic in result.topics] for result in answer.results] == [[], ["t"]]

    storage.run_broker(life)


def test_describing_log_dirs_yields_to_other_requests(storage: BrokerStorage) -> None:
    """The logs are opened one by one, and checked once however many directories there are."""

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=40)
        describing = asyncio.ensure_future(log_dirs(broker))
        opened = []
        while not describing.done():
            opened.append(len(broker.partitions))
            await asyncio.sleep(0)
        assert {later - earlier for earlier, later in itertools.pairwise(opened)} <= {0, 1}
        found = [len(topic.partitions) for result in (await describing).results for topic in result.topics]
        assert found == [20, 20]

    storage.run_broker(life)


def test_directory_that_fails_while_it_is_described_reports_an_error(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=2)
        storage.disk.break_down("list", f"{storage.paths[0]}/t-0")  # where the log is opened
        answer = await log_dirs(broker)
        assert [result.error_code for result in answer.results] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
        assert [[topic.name for topic in result.topics] for result in answer.results] == [[], ["t"]]

    storage.run_broker(life)


def test_folder_without_partition_metadata_is_reported(
    storage: BrokerStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """An old Kafka did not write the file, and a power failure may lose it. The records must stay readable."""

    async def first(broker: Broker) -> None:
        await fill(broker, "t", 1)

    async def second(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    storage.run_broker(first)
    (path,) = Path(storage.paths[0], "t-0").glob("partition.metadata")
    text = path.read_text()
    for damage in ("version: 0\ntopic", "", None):
        path.unlink() if damage is None else path.write_text(damage)
        caplog.clear()
        with caplog.at_level(logging.INFO, "oncelog.broker"):
            storage.run_broker(second)
        assert path.read_text() == text
        assert f"{path.parent} has no topic id. Using it for topic t, id {text.split()[-1]}" in caplog.text
