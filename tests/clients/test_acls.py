"""Create, list and delete ACLs: our Admin, the command line, and confluent-kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import admin as confluent

from oncelog import Admin, Producer, aio, errors
from oncelog.client.admin.acls import AclBinding, AclBindingFilter
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclResource
from support.command_line import Tool
from support.permissions import Grant, GuardedServer, grant
from support.servers import Server

READ = AclBinding("topic", "orders", "User:alice", "read")
PREFIX = AclBinding("topic", "ord", "User:alice", "write", "prefixed", "10.0.0.7", "deny")
ALL = AclBinding("topic", "*", "User:*", "all")
OF_GROUP = AclBinding("group", "g", "User:bob", "describe")
OTHER = AclBinding("transactional_id", "orders", "User:bob", "two_phase_commit")
EVERY = sorted([READ, PREFIX, ALL, OF_GROUP, OTHER])


@pytest.fixture(scope="module")
def administered(guarded: GuardedServer) -> str:
    """Let the client alter the cluster, so that it may change ACLs. Return the server's address."""
    with guarded.administrator() as administrator:
        grant(administrator, [Grant(AclOperation.ALTER, AclResource.CLUSTER)])
    return guarded.bootstrap


@pytest.fixture
def admin(administered: str) -> Iterator[Admin]:
    with Admin(administered) as made:
        yield made
        made.delete_acls([AclBindingFilter(acl.resource_type, acl.name, acl.principal) for acl in EVERY])


def own(acls: list[AclBinding]) -> list[AclBinding]:
    """Return the ACLs of this module's tests: the server has others."""
    return [acl for acl in acls if acl in EVERY]


def test_acls_are_created_listed_and_deleted(admin: Admin) -> None:
    admin.create_acls(READ)
    admin.create_acls(acl for acl in EVERY)
    assert own(admin.describe_acls()) == EVERY
    for chosen, found in (
        (AclBindingFilter("topic", "orders"), [READ]),
        (AclBindingFilter("topic", "orders", pattern_type="match"), [PREFIX, READ, ALL]),
        (AclBindingFilter("topic", "ord", pattern_type="prefixed"), [PREFIX]),
        (AclBindingFilter("topic", "ord", pattern_type="literal"), []),
        (AclBindingFilter(name="orders"), [READ, OTHER]),
        (AclBindingFilter(principal="User:bob"), [OF_GROUP, OTHER]),
        (AclBindingFilter("topic", principal="User:bob"), []),
        (AclBindingFilter(host="10.0.0.7"), [PREFIX]),
        (AclBindingFilter("topic", operation="write"), [PREFIX]),
        (AclBindingFilter("topic", permission_type="deny"), [PREFIX]),
    ):
        assert own(admin.describe_acls(chosen)) == sorted(found), chosen
    deleted = admin.delete_acls([AclBindingFilter(principal="User:bob"), AclBindingFilter("group", "g")])
    assert deleted == sorted([OF_GROUP, OTHER])
    assert admin.delete_acls(AclBindingFilter(principal="User:bob")) == []
    assert own(admin.describe_acls()) == sorted([READ, PREFIX, ALL])


def test_invalid_acls_are_rejected(admin: Admin) -> None:
    with pytest.raises(errors.RequestError, match=r"'alice|alice.*no colon is present") as refused:
        admin.create_acls([READ, READ._replace(principal="alice")])
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert own(admin.describe_acls()) == [READ], "the valid one is created"
    for wrong in (READ._replace(operation="any"), READ._replace(pattern_type="match"), READ._replace(operation="x")):
        with pytest.raises(errors.ConfigError, match="must be one of"):
            admin.create_acls(wrong)
    with pytest.raises(errors.ConfigError, match=r"resource_type must be one of .*'topics'"):
        admin.describe_acls(AclBindingFilter("topics"))
    admin.create_acls([])
    assert admin.delete_acls([]) == []


def test_asyncio_admin_has_the_same_calls(administered: str, admin: Admin) -> None:
    async def go() -> None:
        async with aio.Admin(administered) as other:
            await other.create_acls(READ)
            assert own(await other.describe_acls()) == [READ]
            assert await other.delete_acls(AclBindingFilter("topic", "orders")) == [READ]

    asyncio.run(go())


