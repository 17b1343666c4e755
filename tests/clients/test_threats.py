"""What the page of threats says about attackers who have more than a connection, and about what is not protected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.cluster import acl_nodes
from oncelog.cluster.acls import Acl
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.net.sasl import Scram
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from support.attacker import ASK, Attacker, choose, codes, plain, say
from support.locked_servers import Locked, LockedOncelog
from support.permissions import Grant, grant, revoke
from support.secured_kafka import GUEST, GUEST_PASSWORD, PASSWORD, USER
from support.secured_oncelog import add_scram_user
from support.wire import Wire, batch, until

BOB = f"User:{GUEST}"
READ = AclOperation.READ


@pytest.fixture
def administrator(locked: Locked) -> Iterator[Wire]:
    with Wire(locked.addresses["PLAINTEXT"]) as made:
        yield made


def scram_login(attacker: Attacker, user: str, password: str) -> int | None:
    """Log in with SCRAM-SHA-256. Return the error code."""
    client = Scram("SCRAM-SHA-256", user, password, "clients-nonce")
    _, challenge = attacker.call(choose("SCRAM-SHA-256"), say(client.first()))
    if challenge.error_code:  # Kafka rejects an unknown user here, and so shows that the user does not exist
        return int(challenge.error_code)
    final = client.answer(bytes(challenge.auth_bytes))
    assert final is not None
    [code] = codes(attacker.call(say(final)))
    return code


def test_open_connection_of_a_deleted_user_continues(locked: Locked, administrator: Wire, name: str) -> None:
    add_scram_user(locked.addresses["PLAINTEXT"], name, "pw-of-a-leaver")
    with Attacker(locked.addresses["OPEN"]) as before, Attacker(locked.addresses["OPEN"]) as after:
        assert scram_login(before, name, "pw-of-a-leaver") == ErrorCode.NONE
        for mechanism in (1, 2):
            gone = ScramCredentialDeletion(name=name, mechanism=mechanism)
            [result] = administrator.call(AlterUserScramCredentialsRequest(deletions=[gone])).results
            assert not result.error_code, result
        rejected = scram_login(after, name, "pw-of-a-leaver")
        assert rejected == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert before.call(ASK)[0] is not None


def test_acl_on_all_topics_includes_the_internal_ones(locked: Locked, administrator: Wire, name: str) -> None:
    administrator.create_topic(name)
    administrator.find_coordinator(name, 0)
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    commit = OffsetCommitRequest(group_id=name, topics=[OffsetCommitRequestTopic(name=name, partitions=[offset])])
    until(
        lambda: administrator.call(commit, 8).topics[0].partitions[0].error_code,
        lambda code: not code,
        "the offset is committed",
    )
    allowed = [Grant(READ, AclResource.TOPIC, "*", principal=BOB, host="*")]
    with Wire(locked.addresses["OPEN"], login=(GUEST, GUEST_PASSWORD)) as wire:
        [topic] = administrator.call(
            MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")]), 12
        ).topics
        assert wire.fetch(topic.topic_id).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        grant(administrator, allowed)
        found = until(lambda: wire.fetch(topic.topic_id), lambda answer: not answer.error_code, "bob may read")
        assert name.encode() in bytes(found.records)
        revoke(administrator, allowed)


class OwnLocked(LockedOncelog):
    """A broker whose files the tests may use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "certificates")

    @property
    def data(self) -> Path:
        found = re.search(r"^oncelog: the data is in (.*?)(?:;.*)?$", self.broker.log(), re.MULTILINE)
        assert found is not None
        return Path(found.group(1))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLocked]:
    made = OwnLocked(tmp_path_factory.mktemp("own"))
    yield made
    made.stop()


def test_who_writes_to_the_metadata_file_grants_permissions(own: OwnLocked, name: str) -> None:
    with Wire(own.addresses["PLAINTEXT"]) as administrator:
        topic_id = administrator.create_topic(name)
    with Wire(own.addresses["OPEN"], login=(GUEST, GUEST_PASSWORD)) as wire:
        assert wire.fetch(topic_id).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        [file] = own.data.rglob("metadata.sqlite")
        store = SqliteStore(str(file))
        try:
            acl = Acl(AclResource.TOPIC, name, PatternType.LITERAL, BOB, "*", READ, AclPermission.ALLOW)
            acl_nodes.create(ChangeLog(store), {acl_nodes.node_name(acl): acl})
        finally:
            store.close()
        until(lambda: wire.fetch(topic_id).error_code, lambda code: not code, "bob may read")


def test_records_are_readable_in_the_files(own: OwnLocked, name: str) -> None:
    with Wire(own.addresses["PLAINTEXT"]) as administrator:
        administrator.create_topic(name)
        assert not administrator.produce(name, batch([b"a-record-in-plain-text"])).error_code
    assert any(b"a-record-in-plain-text" in file.read_bytes() for file in own.data.rglob(f"{name}-0/*.log"))


FORGED = "x\n2026-01-01 00:00:00,000 INFO oncelog.broker: forged\r\x1b[2Jend"


def test_names_of_clients_forge_no_log_lines(own: OwnLocked) -> None:
    before = len(own.broker.log())
    with Attacker(own.addresses["OPEN"]) as attacker:
        attacker.call(choose(FORGED))
    for call in (plain(FORGED, "x"), plain(USER, PASSWORD, FORGED), say(f"n,,n={FORGED},r=abc")):
        with Attacker(own.addresses["OPEN"]) as attacker:
            attacker.call(choose("SCRAM-SHA-256" if b"n,," in call[0].encode(2) else "PLAIN"), call)
    with Wire(own.addresses["OPEN"], FORGED, login=(GUEST, GUEST_PASSWORD)) as wire:
        wire.call(DescribeGroupsRequest(groups=[FORGED]))
        wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=FORGED)], allow_auto_topic_creation=True), 12)
    until(lambda: own.broker.log()[before:], lambda log: "denied DESCRIBE on GROUP" in log, "the denial is logged")
    lines = own.broker.log()[before:]
    assert "forged" in lines
    assert "\x1b" not in lines
    assert "\r" not in lines
    assert not re.search(r"^2026-01-01", lines, re.MULTILINE)
