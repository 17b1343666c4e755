"""Delegation tokens (KIP-48, KIP-373): the requests over the wire, logins, our Admin and the command line."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, errors
from oncelog.client.admin.tokens import DelegationToken
from oncelog.net.sasl import Scram
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from oncelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from oncelog.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from support.command_line import Tool
from support.delegation_token_servers import SETTINGS, TokenServer, connect, context, options
from support.permissions import Grant, grant, revoke
from support.secured_kafka import GUEST, PASSWORD, USER
from support.secured_oncelog import SecuredOncelog, certificates, secured_settings
from support.servers import OncelogCluster
from support.wire import Wire, until

E = ErrorCode
ALICE, BOB = f"User:{USER}", f"User:{GUEST}"
MAX_MS, RENEW_MS = int(SETTINGS["delegation.token.max.lifetime.ms"]), int(SETTINGS["delegation.token.expiry.time.ms"])
NEVER_MS = 2**63 - 1
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def alice(token_server: TokenServer, tmp_path: Path) -> Iterator[Wire]:
    with connect(token_server, tmp_path, USER) as wire:
        yield wire


@pytest.fixture
def bob(token_server: TokenServer, tmp_path: Path) -> Iterator[Wire]:
    """Connect a user without permissions."""
    with connect(token_server, tmp_path, GUEST) as wire:
        yield wire


@pytest.fixture
def permit(token_server: TokenServer) -> Iterator[Callable[..., None]]:
    """Grant ACLs to bob until the end of the test."""
    granted: list[Grant] = []
    with Wire(token_server.address_of("PLAINTEXT")) as administrator:

        def permit(*grants: Grant) -> None:
            own = [each._replace(principal=BOB, host="*") for each in grants]
            grant(administrator, own)
            granted.extend(own)

        yield permit
        revoke(administrator, granted)


def create(wire: Wire, *, version: int = 3, max_ms: int = -1, renewers: tuple[str, ...] = (), **owner: str) -> Any:
    """Return the response to CreateDelegationToken."""
    listed = [CreatableRenewers(principal_type="User", principal_name=each) for each in renewers]
    return wire.call(CreateDelegationTokenRequest(renewers=listed, max_lifetime_ms=max_ms, **owner), version)


def created(wire: Wire, **fields: Any) -> Any:
    """Create a token, and wait until the broker knows it."""
    token = create(wire, **fields)
    assert token.error_code == 0, token
    until(lambda: ids(described(wire)), lambda known: token.token_id in known, "the token is known")
    return token


def renewed(wire: Wire, hmac: bytes, period_ms: int = -1) -> tuple[ErrorCode, int]:
    found = wire.call(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))
    return ErrorCode(found.error_code), found.expiry_timestamp_ms


def expired(wire: Wire, hmac: bytes, period_ms: int = -1) -> tuple[ErrorCode, int]:
    found = wire.call(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms))
    return ErrorCode(found.error_code), found.expiry_timestamp_ms


def described(wire: Wire, *owners: str, version: int = 3) -> list[Any]:
    """Return the tokens of these owners, or all."""
    listed = [DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners]
    found = wire.call(DescribeDelegationTokenRequest(owners=listed or None), version)
    assert found.error_code == 0, found
    return list(found.tokens)


def ids(tokens: list[Any]) -> set[str]:
    return {token.token_id for token in tokens}


def text_of(hmac: bytes) -> str:
    return b64encode(hmac).decode()


def log_in(
    wire: Wire, token_id: str, password: str, mechanism: str = "SCRAM-SHA-256", *, token: bool = True
) -> tuple[Any, int]:
    """Log in by SCRAM. Return the last response, and the number of messages of the client."""
    assert wire.call(SaslHandshakeRequest(mechanism=mechanism)).error_code == 0
    exchange = Scram(mechanism, token_id, password, "a-nonce-of-this-test", token=token)
    message: bytes | None = exchange.first()
    sent = 0
    while message is not None:
        answer = wire.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        sent += 1
        if answer.error_code:
            return answer, sent
        message = exchange.answer(bytes(answer.auth_bytes))
    return answer, sent


@pytest.fixture
def fresh(token_server: TokenServer, tmp_path: Path) -> Iterator[Callable[[], Wire]]:
    """Return new connections without a login."""
    opened: list[Wire] = []

    def fresh() -> Wire:
        opened.append(Wire(token_server.address_of("LOGIN"), tls=context(token_server, tmp_path)))
        return opened[-1]

    yield fresh
    for each in opened:
        each.close()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_token_is_created_renewed_described_and_removed(alice: Wire, version: int) -> None:
    made = created(alice, version=version, renewers=(GUEST, "carol"))
    assert (made.principal_type, made.principal_name) == ("User", USER)
    requester = ("User", USER) if version >= 3 else ("", "")
    assert (made.token_requester_principal_type, made.token_requester_principal_name) == requester
    assert made.max_timestamp_ms == made.issue_timestamp_ms + MAX_MS
    assert made.expiry_timestamp_ms == made.issue_timestamp_ms + RENEW_MS
    assert (len(made.token_id), len(made.hmac)) == (22, 64)
    (found,) = [each for each in described(alice, version=version) if each.token_id == made.token_id]
    assert (found.hmac, found.issue_timestamp, found.max_timestamp) == (
        made.hmac, made.issue_timestamp_ms, made.max_timestamp_ms
    )  # fmt: skip
    assert (found.token_requester_principal_type, found.token_requester_principal_name) == requester
    assert [(each.principal_type, each.principal_name) for each in found.renewers] == [
        ("User", GUEST),
        ("User", "carol"),
    ]
    code, expires = renewed(alice, made.hmac)
    assert code is E.NONE
    assert made.expiry_timestamp_ms <= expires <= made.max_timestamp_ms
    assert expired(alice, made.hmac, 30_000)[0] is E.NONE
    code, now = expired(alice, made.hmac)
    assert code is E.NONE
    assert made.issue_timestamp_ms <= now < made.max_timestamp_ms
    until(lambda: ids(described(alice)), lambda known: made.token_id not in known, "the token is removed")
    assert renewed(alice, made.hmac)[0] is E.DELEGATION_TOKEN_NOT_FOUND
    assert expired(alice, made.hmac)[0] is E.DELEGATION_TOKEN_NOT_FOUND


def test_lifetimes_are_bounded_by_the_settings(alice: Wire) -> None:
    long = created(alice, max_ms=NEVER_MS)
    assert long.max_timestamp_ms == long.issue_timestamp_ms + MAX_MS
    short = created(alice, max_ms=40_000)
    assert short.max_timestamp_ms == short.expiry_timestamp_ms == short.issue_timestamp_ms + 40_000
    assert renewed(alice, short.hmac, NEVER_MS) == (E.NONE, short.max_timestamp_ms)
    assert expired(alice, short.hmac, NEVER_MS) == (E.NONE, short.max_timestamp_ms)
    zero = created(alice, max_ms=0)
    assert zero.max_timestamp_ms == zero.issue_timestamp_ms + MAX_MS


def test_only_owner_and_renewers_renew_and_expire(alice: Wire, bob: Wire) -> None:
    own = created(alice)
    assert renewed(bob, own.hmac) == (E.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert expired(bob, own.hmac) == (E.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    shared = created(alice, renewers=(GUEST,))
    assert renewed(bob, shared.hmac)[0] is E.NONE
    assert shared.token_id in ids(described(bob))
    assert shared.token_id in ids(described(bob, GUEST)), "the renewers count as owners"
    assert own.token_id not in ids(described(bob))
    assert expired(bob, shared.hmac)[0] is E.NONE
    for code, _ in (renewed(bob, b""), renewed(bob, b"x" * 64), expired(bob, b"x")):
        assert code is E.DELEGATION_TOKEN_NOT_FOUND


def test_expired_token_is_neither_renewed_nor_used(alice: Wire, fresh: Callable[[], Wire]) -> None:
    made = created(alice, max_ms=1500)
    over = E.DELEGATION_TOKEN_EXPIRED, E.DELEGATION_TOKEN_NOT_FOUND
    until(lambda: renewed(alice, made.hmac)[0], lambda code: code in over, "the token expires")
    assert expired(alice, made.hmac, 1000)[0] in over
    until(lambda: ids(described(alice)), lambda known: made.token_id not in known, "the controller removes the token")
    answer, _ = log_in(fresh(), made.token_id, text_of(made.hmac))
    assert answer.error_code == E.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_login_with_a_token_is_that_of_the_owner(
    bob: Wire, fresh: Callable[[], Wire], permit: Any, mechanism: str
) -> None:
    made = created(bob)
    wire = fresh()
    answer, _ = log_in(wire, made.token_id, text_of(made.hmac), mechanism)
    assert answer.error_code == 0, answer
    assert 0 < answer.session_lifetime_ms <= RENEW_MS, "the session ends with the token (KIP-368)"
    assert wire.call(MetadataRequest(topics=[])).brokers
    again, _ = log_in(wire, made.token_id, text_of(made.hmac), mechanism)
    assert again.error_code == 0, "a session that expires can be renewed"
    refused = E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    new = create(wire)
    assert (new.error_code, new.token_id, new.hmac, new.principal_name) == (refused, "", b"", GUEST)
    assert (new.issue_timestamp_ms, new.expiry_timestamp_ms, new.max_timestamp_ms) == (-1, -1, -1)
    assert renewed(wire, made.hmac) == (refused, -1)
    assert expired(wire, made.hmac) == (refused, -1)
    assert wire.call(DescribeDelegationTokenRequest(owners=None)).error_code == refused


def test_session_ends_when_its_token_expires(alice: Wire, fresh: Callable[[], Wire]) -> None:
    made = created(alice, max_ms=3000)
    wire = fresh()
    assert log_in(wire, made.token_id, text_of(made.hmac))[0].error_code == 0
    with pytest.raises(ConnectionError):
        until(lambda: wire.call(MetadataRequest(topics=[])), lambda _: False, "the session ends")


def test_wrong_logins_with_tokens_fail(token_server: TokenServer, alice: Wire, fresh: Callable[[], Wire]) -> None:
    """Our broker rejects each of them at the same step. DIFFERS: Kafka rejects an unknown id earlier."""
    made = created(alice)
    gone = created(alice)
    assert expired(alice, gone.hmac)[0] is E.NONE
    until(lambda: ids(described(alice)), lambda known: gone.token_id not in known, "the token is removed")
    found = [
        log_in(fresh(), name, password, token=token)
        for name, password, token in (
            (made.token_id, "wrong", True),
            (gone.token_id, text_of(gone.hmac), True),
            ("no-such-token", text_of(made.hmac), True),
            (USER, PASSWORD, True),
            (made.token_id, text_of(made.hmac), False),
        )
    ]
    assert {answer.error_code for answer, _ in found} == {E.SASL_AUTHENTICATION_FAILED}
    assert len({answer.error_message for answer, _ in found}) == 1
    if token_server.name == "oncelog":
        assert {sent for _, sent in found} == {2}


@pytest.mark.parametrize("listener", ["PLAINTEXT", "TLS"])
def test_tokens_need_an_identified_client(
    token_server: TokenServer, tmp_path: Path, alice: Wire, listener: str
) -> None:
    made = created(alice)
    tls = context(token_server, tmp_path) if listener == "TLS" else None
    with Wire(token_server.address_of(listener), tls=tls) as wire:
        refused = E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert create(wire).error_code == refused
        assert renewed(wire, made.hmac) == (refused, -1)
        assert expired(wire, made.hmac) == (refused, -1)
        assert wire.call(DescribeDelegationTokenRequest(owners=None)).error_code == refused


def test_client_certificate_is_enough(token_server: TokenServer, tmp_path: Path, fresh: Callable[[], Wire]) -> None:
    with Wire(token_server.address_of("MUTUAL"), tls=context(token_server, tmp_path, "client")) as wire:
        made = created(wire)
        assert made.principal_name == "CN=client"
        answer, _ = log_in(fresh(), made.token_id, text_of(made.hmac))
        assert answer.error_code == 0


def test_tokens_of_others_need_permissions(alice: Wire, bob: Wire, permit: Any) -> None:
    """Each permission alone is enough, and the others are not."""
    other = {"owner_principal_type": "User", "owner_principal_name": USER}
    made = created(alice)
    on_user = Grant(AclOperation.CREATE_TOKENS, AclResource.USER, ALICE)
    permit(
        Grant(AclOperation.CREATE, AclResource.USER, ALICE),
        Grant(AclOperation.DESCRIBE_TOKENS, AclResource.DELEGATION_TOKEN, "*"),
    )
    refused = create(bob, **other)
    assert refused.error_code == E.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == (USER, GUEST)
    assert create(bob, owner_principal_type="User", owner_principal_name=GUEST).error_code == 0, "one's own"
    permit(on_user)
    of_alice = create(bob, **other)
    assert of_alice.error_code == 0
    assert (of_alice.principal_name, of_alice.token_requester_principal_name) == (USER, GUEST)
    assert made.token_id not in ids(described(bob))
    permit(Grant(AclOperation.DESCRIBE_TOKENS, AclResource.USER, ALICE))
    until(lambda: ids(described(bob)), lambda known: {made.token_id, of_alice.token_id} <= known, "both are listed")
    assert {made.token_id, of_alice.token_id} <= ids(described(bob, USER))
    assert made.token_id not in ids(described(bob, "carol"))


def test_describe_on_one_token_shows_only_it(alice: Wire, bob: Wire, permit: Any) -> None:
    one, two = created(alice), created(alice)
    permit(Grant(AclOperation.DESCRIBE, AclResource.DELEGATION_TOKEN, one.token_id))
    found = ids(described(bob))
    assert one.token_id in found
    assert two.token_id not in found


def test_empty_list_of_owners_selects_nothing(alice: Wire) -> None:
    created(alice)
    found = alice.call(DescribeDelegationTokenRequest(owners=[]))
    assert (found.error_code, found.tokens) == (0, [])


def test_renewers_are_users(alice: Wire) -> None:
    request = CreateDelegationTokenRequest(
        renewers=[CreatableRenewers(principal_type="Group", principal_name="x")], max_lifetime_ms=-1
    )
    assert alice.call(request).error_code == E.INVALID_PRINCIPAL_TYPE


def test_owner_is_a_user(token_server: TokenServer, alice: Wire) -> None:
    """DIFFERS: Kafka creates a token of a group, and its login is that of the user of the same name."""
    found = create(alice, owner_principal_type="Group", owner_principal_name="x").error_code
    assert found == (E.INVALID_PRINCIPAL_TYPE if token_server.name == "oncelog" else E.NONE)


# -- our client -------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(token_server: TokenServer) -> Iterator[Admin]:
    with Admin(config=options(token_server, USER, PASSWORD)) as made:
        yield made


def known(admin: Admin, token: DelegationToken) -> DelegationToken:
    """Wait until the broker knows a token, and return it."""
    found = until(
        lambda: [each for each in admin.describe_delegation_tokens() if each.token_id == token.token_id],
        bool,
        "the token is known",
    )
    return found[0]


def test_admin_creates_tokens_and_clients_log_in(token_server: TokenServer, admin: Admin) -> None:
    made = admin.create_delegation_token(renewers=BOB, max_lifetime_ms=100_000)
    assert known(admin, made) == made
    assert (made.owner, made.requester, made.renewers) == (ALICE, ALICE, (BOB,))
    assert made.hmac not in repr(made)
    assert made.max_ms == made.issued_ms + 100_000
    with_token = options(token_server, made.token_id, made.hmac)
    own = {**with_token, "sasl.username": made.token_id, "sasl.password": made.hmac, "sasl.tokenauth": "true"}
    del own["sasl.jaas.config"]
    with_token["sasl.jaas.config"] = with_token["sasl.jaas.config"].replace(";", ' tokenauth="true";')
    for each in (own, with_token):
        with Admin(config=each) as other:
            assert other.describe_cluster().controller_id >= 0
            with pytest.raises(errors.RequestError) as refused:
                other.create_delegation_token()
            assert refused.value.code is E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert admin.renew_delegation_token(made.hmac, 1000) <= made.max_ms
    assert admin.expire_delegation_token(made.hmac) <= made.max_ms
    until(lambda: admin.describe_delegation_tokens(ALICE), lambda found: made not in found, "the token is removed")
    with pytest.raises(errors.RequestError) as missing:
        admin.renew_delegation_token(made.hmac)
    assert missing.value.code is E.DELEGATION_TOKEN_NOT_FOUND
    with pytest.raises(errors.ConfigError, match="base64"):
        admin.renew_delegation_token("no base64!")
    with pytest.raises(errors.ConfigError, match="TYPE:NAME"):
        admin.create_delegation_token(owner="bob")


def test_command_line(token_server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "alice.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in options(token_server, USER, PASSWORD).items()))

    def run(*arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = tool.json("token", *arguments, "--command-config", str(file))
        return found

    tool = Tool(token_server.address_of("LOGIN"))

    (made,) = run("create", "--owner", BOB, "--renewer", ALICE, "--max-lifetime", "PT2M")
    assert (made["owner"], made["requester"], made["renewers"]) == (BOB, ALICE, [ALICE])
    assert made["max"] == made["issued"] + 120_000
    rows = until(lambda: run("list", "--owner", BOB), bool, "the token is listed")
    (row,) = [each for each in rows if each["token_id"] == made["token_id"]]
    assert "hmac" not in row
    assert made["hmac"] in {each.get("hmac") for each in run("list", "--hmac")}
    (renewed,) = run("renew", made["token_id"], "--period", "PT30S")
    assert renewed["expires"] <= made["max"]
    run("expire", made["token_id"])
    until(lambda: run("list"), lambda rows: all(each["token_id"] != made["token_id"] for each in rows), "it is removed")


# -- several brokers, and none with a key -----------------------------------------------------------------------------


def test_token_of_one_broker_logs_in_on_another_and_survives_a_restart(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    line = f'{_PLAIN} required username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
    settings = {
        **secured_settings(made),
        **SETTINGS,
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "plain.sasl.jaas.config": line,
    }
    tls = ssl.create_default_context(cafile=str(made.ca))
    cluster = OncelogCluster(tmp_path, settings=settings, arguments=("--brokers", "3"))
    try:
        addresses = cluster.bootstrap.split(",")
        assert len(addresses) == 3
        with Wire(addresses[0], login=(USER, PASSWORD), tls=tls) as wire:
            token = create(wire)
        assert token.error_code == 0, token
    finally:
        cluster.stop()
    cluster = OncelogCluster(tmp_path, settings=settings, arguments=("--brokers", "3"))
    try:
        for address in cluster.bootstrap.split(","):
            with Wire(address, tls=tls) as wire:
                answer, _ = log_in(wire, token.token_id, text_of(token.hmac))
                assert answer.error_code == 0, answer
    finally:
        cluster.stop()


def test_broker_without_a_key_has_no_tokens(tmp_path: Path) -> None:
    secured = SecuredOncelog(tmp_path)
    try:
        with Wire(secured.addresses["OPEN"], login=(USER, PASSWORD)) as wire:
            disabled = E.DELEGATION_TOKEN_AUTH_DISABLED
            assert create(wire).error_code == disabled
            assert renewed(wire, b"x" * 64) == (disabled, 0)
            assert expired(wire, b"x" * 64) == (disabled, 0)
            assert wire.call(DescribeDelegationTokenRequest(owners=None)).error_code == disabled
        with Wire(secured.addresses["OPEN"]) as wire:
            answer, sent = log_in(wire, "any-token", "any-hmac")
            assert (answer.error_code, sent) == (E.SASL_AUTHENTICATION_FAILED, 2)
    finally:
        secured.stop()


def test_tokens_are_bounded(token_server: TokenServer, alice: Wire) -> None:
    """DIFFERS: Kafka has no limits."""
    beyond = E.POLICY_VIOLATION if token_server.name == "oncelog" else E.NONE
    assert create(alice, renewers=tuple(f"u{number}" for number in range(101))).error_code == beyond
    assert create(alice, renewers=("u" * 1000,)).error_code == beyond
    assert create(alice, renewers=tuple(f"u{number}" for number in range(100))).error_code == 0
