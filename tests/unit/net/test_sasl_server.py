"""The server's half of PLAIN and SCRAM against the client's half, and against messages that nobody should send."""

from __future__ import annotations

from base64 import b64decode

import pytest

from oncelog.net.credentials import Secret
from oncelog.net.sasl import (
    MIN_ITERATIONS,
    SALT_BYTES,
    SCRAM_HASHES,
    Exchange,
    Plain,
    SaslError,
    Scram,
    new_salt,
)
from oncelog.net.sasl_server import (
    PlainServer,
    RejectedLoginError,
    ScramCredential,
    ScramServer,
    ServerExchange,
    TokenLogin,
    scram_credential,
)

USER, PASSWORD = "al=i,ce", "hunter2"
SALT, DISGUISE = b"salt" * 6, b"disguise"


def log_in(client: Exchange, server: ServerExchange) -> str:
    token: bytes | None = client.first()
    while token is not None:
        answer = server.answer(token)
        token = client.answer(answer) if not client.done else None
    return server.user


def scram_server(mechanism: str, password: str = PASSWORD) -> ScramServer:
    known = {USER: scram_credential(mechanism, password, SALT, MIN_ITERATIONS)}
    return ScramServer(mechanism, known.get, "servers-nonce", DISGUISE)


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_scram_login_is_complete_for_the_right_password(mechanism: str) -> None:
    client = Scram(mechanism, USER, PASSWORD, "clients-nonce")
    assert log_in(client, scram_server(mechanism)) == USER
    assert client.done


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_wrong_password_and_unknown_user_fail_in_the_same_step(mechanism: str, user: str, password: str) -> None:
    server, client = scram_server(mechanism), Scram(mechanism, user, password, "clients-nonce")
    challenge = server.answer(client.first())
    proof = client.answer(challenge)
    assert proof is not None
    with pytest.raises(RejectedLoginError, match="invalid credentials with SASL mechanism"):
        server.answer(proof)
    assert server.user == ""


def test_unknown_user_has_the_same_salt_in_each_attempt() -> None:
    answers = {scram_server("SCRAM-SHA-256").answer(b"n,,n=nobody,r=abc") for _ in range(2)}
    assert len(answers) == 1


def token_server(mechanism: str, owner: str = "owner") -> ScramServer:
    """Return a server that knows a token with the id and HMAC of the user and password."""
    known = {USER: TokenLogin(scram_credential(mechanism, PASSWORD, SALT, MIN_ITERATIONS), owner, 77)}
    return ScramServer(mechanism, lambda name: None, "servers-nonce", DISGUISE, known.get)


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_login_with_a_token_is_that_of_its_owner(mechanism: str) -> None:
    server = token_server(mechanism)
    assert log_in(Scram(mechanism, USER, PASSWORD, "clients-nonce", token=True), server) == "owner"
    assert (server.by_token, server.expires_ms) == (True, 77)


@pytest.mark.parametrize(
    ("name", "password", "owner", "token"),
    [
        (USER, "wrong", "owner", True),
        ("no-token", PASSWORD, "owner", True),
        (USER, PASSWORD, "", True),
        (USER, PASSWORD, "owner", False),
    ],
)
def test_wrong_logins_with_tokens_fail_in_the_same_step(name: str, password: str, owner: str, token: bool) -> None:
    server = token_server("SCRAM-SHA-256", owner)
    client = Scram("SCRAM-SHA-256", name, password, "clients-nonce", token=token)
    proof = client.answer(server.answer(client.first()))
    assert proof is not None
    with pytest.raises(RejectedLoginError, match="invalid credentials with SASL mechanism"):
        server.answer(proof)
    assert server.user == ""


@pytest.mark.parametrize(
    ("extensions", "by_token"),
    [
        ("tokenauth=true", True), ("a=b,tokenauth=TRUE", True), ("tokenauth=false", False), ("tokenauth", False),
        ("tokenauth=true,tokenauth=false", False), ("Tokenauth=true", False), ("tokenauth=true=", False),
    ],
)  # fmt: skip
def test_only_the_extension_tokenauth_asks_for_a_token(extensions: str, by_token: bool) -> None:
    server = token_server("SCRAM-SHA-256")
    server.answer(f"n,,n=a,r=abc,{extensions}".encode())
    assert server.by_token is by_token


