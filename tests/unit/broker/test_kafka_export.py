"""Export of a broker's metadata and settings to Apache Kafka, also if the export is killed."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.metadata.export_kafka import export
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.cluster import delegation_tokens, kafka_metadata
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.delegation_tokens import DelegationToken
from oncelog.cluster.image_nodes import prepare
from oncelog.cluster.kafka_metadata import BOOTSTRAP, FOLDER, KafkaMetadata
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.quotas import CONNECTIONS, CONSUMER, DEFAULT, PRODUCER, QuotaEntity
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.cluster.users import update_user
from oncelog.log.disk import Buffer, OsDisk
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    PartitionRecord,
    QuotaEntityRecordPart,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from support.broker_fixtures import NOW, live
from support.kafka_folders import A, directory_at, metadata_log, new_tree


def read_bootstrap(data: Path) -> KafkaMetadata:
    """Return the records of the exported file, as Kafka reads them."""
    folder = data.with_name(f"{data.name}-read")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(data / BOOTSTRAP, folder / f"{0:020d}.log")
    return kafka_metadata.read(OsDisk(), str(folder))


def partition(topic_id: UUID, index: int, replicas: tuple[int, ...] = (1,)) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index, topic_id=topic_id, replicas=list(replicas), isr=list(replicas), leader=1, leader_epoch=4
    )


CHANGES = (TopicRecord(name="a", topic_id=A), partition(A, 0))


class KilledError(Exception):
    """The process ends here."""


class MortalDisk(OsDisk):
    """Die before the `life`-th change, or during it."""

    def __init__(self, life: int, *, midway: bool) -> None:
        super().__init__()
        self.life = life
        self.midway = midway

    def _step(self) -> None:
        self.life -= 1
        if self.life < 0:
            raise KilledError

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        if self.midway and self.life == 0:
            Path(f"{path}.tmp").write_bytes(bytes(data)[: len(data) // 2])
        self._step()
        super().atomic_write(path, data, sync=sync)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def sync(self, path: str) -> None:
        self._step()
        super().sync(path)


def test_exported_metadata_can_be_read_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = new_tree()
    ids: list[UUID] = []

    async def life(broker: Broker) -> None:
        configs = {"retention.ms": "77"}
        ids.append((await broker.topics.create("t", partitions=3, configs=configs)).topic_id)
        while not broker.producer_ids.ids.remaining:
            await asyncio.sleep(0.005)

    live(data, store, life)
    done = export(store, [directory_at(data)], NOW)
    assert (done.path, done.topics, done.set_aside) == (str(data / BOOTSTRAP), 1, ())
    found = read_bootstrap(data)
    assert list(found.topics.values()) == [
        TopicInfo("t", ids[0], tuple(PartitionInfo((1,), PartitionState(1, 1, (1,))) for _ in range(3)))
    ]
    assert found.configs == {(2, "t"): {"retention.ms": "77"}}
    assert found.next_producer_id == 1000
    assert found.features["metadata.version"] == kafka_metadata.METADATA_VERSION
    assert found.features["transaction.version"] == 2
    assert found.features["group.version"] == 1
    foreign = DataDirectory(OsDisk(), str(data), 9, logging.getLogger(), lambda _directory, _error: None)
    with pytest.raises(ProtocolError, match=r"node\.id"):
        export(store, [foreign], NOW)


def test_export_does_not_overwrite_a_kafka_that_has_run(tmp_path: Path) -> None:
    data, store = tmp_path / "data", new_tree()
    live(data, store)
    export(store, [directory_at(data)], NOW)
    before = (data / BOOTSTRAP).read_bytes()
    text = (data / "meta.properties").read_text()
    metadata_log(data, *CHANGES)
    (data / "meta.properties").write_text(text)
    with pytest.raises(ProtocolError, match="Apache Kafka has run on"):
        export(store, [directory_at(data)], NOW + 1)
    assert (data / FOLDER).exists()
    assert (data / BOOTSTRAP).read_bytes() == before


def test_settings_of_brokers_and_groups_are_imported_and_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, store = tmp_path / "data", new_tree()

    def setting(kind: int, resource: str, name: str, value: str) -> ConfigRecord:
        return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)

    of_group = {"consumer.session.timeout.ms": "50000", "share.session.timeout.ms": "50000"}
    metadata_log(
        data,
        setting(4, "", "log.retention.ms", "77000"),
        setting(4, "", "ssl.cipher.suites", "x"),  # without use here
        setting(4, "1", "max.connections", "99"),
        setting(4, "7", "max.connections", "3"),
        *(setting(32, "g", name, value) for name, value in of_group.items()),
        setting(16, "all", "metrics", "*"),
    )

    async def life(broker: Broker) -> None:
        assert (broker.config.current.log_retention_ms, broker.config.current.max_connections) == (
            77000,
            99,
        )
        assert broker.metadata.image.group_configs == {"g": of_group}

        def smaller(before: Mapping[str, str]) -> dict[str, str]:
            return {**before, "max.connections": "98"}

        await broker.settings.alter_broker(1, smaller, validate_only=False)

    live(data, store, life)
    refusals = [each.getMessage() for each in caplog.records if "not importing" in each.getMessage()]
    assert refusals == [
        "not importing these settings of broker 7: max.connections",
        "not importing these settings of client metrics all: metrics",
    ]
    assert export(store, [directory_at(data)], NOW).settings == 3
    assert read_bootstrap(data).configs == {
        (4, ""): {"log.retention.ms": "77000", "ssl.cipher.suites": "x"},
        (4, "1"): {"max.connections": "98"},
        (32, "g"): of_group,
    }


def test_acls_are_imported_and_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def created(number: int, name: str) -> AccessControlEntryRecord:
        return AccessControlEntryRecord(
            id=UUID(int=number),
            resource_type=2,
            resource_name=name,
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )

    data, store = tmp_path / "data", new_tree()
    gone = RemoveAccessControlEntryRecord(id=UUID(int=2))
    metadata_log(data, created(1, "kept"), created(2, "gone"), gone, created(3, "other"))

    async def life(broker: Broker) -> None:
        assert {acl.name for acl in broker.metadata.image.acls} == {"kept", "other"}

    live(data, store, life)
    warned = "imported 2 ACLs, which have no effect without authorizer.class.name: all clients have all permissions"
    assert warned in [record.getMessage() for record in caplog.records]
    assert export(store, [directory_at(data)], NOW).acls == 2
    found = read_bootstrap(data).acls
    assert {acl.name for acl in found.values()} == {"kept", "other"}
    assert UUID(int=0) not in found


def test_quotas_are_imported_and_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def changed(key: str, value: float, *parts: tuple[str, str | None], remove: bool = False) -> ClientQuotaRecord:
        entity = [QuotaEntityRecordPart(entity_type=kind, entity_name=name) for kind, name in parts]
        return ClientQuotaRecord(entity=entity, key=key, value=value, remove=remove)

    data, store = tmp_path / "data", new_tree()
    both = ("user", "alice"), ("client-id", None)
    metadata_log(
        data,
        changed(PRODUCER, 5.0, *both),
        changed(CONSUMER, 6.0, *both),
        changed(PRODUCER, 7.0, *reversed(both)),
        changed(CONSUMER, 0.0, *both, remove=True),
        changed(CONNECTIONS, 8.0, ("ip", "127.0.0.1")),
        changed(CONNECTIONS, 9.0, ("ip", "localhost")),
        changed("of the future", 1.0, ("user", None)),
    )
    quotas = {QuotaEntity("alice", DEFAULT): {PRODUCER: 7.0}, QuotaEntity(ip="127.0.0.1"): {CONNECTIONS: 8.0}}

    async def life(broker: Broker) -> None:
        assert broker.metadata.image.quotas.by_entity == quotas

    live(data, store, life)
    assert [record.getMessage() for record in caplog.records if "not importing" in record.getMessage()] == [
        "not importing the quotas of ip 'localhost': localhost is not a valid IP or resolvable host.",
        "not importing the quotas of user 'default': Invalid configuration key of the future",
    ]
    export(store, [directory_at(data)], NOW)
    assert read_bootstrap(data).quotas == {
        frozenset(both): {PRODUCER: 7.0},
        frozenset({("ip", "127.0.0.1")}): {CONNECTIONS: 8.0},
    }


def test_scram_users_and_tokens_are_imported_and_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def user(name: str, mechanism: int = 1, iterations: int = 4096) -> UserScramCredentialRecord:
        return UserScramCredentialRecord(
            name=name, mechanism=mechanism, salt=b"s", stored_key=b"hunter2", server_key=b"k", iterations=iterations
        )

    def token(token_id: str, owner: str = "User:alice", expires: int = NOW + 1) -> DelegationTokenRecord:
        return DelegationTokenRecord(
            owner=owner,
            requester="User:\u00e4, b",
            renewers=["User:carol"],
            issue_timestamp=1,
            max_timestamp=2**63 - 1,
            expiration_timestamp=expires,
            token_id=token_id,
        )

    data, store = tmp_path / "data", new_tree()
    kept = [user("alice"), user("alice", 2), user("b/c ="), user("later", iterations=5000)]
    metadata_log(
        data,
        *kept[:3],
        user("later"),
        user("gone"),
        RemoveUserScramCredentialRecord(name="gone", mechanism=1),
        user("future", 9),
        kept[3],
        token("kept"),
        token("removed"),
        RemoveDelegationTokenRecord(token_id="removed"),
        token("kept", expires=NOW + 5),
        token("of-a-group", "Group:staff"),
        token("../strange"),
    )

    async def life(broker: Broker) -> None:
        image = broker.metadata.image
        assert {name: sorted(found) for name, found in image.user_configs.items()} == {
            "alice": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "b/c =": ["SCRAM-SHA-256"], "later": ["SCRAM-SHA-256"],
        }  # fmt: skip
        [found] = image.tokens.values()
        assert found == DelegationToken("kept", "User:alice", "User:\u00e4, b", ("User:carol",), 1, 2**63 - 1, NOW + 5)

    live(data, store, life)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if ("import" in line and "SCRAM" in line) or "token" in line] == [
        "not importing a credential of SCRAM user 'future': its mechanism is number 9",
        "not importing the delegation token 'of-a-group': it has a principal that is not a user",
        "not importing the delegation token '../strange': its id has other characters than Kafka's",
        "imported 1 delegation tokens, with which nobody can log in without the delegation.token.secret.key that Kafka "
        "has",
    ]
    assert "hunter2" not in caplog.text + repr(kept)
    update_user(ChangeLog(store), "damaged", {"SCRAM-SHA-256": "damaged"})
    done = export(store, [directory_at(data)], NOW)
    assert (done.users, done.tokens) == (4, 1)
    assert "the credential of user 'damaged' for SCRAM-SHA-256 is damaged" in caplog.text
    found = read_bootstrap(data)
    assert sorted(found.credentials.values(), key=lambda each: (each.name, each.mechanism)) == kept
    assert [(each.token_id, each.expires_ms, each.renewers) for each in found.tokens.values()] == [
        ("kept", NOW + 5, ("User:carol",))
    ]


def test_users_and_tokens_of_an_interrupted_import_are_replaced(tmp_path: Path) -> None:
    data, store = tmp_path / "data", new_tree()
    prepare(store)
    log = ChangeLog(store)
    update_user(log, "stale", {"SCRAM-SHA-256": "x", "SCRAM-SHA-512": "y"})
    delegation_tokens.create(log, DelegationToken("stale", "User:a", "User:a", (), 1, 2, 3))
    metadata_log(data, *CHANGES)

    async def life(broker: Broker) -> None:
        assert (broker.metadata.image.user_configs, broker.metadata.image.tokens) == ({}, {})

    live(data, store, life)


@pytest.mark.parametrize("midway", [False, True])
def test_killed_export_can_be_repeated(tmp_path: Path, *, midway: bool) -> None:
    """At any point, Kafka has the old metadata log or all of the new one, and oncelog can still start."""
    data, store = tmp_path / "data", new_tree()
    metadata_log(data, *CHANGES)

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=2)

    live(data, store, life)
    original = sorted(path.read_bytes() for path in (data / FOLDER).iterdir())
    deaths = 0
    while True:
        shutil.rmtree(copy := tmp_path / "copy", ignore_errors=True)
        shutil.copytree(data, copy)
        try:
            export(store, [directory_at(copy, MortalDisk(deaths, midway=midway))], NOW)
            break
        except KilledError:
            deaths += 1
        if not (copy / FOLDER).exists():
            assert {topic.name for topic in read_bootstrap(copy).topics.values()} == {"a", "t"}
        live(copy, store)
        export(store, [directory_at(copy)], NOW + 1)
        assert {topic.name for topic in read_bootstrap(copy).topics.values()} == {"a", "t"}
        (aside,) = copy.glob("__cluster*")
        assert sorted(path.read_bytes() for path in aside.iterdir()) == original
        live(copy, store)
    assert deaths >= 4, "written, synced, renamed, synced"
