"""The deadlines of logins, and credentials in the metadata that cannot be read: the user cannot log in."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable

import pytest

from oncelog.broker import logins as module
from oncelog.broker.config.listener_security import ListenerSecurity
from oncelog.broker.handlers.scram_credentials import handle_describe
from oncelog.broker.logins import LOGIN_S, Login, Logins, find_scram
from oncelog.broker.requests.context import RequestContext
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.net.credentials import Secret
from oncelog.net.frames import BadFrameError
from oncelog.net.sasl_server import RejectedLoginError, ScramServer, scram_credential
from oncelog.net.session import REJECTED, Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest

MECHANISM = "SCRAM-SHA-256"
GOOD = scram_credential(MECHANISM, "hunter2", b"salt" * 6, 4096).encode()


def cache(text: str) -> MetadataCache:
    made = MetadataCache()
    made.image = MetadataImage(user_configs={"alice": {MECHANISM: text}})
    return made


def test_credential_of_a_user_and_a_mechanism_is_found() -> None:
    assert find_scram(cache(GOOD), MECHANISM, "alice") is not None
    assert find_scram(cache(GOOD), "SCRAM-SHA-512", "alice") is None
    assert find_scram(cache(GOOD), MECHANISM, "bob") is None


DAMAGED = ["", "x", GOOD[:30], GOOD.replace("=4096", "=x"), GOOD.replace("=4096", "=9999999999"), "salt=!,"]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_credential_is_listed_beside_the_others(text: str) -> None:
    made = cache(text)
    made.image.user_configs["alice"]["SCRAM-SHA-512"] = GOOD
    made.image.user_configs["bob"] = {MECHANISM: GOOD}
    context = RequestContext(50, 0, 1, "test", Session())
    for users in (None, [UserName(name=name) for name in ("alice", "bob")]):
        made_answer = asyncio.run(handle_describe(made, DescribeUserScramCredentialsRequest(users=users), context))
        answer = DescribeUserScramCredentialsResponse.decode(made_answer.encode(0), 0)
        found = {
            each.user: {info.mechanism: info.iterations for info in each.credential_infos} for each in answer.results
        }
        assert found == {"alice": {1: 0, 2: 4096}, "bob": {1: 4096}}
        assert not any(each.error_code for each in answer.results)


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_credential_is_logged_and_rejects_the_user(text: str, caplog: pytest.LogCaptureFixture) -> None:
    server = ScramServer(MECHANISM, lambda user: find_scram(cache(text), MECHANISM, user), "nonce", b"disguise")
    with caplog.at_level(logging.ERROR):
        challenge = server.answer(b"n,,n=alice,r=clients")
    assert "the credential of user 'alice' for SCRAM-SHA-256 is damaged" in caplog.text
    assert "salt=" not in caplog.text
    nonce = challenge.split(b",")[0]
    with pytest.raises(RejectedLoginError, match="invalid credentials"):
        server.answer(b"c=biws," + nonce + b",p=" + b"A" * 43 + b"=")


def listener(now: Callable[[], float] = lambda: 0.0, max_reauth_ms: int = 0) -> Logins:
    """Return the logins of a listener."""
    security = ListenerSecurity(
        mechanisms=("PLAIN",), users={"alice": Secret("hunter2")}, failure_delay_ms=250, max_reauth_ms=max_reauth_ms
    )
    return Logins(security, b"secret", lambda mechanism, user: None, now, lambda: 0)


class Deadlines:
    """The deadlines of a session: seconds and reasons. A cancelled one is removed."""

    def __init__(self, logins: Logins | None = None, max_reauth_ms: int = 0) -> None:
        self.session = Session()
        self.session.drop = self.drop
        self.kept: list[tuple[float, str]] = []
        self.now = 0.0
        self.login: Login = (logins or listener(lambda: self.now, max_reauth_ms)).begin(self.session)

    def drop(self, seconds: float, reason: str) -> Deadlines:
        self.kept.append((seconds, reason))
        return self

    def cancel(self) -> None:
        self.kept.pop(0)

    def log_in(self, password: str) -> int:
        self.login.handshake(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        token = f"\0alice\0{password}".encode()
        return self.login.authenticate(SaslAuthenticateRequest(auth_bytes=token)).error_code


def test_login_has_a_deadline() -> None:
    found = Deadlines()
    assert found.kept == [(LOGIN_S, "it has not logged in")]
    assert found.log_in("hunter2") == ErrorCode.NONE
    assert found.kept == []


def test_failed_login_closes_the_connection_later() -> None:
    found = Deadlines()
    assert found.log_in("wrong") == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert found.kept == [(LOGIN_S, "it has not logged in"), (0.25, "its login has failed")]
    assert found.session.muted & REJECTED


def test_oldest_of_too_many_logins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    logins = listener()
    complete, oldest, lost = (Deadlines(logins) for _ in range(3))
    assert complete.log_in("hunter2") == ErrorCode.NONE
    lost.session.disconnected()
    wrong = Deadlines(logins)
    assert wrong.log_in("wrong") == ErrorCode.SASL_AUTHENTICATION_FAILED
    newest = [Deadlines(logins)]
    assert len(oldest.kept) == 1, "complete and lost logins do not count"
    newest.append(Deadlines(logins))
    assert oldest.kept[1:] == [(0, "it has not logged in, and too many others log in")]
    newest.append(Deadlines(logins))
    assert wrong.kept[2:] == oldest.kept[1:], "a rejected login counts until its connection is closed"
    assert complete.kept == lost.kept == []
    assert all(len(each.kept) == 1 for each in newest)


def test_login_is_freed_with_its_connection() -> None:
    """It may hold messages of 500 KB, and a broker collects garbage seldom."""

    class Marked(Login):
        pass

    found = Deadlines()
    gc.collect()
    gc.disable()
    try:
        login = weakref.ref(Marked(listener(), found.session))
        assert login() is not None
        found.session.disconnected()
        found.session.lost()
        assert login() is None
    finally:
        gc.enable()


def test_later_logins_are_a_second_apart() -> None:
    found = Deadlines(max_reauth_ms=500)
    choice = SaslHandshakeRequest(mechanism="PLAIN")

    def log_in_at(now: float) -> int:
        found.now = now
        found.login.check(ApiKey.SASL_HANDSHAKE)
        refused = found.login.handshake(choice, 1).error_code
        token = SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2")
        done = found.login.authenticate(token)
        assert (done.error_code, done.session_lifetime_ms) == ((refused, 0) if refused else (ErrorCode.NONE, 500))
        return refused

    assert log_in_at(10.0) == ErrorCode.NONE
    assert log_in_at(10.1) == ErrorCode.NONE, "the first later login may come at any time"
    for now in (10.1, 10.5):
        assert log_in_at(now) == ErrorCode.ILLEGAL_SASL_STATE
        found.login.check(ApiKey.METADATA)
    found.now = 10.65
    for api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA):
        with pytest.raises(BadFrameError, match="the session of User:alice has expired"):
            found.login.check(api_key)
    assert log_in_at(11.1) == ErrorCode.NONE


def test_salt_of_an_unknown_user_depends_on_the_secret_of_the_cluster() -> None:
    def salt(secret: bytes) -> bytes:
        security = ListenerSecurity(mechanisms=(MECHANISM,))
        logins = Logins(security, secret, lambda mechanism, user: None, float, int)
        return logins.exchange(MECHANISM).answer(b"n,,n=alice,r=clients").split(b",")[1]

    assert salt(b"secret") == salt(b"secret") != salt(b"other")