def test_unknown_user_looks_like_one_that_our_commands_created() -> None:
    answer = scram_server("SCRAM-SHA-256").answer(b"n,,n=nobody,r=abc").decode()
    salt = answer.split(",")[1].removeprefix("s=")
    assert len(b64decode(salt)) == len(new_salt()) == SALT_BYTES
    assert answer.endswith(f",i={MIN_ITERATIONS}")


def test_unknown_user_has_another_salt_for_each_mechanism_as_known_users_have() -> None:
    answers = {scram_server(each).answer(b"n,,n=nobody,r=abc") for each in SCRAM_HASHES}
    assert len(answers) == 2


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n,,", b"n,,n=,r=abc", b"n,,n=a", b"n,,n=a,r=", b"y,,n=a,r=b", b"p=tls-unique,,n=a,r=b",
        b"n,,m=ext,n=a,r=b", b"n,a=other,n=alice,r=b", b"n,,n=a=b,r=c", b"\xff\xfe", b"n,,n=a\x00b,r=c",
    ],
)  # fmt: skip
def test_malformed_first_message_is_rejected(message: bytes) -> None:
    with pytest.raises(RejectedLoginError):
        scram_server("SCRAM-SHA-256").answer(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: proof.replace(b"servers-nonce", b"another-nonce"),
        lambda proof: proof.replace(b"c=biws", b"c=eSws"),
        lambda proof: proof.rpartition(b",p=")[0],
        lambda proof: proof.rpartition(b",p=")[0] + b",p=" + b"A" * 8,
        lambda proof: proof.rpartition(b",p=")[0] + b",p=***",
        lambda proof: b"\xff" + proof,
    ],
)
def test_changed_proof_is_rejected(change: object) -> None:
    server, client = scram_server("SCRAM-SHA-256"), Scram("SCRAM-SHA-256", USER, PASSWORD, "clients-nonce")
    proof = client.answer(server.answer(client.first()))
    assert proof is not None
    assert callable(change)
    with pytest.raises(RejectedLoginError):
        server.answer(change(proof))
    assert server.user == ""


def test_recorded_login_cannot_be_replayed() -> None:
    client, server = Scram("SCRAM-SHA-256", USER, PASSWORD, "clients-nonce"), scram_server("SCRAM-SHA-256")
    first = client.first()
    proof = client.answer(server.answer(first))
    assert proof is not None
    other = ScramServer(
        "SCRAM-SHA-256",
        {USER: scram_credential("SCRAM-SHA-256", PASSWORD, SALT, MIN_ITERATIONS)}.get,
        "next-nonce",
        DISGUISE,
    )
    other.answer(first)
    with pytest.raises(RejectedLoginError):
        other.answer(proof)


def test_server_that_does_not_know_the_password_is_found_out() -> None:
    client, server = Scram("SCRAM-SHA-256", USER, PASSWORD, "n"), scram_server("SCRAM-SHA-256")
    proof = client.answer(server.answer(client.first()))
    assert proof is not None
    final = server.answer(proof)
    with pytest.raises(SaslError, match="impostor"):
        client.answer(final[:2] + b"A" * (len(final) - 3) + b"=")


def test_credential_survives_its_text() -> None:
    made = scram_credential("SCRAM-SHA-512", PASSWORD, SALT, 5000)
    assert ScramCredential.decode(made.encode()) == made
    assert PASSWORD not in made.encode()
    assert "stored" not in repr(made)
    numbers = [made.encode().replace("5000", number) for number in ("five", "0", "-1", "2147483648")]
    for text in ("", "salt=x", made.encode().replace("iterations", "times"), *numbers):
        with pytest.raises(ValueError, match="no SCRAM credential"):
            ScramCredential.decode(text)


def test_plain_login() -> None:
    users = {"alice": Secret(PASSWORD), "": Secret("empty")}
    assert log_in(Plain("alice", PASSWORD), PlainServer(users)) == "alice"
    for message in (
        b"\0alice\0wrong", b"\0bob\0hunter2", b"other\0alice\0hunter2", b"\0alice\0", b"\0\0empty", b"alice", b"",
        b"\0alice\0hunter2\0", b"\xff\0alice\0hunter2",
    ):  # fmt: skip
        server = PlainServer(users)
        with pytest.raises(RejectedLoginError):
            server.answer(message)
        assert server.user == ""
