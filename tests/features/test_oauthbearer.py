"""Logins with OAUTHBEARER: which tokens are accepted, how long a session lasts, and what a stranger can cause."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from oncelog.net.sasl import OAuthBearer
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from support.identity_provider import (
    AUDIENCE,
    USER,
    IdentityProvider,
    claims,
    encoded,
    key,
    public,
    signed,
    symmetric,
)
from support.token_servers import SERVERS, TokenServer, begin, log_in, send
from support.wire import Wire

RSA, EC, WEAK, FOREIGN = key("RSA", "rsa"), key("P-256", "ec"), key("RSA-1024", "weak"), key("RSA", "foreign")
MORE = {"ES384": key("P-384", "ec384"), "ES512": key("P-521", "ec512"), "EdDSA": key("Ed25519", "ed")}
FOR_ENCRYPTION = key("RSA", "enc")
NAMES = os.environ.get("ONCELOG_TEST_SERVERS", "oncelog").split(",")
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


class House(NamedTuple):
    """A broker, and the identity provider whose tokens it accepts."""

    name: str
    server: TokenServer
    provider: IdentityProvider


def key_set() -> dict[str, Any]:
    found = public(RSA, EC, WEAK, *MORE.values())
    found["keys"] += [
        {**FOR_ENCRYPTION.as_dict(private=False), "use": "enc"},
        {"kty": "oct", "kid": "oct", "k": encoded(b"0123456789abcdef0123456789abcdef")},
        {"kty": "AKP", "kid": "unknown kind", "alg": "ML-DSA-44"},
    ]
    return found


@pytest.fixture(scope="module", params=NAMES)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with IdentityProvider(RSA) as provider:
        provider.key_set = key_set()
        server = SERVERS[request.param](tmp_path_factory.mktemp("tokens"), provider.keys_url)
        yield House(request.param, server, provider)
        server.stop()


VALID: dict[str, Callable[[], str]] = {
    **{name: lambda name=name: signed(RSA, claims(), name) for name in RSA_ALGORITHMS},
    "ES256": lambda: signed(EC, claims(), "ES256"),
    **{name: lambda name=name: signed(MORE[name], claims(), name) for name in MORE},
    "without kid": lambda: signed(EC, claims(), header={"alg": "ES256"}, algorithm="ES256"),
    "several audiences": lambda: signed(RSA, claims(aud=["x", AUDIENCE])),
    "without scope": lambda: signed(RSA, claims(scope=None)),
    "list of scopes": lambda: signed(RSA, claims(scope=["a", "b"])),
    "expired within the clock skew": lambda: signed(RSA, claims(iat=time.time() - 100, exp=time.time() - 10)),
    "begins within the clock skew": lambda: signed(RSA, claims(nbf=time.time() + 10)),
    "fractions": lambda: signed(RSA, claims(iat=time.time() - 0.5, exp=time.time() + 99.5)),
    "name with spaces around it": lambda: signed(RSA, claims(sub=f" {USER} ")),
    "other header parameters": lambda: signed(
        RSA, claims(), header={"alg": "RS256", "kid": "rsa", "typ": "at+jwt", "nonce": "x", "x5t": "eHg"}
    ),
    "jku, x5u, jwk of others": lambda: signed(
        RSA,
        claims(),
        header={
            "alg": "RS256",
            "kid": "rsa",
            "jku": "http://127.0.0.1:1/",
            "x5u": "http://127.0.0.1:1/",
            "jwk": FOREIGN.as_dict(private=False),
        },
    ),
}


def deep(levels: int) -> bytes:
    return b'{"sub":"alice","x":' + b"[" * levels + b"]" * levels + b"}"


def duplicate() -> bytes:
    now = int(time.time())
    return (
        f'{{"iss":"https://issuer.example","aud":"kafka","iat":{now},"exp":{now + 99},"sub":"bob","sub":"alice"}}'
    ).encode()


def without_signature(header: dict[str, Any]) -> str:
    return f"{encoded(header)}.{encoded(claims())}."


def resigned(change: Callable[[list[str]], list[str]]) -> str:
    return ".".join(change(signed(RSA, claims()).split(".")))


FORGED: dict[str, Callable[[], str]] = {
    "none": lambda: without_signature({"alg": "none"}),
    "none with kid": lambda: without_signature({"alg": "none", "kid": "rsa"}),
    "NoNe": lambda: without_signature({"alg": "NoNe", "kid": "rsa"}),
    "none with the signature of another": lambda: resigned(lambda parts: [encoded({"alg": "none"}), *parts[1:]]),
    "no algorithm": lambda: without_signature({"kid": "rsa"}),
    "algorithm is a list": lambda: signed(RSA, claims(), header={"alg": ["RS256"], "kid": "rsa"}),
    "HS256 with the public key as PEM": lambda: symmetric(RSA.as_pem(private=False), claims(), "rsa"),
    "HS256 with the public key as DER": lambda: symmetric(RSA.as_der(private=False), claims(), "rsa"),
    "HS256 with the modulus": lambda: symmetric(RSA.as_dict()["n"].encode(), claims(), "rsa"),
    "HS256 with an empty key": lambda: symmetric(b"", claims(), "rsa"),
    "HS256 with the key of an EC": lambda: symmetric(EC.as_pem(private=False), claims(), "ec"),
    "foreign key with a known kid": lambda: signed(FOREIGN, claims(), header={"alg": "RS256", "kid": "rsa"}),
    "foreign key with its own kid": lambda: signed(FOREIGN, claims()),
    "foreign key without kid": lambda: signed(FOREIGN, claims(), header={"alg": "RS256"}),
    "foreign key in the header": lambda: signed(
        FOREIGN, claims(), header={"alg": "RS256", "jwk": FOREIGN.as_dict(private=False)}
    ),
    "foreign key in the header, known kid": lambda: signed(
        FOREIGN, claims(), header={"alg": "RS256", "kid": "rsa", "jwk": FOREIGN.as_dict(private=False)}
    ),
    "key for encryption": lambda: signed(FOR_ENCRYPTION, claims()),
    "key of 1024 bits": lambda: signed(WEAK, claims()),
    "key of another kind": lambda: signed(RSA, claims(), header={"alg": "RS256", "kid": "ec"}),
    "another algorithm": lambda: signed(RSA, claims(), header={"alg": "PS256", "kid": "rsa"}),
    "another hash": lambda: signed(RSA, claims(), header={"alg": "RS512", "kid": "rsa"}),
    "ES256 with zeros": lambda: resigned(
        lambda parts: [encoded({"alg": "ES256", "kid": "ec"}), parts[1], encoded(bytes(64))]
    ),
    "other claims": lambda: resigned(lambda parts: [parts[0], encoded(claims(sub="admin")), parts[2]]),
    "shorter signature": lambda: resigned(lambda parts: [*parts[:2], parts[2][:-4]]),
    "empty signature": lambda: resigned(lambda parts: [*parts[:2], ""]),
    "two parts": lambda: resigned(lambda parts: parts[:2]),
    "four parts": lambda: resigned(lambda parts: [*parts, "x"]),
    "five parts": lambda: resigned(lambda parts: [*parts, "x", "x"]),
    "no token": lambda: "x",
    "crit": lambda: signed(RSA, claims(), header={"alg": "RS256", "kid": "rsa", "crit": ["exp"], "exp": 1}),
    "crit b64": lambda: signed(RSA, claims(), header={"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False}),
    "kid is a number": lambda: signed(RSA, claims(), header={"alg": "RS256", "kid": 1}),
    "header has a name twice": lambda: signed(RSA, claims(), header=b'{"alg":"none","kid":"rsa","alg":"RS256"}'),
    "header is a list": lambda: signed(RSA, claims(), header=b"[1]"),
    "header is deep": lambda: signed(RSA, claims(), header=deep(2000)),
    "claims are deep": lambda: signed(RSA, deep(40_000)),
    "claims are text": lambda: signed(RSA, b"alice"),
    "claims are a list": lambda: signed(RSA, b'["alice"]'),
    "claims have a name twice": lambda: signed(RSA, duplicate()),
    "claims are a token": lambda: signed(RSA, signed(RSA, claims()).encode()),
    "time is no number": lambda: signed(RSA, b'{"sub":"alice","iat":1,"exp":NaN}'),
    "number is long": lambda: signed(RSA, b'{"sub":"alice","iat":1,"exp":' + b"9" * 9000 + b"}"),
    "expired": lambda: signed(RSA, claims(iat=time.time() - 99, exp=time.time() - 60)),
    "expires before it begins": lambda: signed(RSA, claims(iat=time.time(), exp=time.time() - 5)),
    "not valid yet": lambda: signed(RSA, claims(nbf=time.time() + 60)),
    "without exp": lambda: signed(RSA, claims(exp=None)),
    "exp is text": lambda: signed(RSA, claims(exp="9999999999")),
    "exp is negative": lambda: signed(RSA, claims(iat=-9, exp=-1)),
    "exp is true": lambda: signed(RSA, claims(exp=True)),
    "without iat": lambda: signed(RSA, claims(iat=None)),
    "another issuer": lambda: signed(RSA, claims(iss="https://issuer.example.evil")),
    "without issuer": lambda: signed(RSA, claims(iss=None)),
    "issuers are a list": lambda: signed(RSA, claims(iss=["https://issuer.example"])),
    "another audience": lambda: signed(RSA, claims(aud="kafka2")),
    "without audience": lambda: signed(RSA, claims(aud=None)),
    "audience is a number": lambda: signed(RSA, claims(aud=1)),
    "without user": lambda: signed(RSA, claims(sub=None)),
    "empty user": lambda: signed(RSA, claims(sub="")),
    "blank user": lambda: signed(RSA, claims(sub="  ")),
    "user is a number": lambda: signed(RSA, claims(sub=1)),
    "user is a list": lambda: signed(RSA, claims(sub=["alice"])),
    "empty scope": lambda: signed(RSA, claims(scope="")),
    "scope twice": lambda: signed(RSA, claims(scope=["a", "a"])),
}

DIFFERS: dict[str, tuple[Callable[[], str], str]] = {
    "issued in the future": (
        lambda: signed(RSA, claims(iat=time.time() + 600)),
        "Kafka does not compare the time of issue with its clock. Such a token has a wrong time, or was made up.",
    ),
    "huge": (
        lambda: signed(RSA, claims(x="x" * 200_000)),
        "Kafka has no limit but sasl.server.max.receive.size. No provider issues a token of more than 128 KiB.",
    ),
    "line in the name": (
        lambda: signed(RSA, claims(sub="alice\nbob")),
        "Such a name would write lines of its own into the log.",
    ),
    "half a character in the name": (
        lambda: signed(RSA, claims(sub="alice\ud800")),
        "Java writes a question mark instead, so that two users may have the same name.",
    ),
    "padded": (
        lambda: resigned(lambda parts: [*parts[:2], parts[2] + "="]),
        "RFC 7515 allows one form of the same bytes only.",
    ),
    "empty crit": (
        lambda: signed(RSA, claims(), header={"alg": "RS256", "kid": "rsa", "crit": []}),
        "RFC 7515 forbids an empty list.",
    ),
}
"""Tokens that only our broker rejects, and why."""


@pytest.mark.parametrize("kind", VALID)
def test_valid_token_is_accepted(house: House, kind: str) -> None:
    with Wire(house.server.login_address) as wire:
        answer = log_in(wire, VALID[kind]())
        assert not answer.error_code, answer.error_message


@pytest.mark.parametrize("kind", FORGED)
def test_forged_token_is_rejected(house: House, kind: str) -> None:
    token = FORGED[kind]()
    with Wire(house.server.login_address) as wire:
        answer = log_in(wire, token)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert token not in str(answer.error_message)
        with pytest.raises(ConnectionError):
            wire.call(MetadataRequest(topics=[]))


@pytest.mark.parametrize("kind", DIFFERS)
def test_token_that_only_our_broker_rejects(house: House, kind: str) -> None:
    with Wire(house.server.login_address) as wire:
        answer = log_in(wire, DIFFERS[kind][0]())
    assert (answer.error_code == 0) == (house.name != "oncelog"), DIFFERS[kind][1]


def test_log_has_the_reasons_and_no_tokens(house: House) -> None:
    if house.name != "oncelog":
        return
    token = signed(FOREIGN, claims(), header={"alg": "RS256", "kid": "rsa"})
    with Wire(house.server.login_address) as wire:
        log_in(wire, token)
    text = house.server.broker.log()  # type: ignore[attr-defined]
    assert "a login with OAUTHBEARER was rejected: the token's signature is wrong" in text
    assert token.split(".")[1] not in text


def first(token: str, *, before: str = "n,,\x01auth=Bearer ", after: str = "\x01\x01") -> bytes:
    return f"{before}{token}{after}".encode()


@pytest.mark.parametrize(
    ("before", "after", "accepted"),
    [
        ("n,,\x01auth=Bearer ", "\x01\x01", True),
        ("n,,\x01auth=bEaReR   ", "\x01\x01", True),
        (f"n,a={USER},\x01auth=Bearer ", "\x01\x01", True),
        ("n,,\x01x=y\x01auth=Bearer ", "\x01traceid=1 2\x01\x01", True),
        ("n,a=bob,\x01auth=Bearer ", "\x01\x01", False),
        ("y,,\x01auth=Bearer ", "\x01\x01", False),
        ("n,,\x01auth=Basic ", "\x01\x01", False),
        ("n,,\x01auth=Bearer ", "\x01", False),
        ("n,,\x01auth=Bearer ", " x\x01\x01", False),
        ("n,,\x01auth=Bearer ", "\x01\x01\x01", False),
        ("n,,\x01auth=Bearer ", "\x01host:x\x01\x01", False),
        ("n,,\x01", "\x01\x01", False),
        ("", "", False),
        ("\x01", "", False),
    ],
)
def test_form_of_the_first_message(house: House, before: str, after: str, accepted: bool) -> None:
    with Wire(house.server.login_address) as wire:
        begin(wire)
        try:
            answer = send(wire, first(signed(RSA, claims()), before=before, after=after))
            error = answer.error_code
        except ConnectionError:  # Kafka's reaction to "Basic", because an exception has no handler
            error = ErrorCode.SASL_AUTHENTICATION_FAILED
        assert error == (0 if accepted else ErrorCode.SASL_AUTHENTICATION_FAILED)


def test_client_gets_the_reason_before_the_login_fails(house: House) -> None:
    with Wire(house.server.login_address) as wire:
        begin(wire)
        answer = send(wire, OAuthBearer("x").first())
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b'{"status":"invalid_token"}')
        assert answer.session_lifetime_ms == 0
        answer = send(wire, b"\x01")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == '{"status":"invalid_token"}'


def test_session_ends_with_the_token(house: House) -> None:
    with Wire(house.server.login_address) as wire:
        answer = log_in(wire, signed(RSA, claims(exp=int(time.time()) + 3)))
        assert 0 < answer.session_lifetime_ms <= 3000
        assert wire.call(MetadataRequest(topics=[])).brokers
        time.sleep(3.2)
        with pytest.raises(ConnectionError):
            wire.call(MetadataRequest(topics=[]))


def test_new_login_continues_the_session_as_the_same_user(house: House) -> None:
    with Wire(house.server.login_address) as wire:
        log_in(wire, signed(RSA, claims(exp=int(time.time()) + 3)))
        time.sleep(1.1)  # Kafka allows one login in a second
        answer = log_in(wire, signed(RSA, claims(exp=int(time.time()) + 60)))
        assert 50_000 < answer.session_lifetime_ms <= 60_000
        time.sleep(2.1)
        assert wire.call(MetadataRequest(topics=[])).brokers
        other = log_in(wire, signed(RSA, claims(sub="bob")))
        assert other.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert str(other.error_message).startswith("Cannot change principals during re-authentication from User.alice")
        with pytest.raises(ConnectionError):
            wire.call(MetadataRequest(topics=[]))


def test_forged_token_ends_an_open_session(house: House) -> None:
    with Wire(house.server.login_address) as wire:
        log_in(wire, signed(RSA, claims()))
        time.sleep(1.1)
        answer = log_in(wire, signed(FOREIGN, claims()))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ConnectionError):
            wire.call(MetadataRequest(topics=[]))


def test_session_of_a_token_in_the_clock_skew_has_ended(house: House) -> None:
    with Wire(house.server.login_address) as wire:
        answer = log_in(wire, signed(RSA, claims(iat=time.time() - 100, exp=int(time.time()) - 10)))
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        with pytest.raises(ConnectionError):
            wire.call(MetadataRequest(topics=[]))


def test_new_key_is_fetched_when_a_token_first_names_it(house: House) -> None:
    new = key("P-256", f"new-{time.monotonic_ns()}")
    house.provider.key_set["keys"].append(public(new)["keys"][0])
    deadline = time.monotonic() + 60
    while True:
        with Wire(house.server.login_address) as wire:
            answer = log_in(wire, signed(new, claims(), "ES256"))
        if answer.error_code == 0 or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert answer.error_code == 0


def test_mechanism_is_offered(house: House) -> None:
    with Wire(house.server.login_address) as wire:
        answer = wire.call(SaslHandshakeRequest(mechanism="PLAIN"))
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["OAUTHBEARER"]


def test_strangers_cannot_make_the_broker_fetch_without_limit(house: House) -> None:
    if house.name != "oncelog":  # it fetches for each key id that it does not remember
        return
    before = house.provider.requests
    for number in range(300):
        with Wire(house.server.login_address) as wire:
            log_in(wire, signed(EC, claims(), "ES256", header={"alg": "ES256", "kid": f"unknown-{number}"}))
    assert house.provider.requests <= before + 10
