"""The SASL mechanisms, with the examples of their RFCs."""

from __future__ import annotations

import pytest

from oncelog.net.sasl import OAuthBearer, Plain, SaslError, Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"  # RFC 7677, section 3
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_plain() -> None:
    exchange = Plain("tim", "tanstaaftanstaaf")  # RFC 4616, section 4
    assert exchange.first() == b"\0tim\0tanstaaftanstaaf"
    assert exchange.answer(b"") is None
    assert exchange.done


def test_scram_sha_256_example_of_the_rfc() -> None:
    exchange = scram()
    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.answer(SERVER_FIRST) == CLIENT_FINAL
    assert not exchange.done
    assert exchange.answer(SERVER_FINAL) is None
    assert exchange.done


def test_scram_sha_512_needs_another_proof() -> None:
    exchange = Scram("SCRAM-SHA-512", "user", "pencil", NONCE)
    answer = exchange.answer(SERVER_FIRST)
    assert answer is not None
    assert len(answer.rpartition(b"p=")[2]) == 88, "64 bytes in base64"
    with pytest.raises(SaslError, match="signature is wrong"):
        exchange.answer(SERVER_FINAL)


def test_scram_escapes_the_user_name() -> None:
    assert Scram("SCRAM-SHA-256", "a=b,c", "x", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "nonce"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"2000000000"), "2000000000 iterations"),
        (SERVER_FIRST.replace(b"4096", b"many"), "malformed"),
        (SERVER_FIRST.replace(b"W22Z", b"!!!!"), "malformed"),
        (b"", "malformed"),
        (b"\xff", "malformed"),
    ],
)
def test_scram_rejects_a_bad_first_message(message: bytes, words: str) -> None:
    with pytest.raises(SaslError, match=words):
        scram().answer(message)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95F4=", "signature is wrong"),
        (b"v=AAAA", "signature is wrong"),
        (b"e=unknown-user", "unknown-user"),
        (b"", "malformed"),
    ],
)
def test_scram_trusts_no_server_without_the_right_signature(message: bytes, words: str) -> None:
    exchange = scram()
    exchange.answer(SERVER_FIRST)
    with pytest.raises(SaslError, match=words):
        exchange.answer(message)
    assert not exchange.done


def test_oauthbearer_token_with_extensions() -> None:
    exchange = OAuthBearer("abc.def", {"logicalCluster": "lkc-1"})
    assert exchange.first() == b"n,,\x01auth=Bearer abc.def\x01logicalCluster=lkc-1\x01\x01"
    assert exchange.answer(b"") is None
    assert exchange.done


def test_oauthbearer_answers_an_error_and_keeps_its_reason() -> None:
    exchange = OAuthBearer("abc")
    assert exchange.answer(b'{"status":"invalid_token","scope":"kafka"}') == b"\x01"
    assert exchange.reason == "status: invalid_token, scope: kafka"
    assert OAuthBearer("abc").answer(b"[1]") == b"\x01"


@pytest.mark.parametrize(
    ("token", "extensions"), [("a\x01b", {}), ("", {}), ("a", {"auth": "x"}), ("a", {"k1": "x"}), ("a", {"k": "\x01"})]
)
def test_oauthbearer_rejects_what_would_break_its_message(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"token|extension") as caught:
        OAuthBearer(token, extensions)
    assert token not in str(caught.value) or len(token) < 2


@pytest.mark.parametrize(
    "exchange", [Plain("u", "hunter2"), Scram("SCRAM-SHA-256", "u", "hunter2", "n"), OAuthBearer("hunter2")]
)
def test_repr_of_an_exchange_has_no_secret(exchange: object) -> None:
    assert "hunter2" not in repr(exchange)