def test_other_libraries_see_the_same_acls(administered: str, admin: Admin) -> None:
    admin.create_acls(EVERY)
    other = confluent.AdminClient({"bootstrap.servers": administered})
    chosen = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC,
        "orders",
        confluent.ResourcePatternType.MATCH,
        "User:alice",
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    found = other.describe_acls(chosen).result(30)
    assert sorted(each.name for each in found) == ["ord", "orders"]
    assert len(other.delete_acls([chosen])[chosen].result(30)) == 2
    assert own(admin.describe_acls()) == sorted([ALL, OF_GROUP, OTHER])


def test_denied_producer_raises_a_sentence(administered: str, admin: Admin) -> None:
    with Producer(administered, enable_idempotence=False, acks="1") as producer, pytest.raises(errors.KafkaError) as no:
        producer.send("orders", b"v").result(30)
    assert no.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_server_without_an_authorizer_says_so(server: Server) -> None:
    with Admin(server.bootstrap) as admin:
        for ask in (
            lambda: admin.describe_acls(),
            lambda: admin.create_acls(READ),
            lambda: admin.delete_acls(AclBindingFilter()),
        ):
            with pytest.raises(errors.RequestError, match="No Authorizer is configured") as refused:
                ask()
            assert refused.value.code is ErrorCode.SECURITY_DISABLED


# -- the command line -------------------------------------------------------------------------------------------


def test_command_line(administered: str, admin: Admin) -> None:
    tool = Tool(administered)
    made = tool.json(
        *("acl", "add", "--topic", "orders", "--topic", "*", "--allow", "User:alice", "--deny", "User:bob"),
        *("--operation", "read", "--operation", "describe_configs", "--host", "10.0.0.7"),
    )
    assert len(made) == 8
    assert made[0] == {
        "resource_type": "topic",
        "pattern_type": "literal",
        "name": "orders",
        "principal": "User:alice",
        "host": "10.0.0.7",
        "operation": "read",
        "permission_type": "allow",
    }
    tool("acl", "add", "--group", "ord", "--prefixed", "--allow", "User:alice", "--operation", "all")
    assert len(tool.json("acl", "list", "--topic", "orders")) == 4
    assert len(tool.json("acl", "list", "--topic", "orders", "--match", "--principal", "User:bob")) == 4
    assert len(tool.json("acl", "list", "--principal", "User:alice", "--operation", "all")) == 1
    assert len(tool.json("acl", "list", "--principal", "User:bob", "--permission", "allow")) == 0
    text = tool("acl", "list", "--group", "orders", "--match", "--principal", "User:alice").splitlines()
    assert [line.split() for line in text] == [
        ["RESOURCE", "TYPE", "PATTERN", "TYPE", "NAME", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION", "TYPE"],
        ["group", "prefixed", "ord", "User:alice", "*", "all", "allow"],
    ]
    assert "this deletes 4 ACLs; add --yes" in tool.fails(2, "acl", "delete", "--topic", "orders")
    assert len(tool.json("acl", "delete", "--topic", "orders", "--yes")) == 4
    assert len(tool.json("acl", "delete", "--host", "10.0.0.7", "--yes")) == 4
    assert len(tool.json("acl", "delete", "--group", "ord", "--prefixed", "--yes")) == 1
    assert tool.json("acl", "delete", "--group", "ord", "--prefixed", "--yes") == []


def test_command_line_rejects_incomplete_commands(administered: str) -> None:
    tool = Tool(administered)
    add = ("acl", "add", "--operation", "read")
    assert "name a resource, such as --topic orders" in tool.fails(2, *add, "--allow", "User:a")
    assert "name a principal with --allow or --deny" in tool.fails(2, *add, "--topic", "t")
    assert "a principal is TYPE:NAME, such as User:alice, not 'alice'" in tool.fails(
        2, *add, "--topic", "t", "--allow", "alice"
    )
    assert "select ACLs, for example with --topic orders" in tool.fails(2, "acl", "delete", "--yes")
    assert "--match and --prefixed" in tool.fails(2, "acl", "list", "--topic", "t", "--match", "--prefixed")
    assert "name a resource" in tool.fails(2, "acl", "list", "--match")
    assert "Invalid empty resource name" in tool.fails(1, *add, "--topic", "", "--allow", "User:a")
