"""Nobody gets more permissions: edges of ACLs, ACLs that change during a wait, sessions that end, other users."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from oncelog.net.sasl import Scram
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.create_acls import CreateAclsRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.attacker import ASK, Attacker, choose, codes, encoded, plain, say
from support.locked_servers import Locked
from support.permissions import Grant, grant, revoke
from support.secured_kafka import GUEST, GUEST_PASSWORD, PASSWORD, USER
from support.wire import Wire, batch, until

SETTINGS = {"connections.max.reauth.ms": "3000"}
BOB = f"User:{GUEST}"
FAILED, ILLEGAL = int(ErrorCode.SASL_AUTHENTICATION_FAILED), int(ErrorCode.ILLEGAL_SASL_STATE)
DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
DESCRIBE, READ = AclOperation.DESCRIBE, AclOperation.READ
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
DENY = AclPermission.DENY


@pytest.fixture(autouse=True)
def check_server(locked: Locked) -> Iterator[None]:
    """After each test, check that another client is served, and that nothing of the attack is left."""
    yield
    locked.check()


@pytest.fixture
def administrator(locked: Locked) -> Iterator[Wire]:
    with Wire(locked.addresses["PLAINTEXT"]) as made:
        yield made


@pytest.fixture
def attacker(locked: Locked) -> Iterator[Attacker]:
    with Attacker(locked.addresses["OPEN"]) as made:
        yield made


# -- names and patterns -----------------------------------------------------------------------------------------------


def group(name: str, pattern: PatternType = LITERAL, **fields: object) -> Grant:
    """Return an ACL for bob. By default, it allows him to describe a group."""
    given = {"permission": AclPermission.ALLOW, "principal": BOB, "host": "*", **fields}
    return Grant(DESCRIBE, AclResource.GROUP, name, pattern=pattern, **given)  # type: ignore[arg-type]


EDGES: dict[str, tuple[list[Grant], set[str]]] = {
    "no ACL": ([], set()),
    "wildcard": ([group("*")], {"*", "a", "ab", "a.", "a.b", "A", "a*"}),
    "prefix of a star": ([group("*", PREFIXED)], {"*"}),
    "name with a star": ([group("a*")], {"a*"}),
    "prefix with a star": ([group("a*", PREFIXED)], {"a*"}),
    "name": ([group("a")], {"a"}),
    "prefix that is a name": ([group("a", PREFIXED)], {"a", "ab", "a.", "a.b", "a*"}),
    "prefix that ends in a separator": ([group("a.", PREFIXED)], {"a.", "a.b"}),
    "name that ends in a separator": ([group("a.")], {"a."}),
    "pattern with a dot is no expression": ([group(".", PREFIXED), group(".")], set()),
    "denied star allows the other names": ([group("a"), group("*", PREFIXED, permission=DENY)], {"a"}),
    "denied wildcard": ([group("a"), group("a", PREFIXED), group("*", permission=DENY)], set()),
    "denied prefix that is the name": ([group("a"), group("a.b"), group("a.", PREFIXED, permission=DENY)], {"a"}),
    "denied name": ([group("*"), group("a", permission=DENY)], {"*", "ab", "a.", "a.b", "A", "a*"}),
    "everyone is denied": ([group("a"), group("a", principal="User:*", permission=DENY)], set()),
    "everyone": ([group("a", principal="User:*")], {"a"}),
    "other user whose name begins alike": ([group("a", principal=f"{BOB}by")], set()),
    "user in capitals": ([group("a", principal="User:BOB")], set()),
    "other type of principal": ([group("a", principal=f"Group:{GUEST}")], set()),
    "prefix of users": ([group("a", principal="User:b*")], set()),
    "other host": ([group("a", host="127.0.0.2")], set()),
    "range of hosts": ([group("a", host="127.0.0.0/8")], set()),
    "own host": ([group("a", host="127.0.0.1")], {"a"}),
    "denied on another host": ([group("a"), group("a", host="127.0.0.2", permission=DENY)], {"a"}),
    "ACL of a topic": ([group("a")._replace(resource=AclResource.TOPIC)], set()),
}


@pytest.mark.parametrize("edge", EDGES)
def test_acl_selects_no_other_group(locked: Locked, administrator: Wire, edge: str) -> None:
    acls, allowed = EDGES[edge]
    names = ["*", "a", "ab", "a.", "a.b", "A", "a*"]
    grant(administrator, acls)
    try:
        with Wire(locked.addresses["OPEN"], login=(GUEST, GUEST_PASSWORD)) as wire:
            found = wire.call(DescribeGroupsRequest(groups=names), 5).groups
    finally:
        revoke(administrator, acls)
    assert {each.group_id for each in found if each.error_code != DENIED} == allowed


@pytest.mark.parametrize(
    "wrong",
    [
        group(""),
        group("", PREFIXED),
        group("a", principal=GUEST),
        group("a", principal=""),
        group("a", pattern=PatternType.MATCH),
        group("a", pattern=PatternType.ANY),
        group("a", permission=AclPermission.ANY),
        group("a")._replace(operation=AclOperation.ANY),
        group("x")._replace(resource=AclResource.CLUSTER),
    ],
    ids=str,
)
def test_acl_that_would_mean_nothing_is_not_created(administrator: Wire, wrong: Grant) -> None:
    [result] = administrator.call(CreateAclsRequest(creations=[wrong.creation()])).results
    assert result.error_code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR), result


def test_user_cannot_grant_permissions_to_himself(locked: Locked) -> None:
    with Wire(locked.addresses["OPEN"], login=(GUEST, GUEST_PASSWORD)) as wire:
        [result] = wire.call(CreateAclsRequest(creations=[group("*").creation()])).results
        assert result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        changed = ScramCredentialUpsertion(name=USER, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
        answer = wire.call(AlterUserScramCredentialsRequest(deletions=[], upsertions=[changed]))
        assert {each.error_code for each in answer.results} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


@pytest.mark.parametrize("iterations", [-(2**31), -1, 0, 1, 4095, 16_385, 2**31 - 1])
def test_credential_with_absurd_iterations_is_not_stored(administrator: Wire, iterations: int) -> None:
    wanted = ScramCredentialUpsertion(
        name="mallory", mechanism=1, iterations=iterations, salt=b"salt", salted_password=b"p" * 32
    )
    [result] = administrator.call(AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted])).results
    assert result.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL


# -- changes during a request -----------------------------------------------------------------------------------------


def test_fetch_that_waits_returns_nothing_after_its_acl_is_removed(
    locked: Locked, administrator: Wire, name: str
) -> None:
    topic_id = administrator.create_topic(name)
    allowed = [Grant(READ, AclResource.TOPIC, name, principal=BOB, host="*")]
    grant(administrator, allowed)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
    )
    with Wire(locked.addresses["OPEN"], login=(GUEST, GUEST_PASSWORD)) as wire:
        until(lambda: wire.fetch(topic_id).error_code, lambda code: not code, "bob may read")
        version = wire.send(request, 16)
        revoke(administrator, allowed)
        administrator.produce(name, batch([b"secret"]))
        found = wire.receive(request, version).responses[0].partitions[0]
        if locked.name == "apache-kafka" and not found.error_code:
            return  # Kafka checks the permission only when a Fetch begins
        assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not found.records
        assert wire.fetch(topic_id).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# -- later logins of a connection -------------------------------------------------------------------------------------


def test_later_login_with_the_same_user_is_accepted(attacker: Attacker) -> None:
    attacker.log_in(USER, PASSWORD)
    attacker.log_in(USER, PASSWORD)
    assert codes(attacker.call(ASK)) == [0]


@pytest.mark.parametrize(
    "token", [plain(USER, PASSWORD), plain(GUEST, "wrong"), plain(USER, "wrong"), say(b"")], ids=range(4)
)
def test_later_login_as_another_user_ends_the_connection(attacker: Attacker, token: tuple) -> None:
    """The requests are not sent at once: Kafka answers a pipelined one first, as the first user."""
    attacker.log_in(GUEST, GUEST_PASSWORD)
    found = [attacker.call(each)[0] for each in (choose("PLAIN"), token, ASK)]
    assert codes(found) == [0, FAILED, None]


def test_request_behind_a_later_login_that_fails_is_not_served(locked: Locked, attacker: Attacker) -> None:
    attacker.log_in(GUEST, GUEST_PASSWORD)
    attacker.write(b"".join(map(encoded, (choose("PLAIN"), plain(USER, PASSWORD), ASK))))
    if locked.name == "oncelog":  # Kafka answers ASK first
        assert codes([attacker.answer(each) for each in (choose("PLAIN"), plain(USER, PASSWORD), ASK)]) == [
            0, FAILED, None,
        ]  # fmt: skip


def test_later_login_as_another_user_with_scram_ends_the_connection(attacker: Attacker) -> None:
    def log_in(user: str, password: str) -> int:
        client = Scram("SCRAM-SHA-256", user, password, "clients-nonce")
        _, challenge = attacker.call(choose("SCRAM-SHA-256"), say(client.first()))
        final = client.answer(bytes(challenge.auth_bytes))
        assert final is not None
        [done] = attacker.call(say(final))
        return int(done.error_code)

    assert log_in(GUEST, GUEST_PASSWORD) == 0
    assert log_in(USER, PASSWORD) == FAILED
    assert codes(attacker.call(ASK)) == [None]


def test_later_login_with_another_mechanism_ends_the_connection(attacker: Attacker) -> None:
    """Kafka closes the connection after the handshake, oncelog rejects the handshake."""
    attacker.log_in(USER, PASSWORD)
    client = Scram("SCRAM-SHA-256", USER, PASSWORD, "clients-nonce")
    found = codes([attacker.call(each)[0] for each in (choose("SCRAM-SHA-256"), say(client.first()), ASK)])
    assert found in ([ILLEGAL, None, None], [0, None, None])


def test_no_request_is_answered_in_the_middle_of_a_later_login(attacker: Attacker) -> None:
    attacker.log_in(USER, PASSWORD)
    assert codes(attacker.call(choose("PLAIN"))) == [0]
    [answer] = attacker.call(ASK)
    assert answer is None or not answer.brokers, "Kafka returns an error"
    assert attacker.call(ASK) == [None]


def test_later_logins_in_a_row_are_refused(attacker: Attacker) -> None:
    """A server accepts one a second. Those that it refuses end neither the session nor the connection."""
    attacker.log_in(USER, PASSWORD)
    answers = attacker.call(*[choose("PLAIN"), plain(USER, PASSWORD)] * 50)
    found = codes(answers)
    assert found[:2] == [0, 0]
    assert set(zip(found[::2], found[1::2], strict=True)) == {(0, 0), (ILLEGAL, ILLEGAL)}
    refused = [each for each in answers if each.error_code]
    assert {getattr(each, "error_message", None) for each in refused} == {
        None, "SaslAuthenticate request received after successful authentication",
    }  # fmt: skip
    assert codes(attacker.call(ASK)) == [0]


def test_no_request_is_answered_after_the_end_of_the_session(locked: Locked) -> None:
    attackers = [Attacker(locked.addresses["OPEN"]) for _ in range(4)]
    for each in attackers:
        each.log_in(USER, PASSWORD)
    time.sleep(3.5)
    late, failing, renewed, half = attackers
    assert codes(late.call(ASK)) == [None]
    assert codes(failing.call(choose("PLAIN"), plain(USER, "wrong"), ASK)) == [0, FAILED, None]
    renewed.log_in(USER, PASSWORD)
    assert codes(renewed.call(ASK)) == [0]
    handshake, answer = half.call(choose("PLAIN"), ASK)
    assert not handshake.error_code
    assert answer is None or not answer.brokers
    for each in attackers:
        with each:
            pass
