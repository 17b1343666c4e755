"""Kafka's administration tools, in all their modes, against either server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.protocol.kinds import AclOperation, AclResource
from support.apache_kafka import run_tool
from support.clients.base import Outgoing
from support.clients.confluent import ConfluentClient
from support.permissions import Grant, GuardedServer, grant
from support.secured_oncelog import SecuredOncelog
from support.servers import Server
from support.wire import until

TOOLS = "org.apache.kafka.tools"


def tool(server: Server, name: str, *arguments: str | Path) -> str:
    return run_tool(f"{TOOLS}.{name}", "--bootstrap-server", server.bootstrap, *arguments)


def group_tool(server: Server, *arguments: str | Path) -> str:
    return tool(server, "consumer.group.ConsumerGroupCommand", *arguments)


def rows(table: str) -> list[dict[str, str]]:
    """Return a table of the group tool: one line of titles, then rows."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :] if len(line) > 1]


def filled(server: Server, name: str, partitions: int = 1, each: int = 10) -> ConfluentClient:
    """Create a topic with `each` records per partition."""
    client = ConfluentClient(server.bootstrap)
    client.create_topic(name, partitions)
    client.send(name, [Outgoing(b"%d" % i, partition=i % partitions) for i in range(each * partitions)])
    return client


def test_alter_topic(server: Server, name: str) -> None:
    tool(server, "TopicCommand", "--create", "--topic", name, "--partitions", "2")
    tool(server, "TopicCommand", "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in tool(server, "TopicCommand", "--describe", "--topic", name)


def test_delete_records(server: Server, name: str, tmp_path: Path) -> None:
    filled(server, name)
    wanted = {"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 4}]}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    said = tool(server, "DeleteRecordsCommand", "--offset-json-file", tmp_path / "offsets.json")
    assert re.search(rf"partition: {name}-0\s+low_watermark: 4", said)
    assert tool(server, "GetOffsetShell", "--topic", name, "--time", "-2").split() == [f"{name}:0:4"]


def test_get_offset_shell(server: Server, name: str) -> None:
    filled(server, name, 2)
    for time, offset in (("-1", 10), ("-2", 0)):
        shown = tool(server, "GetOffsetShell", "--topic", name, "--time", time)
        assert sorted(shown.split()) == [f"{name}:0:{offset}", f"{name}:1:{offset}"]


def test_features(server: Server) -> None:
    described = tool(server, "FeatureCommand", "describe")
    assert re.search(r"Feature: transaction.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s", described)
    assert re.search(r"transaction.version.*FinalizedVersionLevel: 2\s", described)
    assert re.search(r"group.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1\s.*VersionLevel: 1\s", described)


def test_log_dirs(server: Server, name: str) -> None:
    filled(server, name)
    shown = tool(server, "LogDirsCommand", "--describe", "--topic-list", name)
    (directory,) = json.loads(shown.splitlines()[-1])["brokers"][0]["logDirs"]
    (found,) = directory["partitions"]
    assert (found["partition"], found["offsetLag"], found["isFuture"]) == (f"{name}-0", 0, False)
    assert found["size"] > 100


def test_client_compatibility(server: Server, name: str) -> None:
    """What a Java client may expect from a broker of this version. Support for ACLs needs no authorizer."""
    tool(server, "TopicCommand", "--create", "--topic", name)
    supported = {
        "offsets-for-times-supported": True,
        "cluster-id-supported": True,
        "create-topics-supported": True,
        "describe-configs-supported": True,
        "idempotent-producer-supported": True,
        "expect-record-too-large-exception": False,
        "describe-acls-supported": True,
    }
    answers = [word for feature, there in supported.items() for word in (f"--{feature}", str(there))]
    run_tool(
        f"{TOOLS}.ClientCompatibilityTest", "--bootstrap-server", server.bootstrap, "--topic", name,
        "--num-cluster-nodes", "1", *answers,
    )  # fmt: skip


def test_acls_are_disabled(server: Server) -> None:
    """Kafka's tool then ends with status 1."""
    with pytest.raises(AssertionError, match="SecurityDisabledException: No Authorizer is configured on the broker"):
        tool(server, "AclCommand", "--list")


def configure(server: Server, *arguments: str) -> str:
    shown = run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", server.bootstrap, *arguments)
    assert "Exception" not in shown, shown
    return shown


def shows(server: Server, entity: tuple[str, ...], *expected: str) -> None:
    """Wait until the tool shows exactly these values. Kafka's brokers follow their controller a moment later."""
    shown = until(
        lambda: configure(server, "--describe", *entity),
        lambda text: all(each in text for each in expected) and ("=" in text) == bool(expected),
        f"{expected}",
    )
    assert shown.count("=") == sum(each.count("=") for each in expected), shown


@pytest.mark.parametrize(
    ("entity", "quotas"),
    [
        (("users", "alice"), ("producer_byte_rate=1.0E9", "consumer_byte_rate=2.0E9", "request_percentage=99.5")),
        (("users", ""), ("controller_mutation_rate=1000.5",)),
        (("users", "alice", "clients", "loader"), ("producer_byte_rate=1.0E9",)),
        (("clients", "loader"), ("consumer_byte_rate=1.0E9",)),
        (("users", "", "clients", ""), ("producer_byte_rate=1.0E9",)),
        (("ips", "127.0.0.9"), ("connection_creation_rate=1000000.0",)),
    ],
    ids=str,
)
def test_quotas(server: Server, entity: tuple[str, ...], quotas: tuple[str, ...]) -> None:
    chosen: tuple[str, ...] = ()
    for kind, name in zip(entity[::2], entity[1::2], strict=True):
        chosen += ("--entity-type", kind, *(("--entity-name", name) if name else ("--entity-default",)))
    assert "Completed updating" in configure(server, "--alter", *chosen, "--add-config", ",".join(quotas))
    shows(server, chosen, *quotas)
    names = [each.partition("=")[0] for each in quotas]
    assert "Completed updating" in configure(server, "--alter", *chosen, "--delete-config", ",".join(names))
    shows(server, chosen)


def test_settings_of_a_group(server: Server, name: str) -> None:
    group = ("--entity-type", "groups", "--entity-name", name)
    configure(
        server, "--alter", *group, "--add-config",
        "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=7000",
    )  # fmt: skip
    session = "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:consumer.session."
    until(lambda: configure(server, "--describe", *group), lambda text: session in text, "the session timeout")
    assert f"Dynamic configs for group {name} are:" in configure(server, "--describe", "--entity-type", "groups")
    configure(
        server, "--alter", *group, "--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms"
    )
    until(lambda: configure(server, "--describe", *group), lambda text: "=" not in text, "no settings")
    with pytest.raises(
        AssertionError, match=r"must be greater than or equal to group\.consumer\.min\.session\.timeout\.ms"
    ):
        configure(server, "--alter", *group, "--add-config", "consumer.session.timeout.ms=1")


def test_quotas_and_credentials_of_a_user(server: Server) -> None:
    alice = ("--entity-type", "users", "--entity-name", "alice")
    configure(server, "--alter", *alice, "--add-config", "SCRAM-SHA-256=[password=secret]")
    configure(server, "--alter", *alice, "--add-config", "producer_byte_rate=1000000000")
    text = until(
        lambda: configure(server, "--describe", *alice),
        lambda text: "producer_byte_rate=1.0E9" in text and "SCRAM-SHA-256=iterations=" in text,
        "both",
    )
    assert "secret" not in text
    configure(server, "--alter", *alice, "--delete-config", "producer_byte_rate")
    until(
        lambda: configure(server, "--describe", *alice),
        lambda text: "producer" not in text and "SCRAM-SHA-256=iterations=" in text,
        "only the credentials",
    )
    configure(server, "--alter", *alice, "--delete-config", "SCRAM-SHA-256")
    shows(server, alice)


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "message"),
    [
        ("users", "alice", "producer_byte_rate=-1", "Quota producer_byte_rate must be greater than 0"),
        ("ips", "no-address.invalid", "connection_creation_rate=1", "must be a valid IP or resolvable host"),
    ],
)
def test_invalid_quotas(server: Server, kind: str, name: str, wrong: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        configure(server, "--alter", "--entity-type", kind, "--entity-name", name, "--add-config", wrong)


def test_leader_election(server: Server, name: str) -> None:
    tool(server, "TopicCommand", "--create", "--topic", name)
    shown = tool(server, "LeaderElectionCommand", "--election-type", "preferred", "--topic", name, "--partition", "0")
    assert f"Valid replica already elected for partitions {name}-0" in shown, shown


def test_reassignment_to_the_same_broker(server: Server, name: str, tmp_path: Path) -> None:
    tool(server, "TopicCommand", "--create", "--topic", name)
    plan = {"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [1], "log_dirs": ["any"]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    reassign = ["--reassignment-json-file", tmp_path / "plan.json"]
    assert "Successfully started" in tool(server, "reassign.ReassignPartitionsCommand", *reassign, "--execute")
    assert "is completed" in tool(server, "reassign.ReassignPartitionsCommand", *reassign, "--verify")
    assert "No partition reassignments found" in tool(server, "reassign.ReassignPartitionsCommand", "--list")


@pytest.mark.parametrize("mode", [[], ["--group-mode", "--use-group-metadata"]], ids=["assign", "group"])
def test_transactional_message_copier(server: Server, name: str, mode: list[str]) -> None:
    """Kafka's own system test of read-process-write, with random aborts."""
    client = filled(server, name, each=2000)
    client.create_topic(f"{name}-out", 1)
    run_tool(
        f"{TOOLS}.TransactionalMessageCopier", "--broker-list", server.bootstrap, "--input-topic", name,
        "--input-partition", "0", "--output-topic", f"{name}-out", "--max-messages", "2000",
        "--consumer-group", f"{name}-group", "--transaction-size", "150", "--transactional-id", f"{name}-id",
        "--enable-random-aborts", *mode,
    )  # fmt: skip
    assert [record.value for record in client.read(f"{name}-out", committed=True)] == [b"%d" % i for i in range(2000)]


def test_groups_of_one_member(server: Server, name: str) -> None:
    group = f"{name}-group"
    client = filled(server, name, 2)
    with client.member(group, name) as member:
        member.take(20)
        member.commit()
        (state,) = rows(group_tool(server, "--describe", "--group", group, "--state"))
        assert "Stable" in state.values()
        members = group_tool(server, "--describe", "--group", group, "--members", "--verbose")
        assert len(rows(members)) == 1
        assert re.search(rf"{name}[(:]0,1", members), members
        assert re.search(rf"{group}\s+(\w+\s+)*Stable", group_tool(server, "--list", "--state"))
    assert group not in group_tool(server, "--list", "--state", "stable").split()
    assert group in group_tool(server, "--list", "--state", "empty").split()


def test_groups_reset_their_offsets(server: Server, name: str, tmp_path: Path) -> None:
    group = f"{name}-group"
    client = filled(server, name, 2)
    with client.member(group, name) as member:
        member.take(20)
        member.commit()

    def reset(*how: str | Path) -> list[int]:
        group_tool(server, "--reset-offsets", "--group", group, "--topic", name, "--execute", *how)
        return client.committed_offsets(group, name, 2)

    assert reset("--to-earliest") == [0, 0]
    assert reset("--to-latest") == [10, 10]
    assert reset("--shift-by", "-3") == [7, 7]
    assert reset("--to-datetime", "2001-01-01T00:00:00.000") == [0, 0]
    assert reset("--to-offset", "4") == [4, 4]
    exported = group_tool(
        server, "--reset-offsets", "--group", group, "--topic", name, "--to-offset", "6", "--dry-run", "--export"
    )
    assert client.committed_offsets(group, name, 2) == [4, 4]
    (tmp_path / "plan.csv").write_text("".join(f"{line}\n" for line in exported.splitlines() if f"{name}" in line))
    group_tool(server, "--reset-offsets", "--group", group, "--from-file", tmp_path / "plan.csv", "--execute")
    assert client.committed_offsets(group, name, 2) == [6, 6]


def test_groups_are_deleted(server: Server, name: str) -> None:
    group = f"{name}-group"
    client = filled(server, name, 2)
    with client.member(group, name) as member:
        member.take(20)
        member.commit()
        refused = group_tool(server, "--delete", "--group", group)
        assert "GroupNotEmptyException" in refused
    assert "successful" in group_tool(server, "--delete-offsets", "--group", group, "--topic", f"{name}:1").lower()
    left = rows(group_tool(server, "--describe", "--group", group))
    assert [(row["PARTITION"], row["CURRENT-OFFSET"]) for row in left] == [("0", "10")]
    assert "successful" in group_tool(server, "--delete", "--group", group)
    assert group not in group_tool(server, "--list").split()


def test_log_compaction_tester(start_server: Callable[..., Server]) -> None:
    """Kafka's own test of its cleaner: reading returns the last value of each key."""
    server = start_server(
        {
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.dedupe.buffer.size": "20000000",
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.segment.bytes": "1048576",
        }
    )
    shown = run_tool(
        f"{TOOLS}.LogCompactionTester", "--bootstrap-server", server.bootstrap, "--messages", "20000",
        "--percent-deletes", "10", "--sleep", "5",
    )  # fmt: skip
    assert "Data verification is completed" in shown, shown


def test_terminate_a_transaction(server: Server, name: str) -> None:
    """An operator ends a transaction that a vanished producer left open."""
    client = filled(server, name)
    producer = client.transactions(f"{name}-id")
    producer.begin()
    producer.send(name, [Outgoing(b"left open")])
    client.send(name, [Outgoing(b"after")])
    listed = tool(server, "TransactionsCommand", "list", "--duration-filter", "0")
    assert f"{name}-id" in listed
    tool(server, "TransactionsCommand", "forceTerminateTransaction", "--transactionalId", f"{name}-id")
    assert [record.value for record in client.read(name, committed=True)][-1] == b"after"
    producer.close()


def test_find_hanging_transactions(server: Server, name: str) -> None:
    """An open transaction that is not overdue does not hang."""
    client = filled(server, name)
    producer = client.transactions(f"{name}-id")
    producer.begin()
    producer.send(name, [Outgoing(b"open")])
    found = tool(server, "TransactionsCommand", "find-hanging", "--topic", name, "--partition", "0")
    assert f"{name}\t" not in found
    producer.abort()
    producer.close()


def test_acls(guarded: GuardedServer) -> None:
    """Add, list and remove ACLs, also those of a producer in one command."""
    with guarded.administrator() as administrator:
        grant(administrator, [Grant(AclOperation.ALTER, AclResource.CLUSTER)])

    def acls(*arguments: str) -> str:
        return run_tool(f"{TOOLS}.AclCommand", "--bootstrap-server", guarded.bootstrap, *arguments)

    acls("--add", "--allow-principal", "User:carol", "--producer", "--topic", "orders", "--transactional-id", "x")
    prefixed = ("--topic", "ord", "--resource-pattern-type", "prefixed")
    acls("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.7", "--operation", "Read", *prefixed)
    of_carol = acls("--list", "--topic", "orders", "--resource-pattern-type", "match", "--principal", "User:carol")
    operations = re.findall(r"User:carol, host=\*, operation=(\w+), permissionType=ALLOW", of_carol)
    assert sorted(operations) == ["CREATE", "DESCRIBE", "WRITE"]
    of_all = acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "(principal=User:bob, host=10.0.0.7, operation=READ, permissionType=DENY)" in of_all
    acls("--remove", "--force", *prefixed)
    assert "User:bob" not in acls("--list")


def test_certificate_of_a_listener(tmp_path: Path) -> None:
    """`kafka-configs` changes it while our broker runs, and shows a bad one as an error."""
    secured = SecuredOncelog(tmp_path / "secured")
    try:
        key = "listener.name.tls.ssl.keystore.location"
        new = tmp_path / "new.pem"
        new.write_bytes(secured.certificates.broker.read_bytes())
        broker = (
            "--bootstrap-server",
            secured.addresses["PLAINTEXT"],
            "--entity-type",
            "brokers",
            "--entity-name",
            "1",
        )
        run_tool("kafka.admin.ConfigCommand", *broker, "--alter", "--add-config", f"{key}={new}")
        shown = run_tool("kafka.admin.ConfigCommand", *broker, "--describe")
        assert f"{key}={new} sensitive=false" in shown, shown
        with pytest.raises(AssertionError, match="No such file"):
            run_tool("kafka.admin.ConfigCommand", *broker, "--alter", "--add-config", f"{key}={tmp_path}/none.pem")
        run_tool("kafka.admin.ConfigCommand", *broker, "--alter", "--delete-config", key)
        assert key not in run_tool("kafka.admin.ConfigCommand", *broker, "--describe")
    finally:
        secured.stop()


def test_metadata_quorum(server: Server) -> None:
    """oncelog's metadata are not in a Raft log: the controller is the only voter."""
    status = tool(server, "MetadataQuorumCommand", "describe", "--status")
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in status.splitlines())}
    leader = found["LeaderId"]
    assert int(found["LeaderEpoch"]) > 0
    assert int(found["HighWatermark"]) > 0
    assert json.loads(found["CurrentVoters"])[0]["id"] == int(leader)
    replication = tool(server, "MetadataQuorumCommand", "describe", "--replication").splitlines()
    assert [line.split()[-1] for line in replication if line.startswith(leader)] == ["Leader"]
