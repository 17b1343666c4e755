"""The server's half of OAUTHBEARER against the client's half, and against messages that nobody should send."""

from __future__ import annotations

import pytest

from oncelog.net.oauth_server import INVALID, MALFORMED, MAX_MESSAGE, MAX_PAIRS, OAuthBearerServer, TokenUser
from oncelog.net.sasl import OAuthBearer, SaslError
from oncelog.net.sasl_server import RejectedLoginError

KNOWN = {"token": TokenUser("al=i,ce", 5000)}


def server() -> OAuthBearerServer:
    return OAuthBearerServer(KNOWN.get)


def test_login_is_complete_for_a_valid_token() -> None:
    made = server()
    client = OAuthBearer("token", {"traceid": "1"})
    assert client.answer(made.answer(client.first())) is None
    assert (made.user, made.expires_ms, client.done) == ("al=i,ce", 5000, True)


def test_client_reads_the_reason_and_then_the_login_fails() -> None:
    made = server()
    client = OAuthBearer("other")
    answer = client.answer(made.answer(client.first()))
    assert (answer, client.reason) == (b"\x01", "status: invalid_token")
    with pytest.raises(RejectedLoginError) as caught:
        made.answer(b"\x01")
    assert str(caught.value) == INVALID
    with pytest.raises(SaslError):
        client.answer(INVALID.encode())
    assert made.user == ""


def test_second_token_in_the_same_login_is_rejected() -> None:
    made = server()
    made.answer(OAuthBearer("other").first())
    for _ in range(2):
        with pytest.raises(RejectedLoginError):
            made.answer(OAuthBearer("token").first())
    assert made.user == ""


def test_user_that_the_client_claims_to_be_is_compared() -> None:
    made = server()
    assert made.answer(b"n,a=al=3Di=2Cce,\x01auth=Bearer token\x01\x01") == b""
    assert made.user == "al=i,ce"
    for claimed in (b"bob", b"al=i", b"=2C"):
        other = server()
        with pytest.raises(RejectedLoginError):
            other.answer(b"n,a=" + claimed + b",\x01auth=Bearer token\x01\x01")
        assert other.user == ""


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\xff",
        b"n,,\x01auth=Bearer token\x01auth=Bearer token\x01\x01",
        b"n,,\x01auth=Bearer token\x01auth=Bearer other\x01\x01",
        b"n,,\x01x=y\x01\x01",
        b"n,,\x01auth=Bearer token" + b"x" * MAX_MESSAGE + b"\x01\x01",
        b"n,,\x01auth=Bearer token\x01" + b"x=y\x01" * MAX_PAIRS + b"\x01",
        b"p=tls-unique,,\x01auth=Bearer token\x01\x01",
    ],
    ids=lambda message: repr(message[:50]),
)
def test_malformed_message_is_rejected_without_details(message: bytes) -> None:
    made = server()
    with pytest.raises(RejectedLoginError) as caught:
        made.answer(message)
    assert str(caught.value) == MALFORMED
    assert made.user == ""
