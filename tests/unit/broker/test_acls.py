"""A broker with ACLs: who may do what, from when on, and what it logs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.config.authorizers import STANDARD_AUTHORIZER
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.settings import load
from oncelog.broker.handlers import acls
from oncelog.broker.metadata import acls as administration
from oncelog.broker.requests.authorizer import MOST_REMEMBERED, StandardAuthorizer
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import ALLOW_EVERYTHING, CLUSTER
from oncelog.cluster import acl_nodes
from oncelog.cluster.acls import Acl
from oncelog.cluster.store import Create
from oncelog.net.server import BadFrameError
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest
from support.broker_fixtures import BrokerStorage

SECURED = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:CN=root,O=x; User:root"}
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC = AclResource.TOPIC


def context(broker: Broker, principal: str = "User:root", host: str = "10.0.0.1") -> RequestContext:
    session = Session(host, 1, 1)
    session.principal = principal
    return RequestContext(ApiKey.FETCH, 3, 1, "test", session, broker.services.authorizer)


def creation(name: str = "t", **fields: Any) -> AclCreation:
    given = {"principal": "User:a", "host": "*", "operation": READ, "permission_type": AclPermission.ALLOW}
    return AclCreation(resource_name=name, **{"resource_type": TOPIC, **given, **fields})


async def create(broker: Broker, *wanted: AclCreation, principal: str = "User:root") -> list[tuple[int, str | None]]:
    handle = acls.bind_create(broker.services)
    answer = await handle(CreateAclsRequest(creations=list(wanted)), context(broker, principal))
    return [(each.error_code, each.error_message) for each in answer.results]


def chosen(**fields: Any) -> dict[str, Any]:
    every = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    numbers = dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1)
    return {**every, **numbers, **fields}


async def delete(broker: Broker, *filters: dict[str, Any]) -> Any:
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**each) for each in filters])
    return (await acls.bind_delete(broker.services)(request, context(broker))).filter_results


async def described(broker: Broker, **fields: Any) -> list[tuple[str, str]]:
    """Return (name, principal) of each ACL that the filter selects."""
    request = DescribeAclsRequest(**chosen(**fields))
    answer = await acls.bind_describe(broker.services)(request, context(broker))
    assert not answer.error_code
    return sorted((found.resource_name, acl.principal) for found in answer.resources for acl in found.acls)


def test_change_takes_effect_on_open_connections(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        session = context(broker, "User:a")
        assert not session.may(READ, TOPIC, "t")
        assert await create(broker, creation()) == [(0, "")]
        assert session.may(READ, TOPIC, "t")
        assert session.may(DESCRIBE, TOPIC, "t"), "READ implies DESCRIBE"
        assert not session.may(WRITE, TOPIC, "t")
        deny = creation(permission_type=AclPermission.DENY, host="10.0.0.1")
        await create(broker, deny)
        assert not session.may(READ, TOPIC, "t"), "DENY comes before ALLOW"
        assert session.may(DESCRIBE, TOPIC, "t"), "a denied READ denies no DESCRIBE"
        assert context(broker, "User:a", "10.0.0.2").may(READ, TOPIC, "t")
        await delete(broker, chosen(permission_type=AclPermission.DENY))
        assert session.may(READ, TOPIC, "t")
        await delete(broker, chosen())
        assert not session.may(READ, TOPIC, "t")

    storage.run_broker(life, **SECURED)


def test_acls_survive_a_restart(storage: BrokerStorage) -> None:
    async def first(broker: Broker) -> None:
        await create(broker, creation("a/b"), creation("p", resource_pattern_type=PatternType.PREFIXED))

    async def second(broker: Broker) -> None:
        assert await described(broker) == [("a/b", "User:a"), ("p", "User:a")]
        assert context(broker, "User:a").may(READ, TOPIC, "pre")

    storage.run_broker(first, **SECURED)
    storage.run_broker(second, **SECURED)


def damage(broker: Broker, name: str = "damaged") -> None:
    """Write a node of an ACL that cannot be read, and log the change."""
    path = f"{acl_nodes.ACLS}/{name}"
    broker.loader._log.write([Create(path, b"{")], path)


def test_only_super_users_may_do_anything_while_an_acl_is_damaged(
    storage: BrokerStorage, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        await create(broker, creation())
        session = context(broker, "User:a")
        assert session.may(READ, TOPIC, "t")
        damage(broker)
        await broker.loader.refresh()
        assert not session.may(READ, TOPIC, "t")
        assert not session.may(READ, TOPIC, "u"), "not even with allow.everyone.if.no.acl.found"
        assert context(broker).may(READ, TOPIC, "t")
        assert caplog.text.count("cannot read the ACL in /kafka-acl/damaged: ") == 1
        await delete(broker, chosen(principal_filter="User:a"))
        assert not session.may(READ, TOPIC, "u"), "this filter does not select every possible ACL"
        [found] = await delete(broker, chosen())
        assert found.matching_acls == []
        assert session.may(READ, TOPIC, "u")

    storage.run_broker(life, **SECURED, allow_everyone_if_no_acl_found="true")


def test_damaged_acl_counts_after_a_restart(storage: BrokerStorage) -> None:
    async def first(broker: Broker) -> None:
        await create(broker, creation())
        damage(broker)

    async def second(broker: Broker) -> None:
        assert not context(broker, "User:a").may(READ, TOPIC, "t")
        assert context(broker).may(READ, TOPIC, "t")

    storage.run_broker(first, **SECURED)
    storage.run_broker(second, **SECURED)


def test_change_of_another_broker_takes_effect(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        acl = Acl(TOPIC, "t", PatternType.LITERAL, "User:a", "*", READ, AclPermission.ALLOW)
        acl_nodes.create(broker.loader._log, {acl_nodes.node_name(acl): acl})
        async with asyncio.timeout(30):
            while not context(broker, "User:a").may(READ, TOPIC, "t"):
                await asyncio.sleep(0.01)
        acl_nodes.delete(broker.loader._log, [acl_nodes.node_name(acl)])
        [found] = await delete(broker, chosen())
        assert found.matching_acls == [], "the request reads what others have changed"
        assert not context(broker, "User:a").may(READ, TOPIC, "t")

    storage.run_broker(life, **SECURED)


def test_super_users_may_do_everything_despite_acls(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        deny = {"principal": "User:*", "operation": AclOperation.ALL, "permission_type": AclPermission.DENY}
        await create(broker, creation("*", **deny))
        for principal in ("User:root", "User:CN=root,O=x"):
            assert context(broker, principal).may(WRITE, TOPIC, "t")
            assert context(broker, principal).may_some(WRITE, TOPIC)
        for principal in ("user:root", "User:Root", "User:CN=root", "Group:root", "User:", "User:*"):
            assert not context(broker, principal).may(WRITE, TOPIC, "t")
            assert not context(broker, principal).may_some(WRITE, TOPIC)

    storage.run_broker(life, **SECURED)


def test_resources_without_acls_may_be_open(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker, creation(principal="User:b"), creation("p", resource_pattern_type=PatternType.PREFIXED))
        someone = context(broker, "User:z")
        assert someone.may(WRITE, TOPIC, "other")
        assert someone.may_some(WRITE, TOPIC)
        assert not someone.may(READ, TOPIC, "t"), "another principal's ACL selects it"
        assert not someone.may(READ, TOPIC, "pre")
        assert someone.may(READ, AclResource.GROUP, "t")

    storage.run_broker(life, allow_everyone_if_no_acl_found="true", **SECURED)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("", {}, "Invalid empty resource name"),
        ("other", {"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ("t", {"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ("t", {"resource_pattern_type": 9}, "Invalid patternType UNKNOWN"),
        ("t", {"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ("t", {"operation": 99}, "Invalid operation UNKNOWN"),
        ("t", {"permission_type": 9}, "Invalid permissionType UNKNOWN"),
        (
            "t",
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)
def test_invalid_acl_is_rejected_and_the_others_are_created(
    storage: BrokerStorage, name: str, fields: dict[str, Any], message: str
) -> None:
    async def life(broker: Broker) -> None:
        results = await create(broker, creation("a"), creation(name, **fields), creation("b"), creation("a"))
        assert results == [(0, ""), (ErrorCode.INVALID_REQUEST, message), (0, ""), (0, "")]
        assert await described(broker) == [("a", "User:a"), ("b", "User:a")]

    storage.run_broker(life, **SECURED)


def test_the_number_zero_closes_the_connection(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
            with pytest.raises(BadFrameError):
                await create(broker, creation(**{field: 0}), principal="User:nobody")
        for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            with pytest.raises(BadFrameError):
                await delete(broker, chosen(**{field: 0}))
            with pytest.raises(BadFrameError):
                await described(broker, **{field: 0})

    storage.run_broker(life, **SECURED)


def test_unknown_filters_delete_nothing(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker, creation())
        unknown = [chosen(resource_type_filter=99), chosen(pattern_type_filter=9), chosen(operation=99)]
        results = await delete(broker, *unknown, chosen(resource_name_filter="u"), chosen(permission_type=9))
        assert [(each.error_code, each.error_message, each.matching_acls) for each in results] == [
            (ErrorCode.INVALID_REQUEST, "Unknown patternFilter.", []),
            (ErrorCode.INVALID_REQUEST, "Unknown patternFilter.", []),
            (ErrorCode.INVALID_REQUEST, "Unknown entryFilter.", []),
            (0, None, []),
            (ErrorCode.INVALID_REQUEST, "Unknown entryFilter.", []),
        ]
        assert await described(broker) == [("t", "User:a")]

    storage.run_broker(life, **SECURED)


def test_only_who_may_alter_or_describe_the_cluster_sees_acls(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        with pytest.raises(ProtocolError) as refused:
            await create(broker, creation(), principal="User:a")
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        alter = creation(CLUSTER[1], resource_type=CLUSTER[0], operation=AclOperation.ALTER)
        await create(broker, alter)
        assert await create(broker, creation(), principal="User:a") == [(0, "")]

    storage.run_broker(life, **SECURED)


def test_limits_are_all_or_nothing(storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "MOST_CHANGES", 3)
    monkeypatch.setattr(administration, "MOST_ACLS", 5)

    async def life(broker: Broker) -> None:
        large = ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
        names = [creation(str(number)) for number in range(9)]
        assert await create(broker, *names[:4], creation("")) == [
            *[large] * 4,
            (ErrorCode.INVALID_REQUEST, "Invalid empty resource name"),
        ]
        assert await described(broker) == []
        assert await create(broker, *names[:3]) == [(0, "")] * 3
        full = ErrorCode.POLICY_VIOLATION, "a cluster has at most 5 ACLs, and this one has 3"
        assert await create(broker, *names[:6]) == [full] * 6
        assert await create(broker, *names[:5]) == [(0, "")] * 5, "three of them exist"
        [refused] = await delete(broker, chosen())
        message = "Cannot remove more than 3 acls in a single delete operation."
        assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, message)
        assert len(await described(broker)) == 5
        monkeypatch.setattr(administration, "MOST_CHANGES", 5)
        monkeypatch.setattr(administration, "MOST_COMPARED", 9)
        first, _ = await delete(broker, chosen(), chosen())
        assert first.error_code == ErrorCode.POLICY_VIOLATION
        [done] = await delete(broker, chosen(resource_name_filter="1"))
        assert len(done.matching_acls) == 1

    storage.run_broker(life, **SECURED)


def test_deleted_acls_are_returned_for_each_filter(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        prefixed = {"resource_pattern_type": PatternType.PREFIXED}
        await create(broker, creation("*"), creation("ab", **prefixed), creation("abc"), creation("x"))
        match = chosen(resource_name_filter="abc", pattern_type_filter=PatternType.MATCH)
        literal = chosen(
            resource_type_filter=TOPIC, resource_name_filter="abc", pattern_type_filter=PatternType.LITERAL
        )
        results = await delete(broker, match, literal)
        found = [sorted(each.resource_name for each in result.matching_acls) for result in results]
        assert found == [["*", "ab", "abc"], ["abc"]]
        assert await described(broker) == [("x", "User:a")]

    storage.run_broker(life, **SECURED)


def test_denials_are_logged_at_a_bounded_rate(storage: BrokerStorage, caplog: pytest.LogCaptureFixture) -> None:
    async def life(broker: Broker) -> None:
        client = context(broker, "User:a")
        with caplog.at_level(logging.INFO):
            for number in range(1000):
                with pytest.raises(ProtocolError):
                    client.authorize(WRITE, TOPIC, f"t{number}" * 1000)
                client.may(READ, TOPIC, "t")
                assert not client.allowed(READ, AclResource.GROUP, "g")
        lines = [record.getMessage() for record in caplog.records if "denied" in record.getMessage()]
        name = ("t0" * 1000)[:249]
        assert lines == [
            f"denied WRITE on TOPIC '{name}' to User:a at 10.0.0.1, which FETCH needs",
            "denied READ on GROUP 'g' to User:a at 10.0.0.1, which FETCH needs",
        ]

    storage.run_broker(life, **SECURED)


def test_remembered_decisions_are_bounded(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        authorizer = broker.services.authorizer
        assert isinstance(authorizer, StandardAuthorizer)
        await create(broker, creation("t1", resource_pattern_type=PatternType.PREFIXED))
        client = context(broker, "User:a")
        for _ in range(2):
            for number in range(MOST_REMEMBERED + 10):
                name = f"t{number}"
                assert client.may(READ, TOPIC, name) is name.startswith("t1")
            assert 0 < len(authorizer._remembered) <= MOST_REMEMBERED
        client.may(READ, TOPIC, "n" * 250)
        assert all(len(question[4] or "") < 250 for question in authorizer._remembered)

    storage.run_broker(life, **SECURED)


def test_idempotent_producers_need_write_on_any_topic(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        client = context(broker, "User:a")
        assert not client.may_some(WRITE, TOPIC)
        await create(broker, creation("t", operation=WRITE))
        assert client.may_some(WRITE, TOPIC)
        deny = creation("t", operation=WRITE, permission_type=AclPermission.DENY)
        await create(broker, deny)
        assert not client.may_some(WRITE, TOPIC)

    storage.run_broker(life, **SECURED)


def test_broker_without_an_authorizer_has_the_same_object_as_before(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        assert broker.services.authorizer is ALLOW_EVERYTHING
        context_of_request = replace(context(broker), authorizer=ALLOW_EVERYTHING)
        assert context_of_request.may_some(WRITE, TOPIC)

    storage.run_broker(life)


def test_only_the_standard_authorizer_is_accepted() -> None:
    for name, reason in (
        ("kafka.security.authorizer.AclAuthorizer", "works only with ZooKeeper"),
        ("com.example.Authorizer", "is a Java class"),
    ):
        with pytest.raises(ConfigError, match=f"{name} {reason}"):
            load({"authorizer.class.name": name})
    with pytest.raises(ConfigError, match=r"super\.users needs principals .* not 'alice'"):
        load({"super.users": "User:a;alice"})
    assert load({"authorizer.class.name": STANDARD_AUTHORIZER}).super_users == ""
